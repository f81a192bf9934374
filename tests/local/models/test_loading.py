import shutil

import pytest
import torch
from transformers import AutoConfig, GenerationConfig

from egpo.config.schema import Model
from egpo.local.models.loading import load_policy
from egpo.local.models.packs import Sequences, pack_groups
from tests.local.conftest import CONFIGS
from tests.local.device import DEVICE, MODEL


@pytest.fixture
def copy(model_folder, tmp_path):
    """`copy("gpt2")` is the path of a model folder of the test's own."""
    return lambda shape="qwen3": shutil.copytree(model_folder(shape), tmp_path / shape)


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_every_shape_loads_and_agrees_with_itself(load, shape):
    policy = load(shape)
    assert policy.stop_ids == {2}


def test_every_end_that_the_files_name_is_one(copy):
    """Llama 3 has three, in its generation config alone."""
    folder = copy()
    GenerationConfig(eos_token_id=[5, 6]).save_pretrained(folder)
    assert load_policy(Model(path=str(folder), **MODEL)).stop_ids == {2, 5, 6}


@pytest.mark.parametrize(
    ("shape", "rates"),
    [("gpt2", {"attn_pdrop": 0.5, "embd_pdrop": 0.5, "resid_pdrop": 0.5}), ("llama", {"attention_dropout": 0.5})],
)
def test_dropout_is_off_however_large_the_config_says(copy, shape, rates):
    folder = copy(shape)
    config = AutoConfig.from_pretrained(folder)
    config.update(rates)
    config.save_pretrained(folder)
    policy = load_policy(Model(path=str(folder), **MODEL))
    pack = pack_groups([Sequences([3, 4, 5], [[6, 7, 8]])], DEVICE)
    assert policy.model.training
    assert torch.equal(policy.hidden(pack), policy.hidden(pack))
    # By transformers' own attention too, which reads its rate off the module.
    policy.model.set_attn_implementation("eager")
    tokens = torch.tensor([[3, 4, 5, 6]], device=DEVICE)
    assert torch.equal(policy.model(tokens).logits, policy.model(tokens).logits)


def test_random_weights_are_those_of_the_seed_and_disturb_no_generator(model_folder):
    settings = Model(path=str(model_folder()), **MODEL, init="random")
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, again, other = (load_policy(settings, seed).head_VD for seed in (3, 3, 4))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_logits_are_not_rounded_to_the_weights_precision(load):
    """Or what is recorded while sampling would be the statistics of another distribution than the update's."""
    policy = load(dtype="bfloat16")
    hidden_RD = torch.randn(4, policy.head_VD.shape[1], dtype=torch.bfloat16).to(DEVICE)
    expected = hidden_RD.double() @ policy.head_VD.double().T
    torch.testing.assert_close(policy.logits(hidden_RD).double(), expected, atol=1e-4, rtol=1e-4)
