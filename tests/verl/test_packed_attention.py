"""Attention over packed sequences: the same as each sequence alone, in values and gradients, for every packing."""

import gc
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM, modeling_utils

from egpo.errors import InputError
from egpo.support import FAST_ARCHITECTURES, PACKED_ATTENTION
from egpo.verl import packed_attention
from egpo.verl.packed_attention import MOST_PADDING, layout_of, register_attention

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
LENGTHS = [7, 1, 30, 12, 1, 29, 3]


@pytest.fixture(autouse=True, scope="module")
def registered():
    register_attention(modeling_utils)
    yield
    for table in (AttentionInterface._global_mapping, AttentionMaskInterface._global_mapping):
        table.pop(PACKED_ATTENTION, None)


def _model(architecture="qwen3", attention=PACKED_ATTENTION, **settings):
    torch.manual_seed(0)
    config = AutoConfig.for_model(architecture, **SHAPE, **settings)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def _sequences(lengths):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(1, 50, (length,), generator=generator) for length in lengths]


def _positions(lengths):
    return torch.cat([torch.arange(length) for length in lengths])[None]


def _packed(model, sequences):
    positions = _positions([len(one) for one in sequences])
    return model(torch.cat(sequences)[None], position_ids=positions, use_cache=False).logits[0]


def _alone(model, sequences):
    return torch.cat([model(one[None], use_cache=False).logits[0] for one in sequences])


def _gradients(model, logits_NV):
    model.zero_grad()
    weight_NV = torch.randn(logits_NV.shape, generator=torch.Generator().manual_seed(2))
    (logits_NV * weight_NV).sum().backward()
    return [weight.grad.clone() for weight in model.parameters()]


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("architecture", FAST_ARCHITECTURES)
def test_a_packed_row_is_each_sequence_alone(architecture, checkpointing):
    sequences = _sequences(LENGTHS)
    model, plain = _model(architecture), _model(architecture, "eager")
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    packed, alone = _packed(model, sequences), _alone(plain, sequences)
    torch.testing.assert_close(packed, alone, rtol=0, atol=2e-6)
    for ours, expected in zip(_gradients(model, packed), _gradients(plain, alone), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=2e-5)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_every_token_is_in_one_place_and_rectangles_have_bounded_padding(lengths):
    layout = layout_of(_positions(lengths))
    tokens_N = torch.cat([one.tokens_N for one in layout.rectangles])
    assert tokens_N[layout.place_N].tolist() == list(range(sum(lengths)))
    assert layout.longest == max(lengths)
    assert sum(one.rows for one in layout.rectangles) == len(lengths)
    for one in layout.rectangles:
        assert len(set(one.slots_N.tolist())) == len(one.tokens_N)
        assert one.rows * one.longest <= MOST_PADDING * len(one.tokens_N)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 3))
def test_any_packing_gives_what_each_sequence_gives(lengths, seed):
    heads = {
        name: torch.randn(1, count, sum(lengths), 8, generator=torch.Generator().manual_seed(seed + place))
        for place, (name, count) in enumerate({"query": 4, "key": 2, "value": 2}.items())
    }
    found, _ = packed_attention.attend(
        torch.nn.Module(), **heads, attention_mask=None, position_ids=_positions(lengths), scaling=0.3
    )
    ends = torch.tensor(lengths).cumsum(0).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        query, key, value = (one[:, :, start:end] for one in heads.values())
        scores = query @ key.repeat_interleave(2, 1).transpose(-1, -2) * 0.3
        scores = scores.masked_fill(torch.ones(end - start, end - start).triu(1).bool(), -torch.inf)
        expected = (scores.softmax(-1) @ value.repeat_interleave(2, 1)).transpose(1, 2)
        torch.testing.assert_close(found[:, start:end], expected, rtol=0, atol=1e-5)


def test_padded_rows_are_computed_as_by_sdpa():
    model, plain = _model(), _model(attention="sdpa")
    tokens = torch.stack([torch.cat([torch.zeros(20 - len(one)).long(), one]) for one in _sequences([20, 5, 13])])
    mask = (tokens > 0).long()
    ours, expected = (one(tokens, attention_mask=mask).logits for one in (model, plain))
    torch.testing.assert_close(ours[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-6)


def test_generation_with_a_cache_is_that_of_sdpa():
    tokens = _sequences([9])[0][None].repeat(2, 1)
    tokens[1, :4] = 0
    options = {"attention_mask": (tokens > 0).long(), "max_new_tokens": 6, "do_sample": False}
    assert (
        _model().generate(tokens, **options).tolist() == _model(attention="sdpa").generate(tokens, **options).tolist()
    )


def test_the_layout_is_computed_once_per_pass_and_anew_for_other_positions(monkeypatch):
    calls = []
    monkeypatch.setattr(packed_attention, "layout_of", lambda positions: calls.append(1) or layout_of(positions))
    model = _model()
    first = _packed(model, _sequences([3, 9]))
    gc.collect()
    second = _packed(model, _sequences([9, 3]))
    assert len(calls) == 2
    assert not torch.equal(first, second)


def test_a_window_shorter_than_a_sequence_is_refused():
    model = _model("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=0)
    with pytest.raises(InputError, match="a sliding window of 8 tokens"):
        _packed(model, _sequences([12, 4]))
    _packed(model, _sequences([8, 4]))


def test_sequences_divided_among_gpus_are_refused(monkeypatch):
    class Ulysses:
        @staticmethod
        def get_ulysses_sequence_parallel_world_size():
            return 2

    monkeypatch.setitem(sys.modules, "verl.utils.ulysses", Ulysses)
    with pytest.raises(InputError, match="divided among GPUs"):
        _packed(_model(), _sequences([12, 4]))


def test_positions_of_several_axes_are_refused():
    heads = torch.randn(1, 2, 6, 8)
    with pytest.raises(InputError, match="one position per token"):
        packed_attention.attend(
            torch.nn.Module(), heads, heads, heads, None, position_ids=torch.arange(6).expand(3, 1, 6)
        )
