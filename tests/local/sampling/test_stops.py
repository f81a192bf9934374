"""A response is over at its first stop, whatever the tokens that write it."""

import pytest
import torch

from egpo.local.sampling.choose import Stops
from tests.local.conftest import build_tokenizer

TOKENIZER = build_tokenizer()  # a token is a byte: every character beyond ASCII is several


def tokens(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def first_end(text, *strings, ids=frozenset({2})):
    """After how many tokens of the text it is over; None: never."""
    written, stops = tokens(text), Stops(ids, strings)
    ends = (
        end
        for end in range(1, len(written) + 1)
        if stops.over(torch.tensor([written[end - 1]]), [written[:end]], TOKENIZER)
    )
    return next(ends, None)


@pytest.mark.parametrize("string", ["q", "</answer>", "\n\n", "é", "日本", "a🙂b", "🙂🙂"])
def test_a_string_ends_a_response_with_its_last_byte(string):
    for before in ("", "xy", "日", "long enough that the tail is a part of it only 🙂 "):
        assert first_end(before + string + "more", string) == len((before + string).encode())


def test_any_of_the_strings_does():
    assert first_end("one two three", "three", "two", "never") == len("one two")


def test_a_stop_token_does_without_and_beside_strings():
    assert first_end("ab<|im_end|>c") == 3
    assert first_end("ab<|im_end|>c", "never") == 3
    assert first_end("abc", ids=frozenset({2, tokens("b")[0]})) == 2


def test_a_string_that_is_not_there_ends_nothing():
    assert first_end("<answer", "<answer>") is None


def test_rows_end_one_by_one():
    written = [tokens("no"), tokens("ok"), tokens("n🙂")]
    over_R = Stops(frozenset({2}), ("ok", "🙂")).over(torch.tensor([row[-1] for row in written]), written, TOKENIZER)
    assert over_R.tolist() == [False, True, True]
