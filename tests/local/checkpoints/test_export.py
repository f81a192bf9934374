"""What a checkpoint exports is a model like any other."""

import random

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from egpo.config.sections.training import Lora
from egpo.local.checkpoints.resume import export_policy, random_states, restore_random_states, seed_everything
from egpo.local.models.lora import add_adapters
from egpo.local.models.packs import Sequences, pack_groups
from tests.local.conftest import CONFIGS
from tests.local.device import DEVICE, MODEL

TOKENS = [5, 9, 40, 77, 120, 8, 33]


def logits(policy):
    pack = pack_groups([Sequences(TOKENS)], DEVICE)
    with torch.no_grad():
        return policy.hidden(pack) @ policy.head_VD.T


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_transformers_loads_it_as_it_is(shape, load, tmp_path):
    policy = load(shape)
    export_policy(policy, tmp_path)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    with torch.no_grad():
        plain = model(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(plain, logits(policy).cpu(), atol=1e-5, rtol=1e-5)
    assert tokenizer.chat_template == policy.tokenizer.chat_template
    assert tokenizer.encode("<think>2+2</think>") == policy.tokenizer.encode("<think>2+2</think>")
    assert model.generation_config.eos_token_id is not None


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_an_export_of_an_export_is_the_same_to_the_bit(shape, load, tmp_path):
    """Resuming loads it and saves it again."""
    export_policy(load(shape), tmp_path / "one")
    from egpo.config.schema import Model
    from egpo.local.models.loading import load_policy

    export_policy(load_policy(Model(path=str(tmp_path / "one"), **MODEL)), tmp_path / "two")
    one, two = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two


@pytest.mark.parametrize("shape", ["qwen3", "gpt2"])
def test_adapters_are_merged(shape, load, tmp_path):
    pytest.importorskip("peft")
    policy = load(shape)
    add_adapters(policy.model, Lora(rank=4), seed=0)
    with torch.no_grad():
        for name, parameter in policy.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    export_policy(policy, tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not [name for name, _ in model.named_parameters() if "lora" in name]
    with torch.no_grad():
        plain = model(torch.tensor([TOKENS])).logits[0]
    torch.testing.assert_close(plain, logits(policy).cpu(), atol=1e-5, rtol=1e-5)


def test_bfloat16_stays_bfloat16(load, tmp_path):
    export_policy(load("qwen3", dtype="bfloat16"), tmp_path)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).dtype == torch.bfloat16


def drawn():
    return [random.random(), random.gauss(0, 1), np.random.rand(3).tolist(), torch.rand(3).tolist()]


def test_random_states_go_on_where_they_were():
    import json

    seed_everything(7)
    random.gauss(0, 1), np.random.randn()  # each keeps a second number for later
    states = json.loads(json.dumps(random_states()))
    first = drawn()
    assert drawn() != first
    restore_random_states(states)
    assert drawn() == first


def test_who_may_read_the_config_may_read_the_weights(load, tmp_path):
    """safetensors writes files that only their owner may read, whatever the umask."""
    export_policy(load("qwen3"), tmp_path)
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1
