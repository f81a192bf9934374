"""What the fused path takes and what it leaves to transformers, with the reason in one phrase."""

import pytest
import torch

from egpo.local.models.architectures import why_not_fused, why_not_known, why_not_lean
from egpo.local.models.packs import Sequences, pack_groups
from tests.local.conftest import CONFIGS, build_model


@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3"])
def test_the_shapes_it_knows(shape):
    model = build_model(shape)
    assert why_not_known(model) is None
    assert why_not_fused(model) == "it is for GPUs"


def test_others_go_through_transformers():
    assert why_not_known(build_model("gpt2")) == "GPT2LMHeadModel is not a shape it knows"


def changed(shape, **settings):
    model = build_model(shape)
    return type(model)(type(CONFIGS[shape])(**{**CONFIGS[shape].to_dict(), **settings}))


WINDOW = {"use_sliding_window": True, "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}
LONGER = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("shape", "settings", "why"),
    [
        ("llama", {"hidden_act": "gelu"}, "the activation is gelu"),
        ("llama", {"mlp_bias": True}, "a layer has a bias beyond those of queries, keys and values"),
        ("qwen2", WINDOW, "a layer has a sliding window"),
        ("llama", {"rope_parameters": LONGER}, "its positions are dynamic"),
    ],
)
def test_a_part_it_does_not_know_is_named(shape, settings, why):
    assert why_not_known(changed(shape, **settings)) == why


@pytest.mark.parametrize("place", ["embed_tokens", "layers.0.mlp", "layers.1.self_attn.q_proj", "norm"])
def test_hooks_are_called_as_by_transformers(load, place):
    policy, called = load(), []
    policy.model.base_model.get_submodule(place).register_forward_hook(lambda *_: called.append(True))
    assert policy.path == "transformers"
    policy.hidden(pack_groups([Sequences([5, 6, 7])], policy.device))
    assert called


def test_hooks_of_transformers_change_nothing():
    model = build_model("qwen3")
    model.gradient_checkpointing_enable()
    model(torch.tensor([[5, 6]]), output_hidden_states=True, output_attentions=True)
    assert any(part._forward_hooks for part in model.modules())
    assert why_not_known(model) is None


def test_a_rotation_of_a_part_of_each_head_is_left_to_transformers():
    model = build_model("qwen3")
    model.base_model.rotary_emb.inv_freq = model.base_model.rotary_emb.inv_freq[:2]
    assert why_not_known(model) == why_not_lean(model) == "positions turn a part of each head alone"
