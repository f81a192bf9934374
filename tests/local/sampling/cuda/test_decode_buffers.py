"""Prompts are computed in chunks: each once, in order, none too large."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from egpo.local.sampling.cuda.row_scheduler import chunk_prompts
from tests.local.sampling.test_sample import drawn


@given(st.lists(st.integers(1, 40), min_size=1), st.integers(1, 60))
def test_every_prompt_is_in_one_chunk_that_is_no_larger_than_it_must_be(lengths, most):
    prompts = [[place] * length for place, length in enumerate(lengths)]
    found = list(chunk_prompts(prompts, most))
    assert [prompt for chunk in found for prompt in chunk] == prompts
    for chunk, following in zip(found, [*found[1:], []], strict=True):
        size = sum(map(len, chunk))
        assert size <= most or len(chunk) == 1
        assert not following or size + len(following[0]) > most


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_chunks_change_nothing(load_on_gpu, monkeypatch):
    whole = drawn(load_on_gpu(), n=3)
    monkeypatch.setattr("egpo.local.sampling.cuda.decode_buffers._TOKENS_AT_ONCE", 8)
    parts = drawn(load_on_gpu(), n=3)
    assert torch.equal(whole.response_BT, parts.response_BT)
    torch.testing.assert_close(whole.logp_BT, parts.logp_BT, atol=1e-5, rtol=0)
