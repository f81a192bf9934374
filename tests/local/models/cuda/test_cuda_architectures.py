"""Which models the layers for GPUs compute, and why the others are left to transformers."""

import pytest
import torch

from egpo.local.models.architectures import unsupported_feature, why_not_cuda_layers
from egpo.local.models.packs import Sequences, pack_groups
from tests.local.conftest import CONFIGS, build_model


@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3"])
def test_the_shapes_it_knows(shape):
    model = build_model(shape)
    assert unsupported_feature(model, "cuda_layers") is None
    assert why_not_cuda_layers(model) == "the model is not on a GPU"


def test_others_go_through_transformers():
    assert unsupported_feature(build_model("gpt2"), "cuda_layers") == "unknown architecture"


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
        ("llama", {"rope_parameters": LONGER}, "the rotary positions are dynamic"),
    ],
)
def test_a_part_it_does_not_know_is_named(shape, settings, why):
    assert unsupported_feature(changed(shape, **settings), "cuda_layers") == why


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
    assert unsupported_feature(model, "cuda_layers") is None


def test_a_rotation_of_a_part_of_each_head_is_left_to_transformers():
    model = build_model("qwen3")
    model.base_model.rotary_emb.inv_freq = model.base_model.rotary_emb.inv_freq[:2]
    for path in ("cuda_layers", "cpu_layers"):
        assert unsupported_feature(model, path) == "rotary positions cover only a part of each head"
