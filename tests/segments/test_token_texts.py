"""A response cut into what its tokens wrote: the parts join to the text, whatever the tokenizer does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from egpo.segments.tags import TokenTexts
from tests.local.conftest import build_tokenizer


def sentencepiece_like():
    """Metaspace, with byte tokens for what has no piece: decoding drops the first space."""
    pieces = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "▁▁", "é"]
    tokenizer = Tokenizer(
        models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


TOKENIZERS = {"bytes": build_tokenizer(), "sentencepiece": sentencepiece_like()}
TEXTS = {name: TokenTexts(tokenizer) for name, tokenizer in TOKENIZERS.items()}


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
@given(data=st.data())
def test_the_parts_join_to_the_text(name, data):
    tokenizer = TOKENIZERS[name]
    # A model's vocabulary may be larger than its tokenizer's.
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) + (20 if name == "bytes" else -1)), max_size=12))
    text = tokenizer.decode(ids, skip_special_tokens=True)
    parts = TEXTS[name].parts(ids, text)
    assert "".join(parts) == text
    assert len(parts) == len(ids)


def test_a_character_belongs_to_the_token_that_ends_it():
    tokenizer = TOKENIZERS["bytes"]
    ids = tokenizer.encode("aé<think>", add_special_tokens=False)
    assert TEXTS["bytes"].parts(ids, "aé<think>") == ["a", "", "é", "<think>"]
    assert TEXTS["bytes"].parts([*ids, tokenizer.eos_token_id], "aé<think>")[-1] == ""
