"""A stop string is found where it ends, however many tokens were sampled before anyone looked."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.local.sampling.choose import Stops
from egpo.local.sampling.cuda.row_scheduler import first_stop
from tests.local.conftest import build_tokenizer

TOKENIZER = build_tokenizer()
STOPS = Stops(frozenset(), ("ab", "é!"))


def tokens_of(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


@given(st.text(alphabet="abcé!", max_size=20), st.integers(0, 10))
def test_it_ends_where_looking_after_every_token_would_have_ended_it(text, known):
    tokens = tokens_of(text)
    known = min(known, len(tokens))
    texts = [TOKENIZER.decode(tokens[:length]) for length in range(len(tokens) + 1)]
    ends = [length for length in range(known + 1, len(texts)) if any(stop in texts[length] for stop in STOPS.strings)]
    if any(stop in texts[known] for stop in STOPS.strings):
        return  # such a row is over already
    assert first_stop(tokens, known, STOPS, TOKENIZER) == (ends[0] if ends else None)


@pytest.mark.parametrize("known", [0, 1, 2])
def test_a_string_across_two_looks(known):
    assert first_stop(tokens_of("xab y"), known, STOPS, TOKENIZER) == 3
