"""A model with a feature that the CPU layers do not support is computed by transformers."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from egpo.local.models import architectures
from egpo.local.models.architectures import Architecture, layers_of, unsupported_feature, why_not_cpu_layers
from egpo.local.models.caches import Slots
from tests.local.conftest import CONFIGS
from tests.local.models.test_cpu_decoder import SIZES

WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_every_common_decoder_is_covered(load, shape):
    assert load(shape).path == ("transformers" if shape == "gpt2" else "cpu_layers")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (Qwen2Config(**SIZES, **WINDOW), "sliding window"),
        (Qwen2Config(**SIZES, hidden_act="gelu"), "activation is gelu"),
        (CONFIGS["gpt2"], "unknown architecture"),
    ],
)
def test_what_is_not_covered_says_why(config, reason):
    assert reason in why_not_cpu_layers(AutoModelForCausalLM.from_config(config))


def test_layers_that_are_computed_again_are_left_to_transformers(load):
    policy = load(gradient_checkpointing=True)
    assert policy.path == "transformers"
    assert isinstance(policy.open_slots(), Slots)


def test_a_class_of_ones_own_is_not_taken_for_its_parent():
    class Changed(type(AutoModelForCausalLM.from_config(CONFIGS["llama"]))):
        pass

    with torch.no_grad():
        assert why_not_cpu_layers(Changed(CONFIGS["llama"])) == "unknown architecture"


def test_a_new_architecture_is_one_row_of_the_table(monkeypatch):
    class Renamed(type(AutoModelForCausalLM.from_config(CONFIGS["llama"]))):
        pass

    row = Architecture(Renamed, "renamed", head_norms=False, qkv_bias=False)
    monkeypatch.setattr(architectures, "ARCHITECTURES", (*architectures.ARCHITECTURES, row))
    model = Renamed(CONFIGS["llama"])
    assert why_not_cpu_layers(model) is None
    assert [unsupported_feature(model, path) for path in ("cpu_token_step", "cuda_layers")] == [None, None]
    assert layers_of(model)[1].query is model.base_model.layers[1].self_attn.q_proj
