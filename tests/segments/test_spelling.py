"""The bytes of the tokens, put together, are the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.segments.tags import UNSPELLABLE, token_spellings
from tests.segments.tokenizers_for_tests import BUILDERS, tokenizer_named

TEXTS = st.lists(
    st.sampled_from(["<think>", "</think>", ">\n\n", " a", "b", "é", "◁", "▷", "\n", "3 + 4", "日"]), max_size=12
)


@pytest.mark.parametrize("kind", sorted(BUILDERS))
@given(TEXTS)
def test_spellings_add_up_to_the_decoded_text(kind, parts):
    tokenizer = tokenizer_named(kind)
    ids = tokenizer.encode("a" + "".join(parts), add_special_tokens=False)
    spelt = b"".join(token_spellings(tokenizer)[i] for i in ids).decode(errors="replace")
    # A SentencePiece text has lost the space that its first token carries.
    assert spelt.removeprefix(" ") == tokenizer.decode(ids, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("kind", sorted(BUILDERS))
def test_every_id_is_spelt(kind):
    tokenizer = tokenizer_named(kind)
    spellings = token_spellings(tokenizer)
    assert len(spellings) == len(tokenizer)
    assert UNSPELLABLE not in [spelling for i, spelling in enumerate(spellings) if tokenizer.decode([i]).isascii()]
