import contextlib
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from egpo.config.schema import Lora, Update
from egpo.errors import InputError
from egpo.local.models.lora import adapter_state, adapters_off, add_adapters, load_adapter_state, merged_state
from egpo.local.models.packs import Sequences, pack_groups
from egpo.local.updates.optimizer import Optimizer
from egpo.local.updates.update import update
from tests.local.device import DEVICE
from tests.local.plain_update import recorded_batch
from tests.local.updates.test_update import ample, settings_of

SHAPES = ("qwen3", "qwen2", "llama", "gpt2")
TOKENS = [5, 9, 200, 31, 7]


def logits(policy):
    """Of a pack, as the engine computes them."""
    with torch.no_grad():
        return policy.hidden(pack_groups([Sequences(TOKENS)], DEVICE)) @ policy.head_VD.T


def adapted(load, shape="qwen3", shaken=True, seed=0, **settings):
    policy = load(shape)
    add_adapters(policy.model, Lora(**{"rank": 2, "alpha": 4.0, **settings}), seed)
    if shaken:
        generator = torch.Generator().manual_seed(1)
        for tensor in adapter_state(policy.model).values():
            tensor += 0.2 * torch.randn(tensor.shape, generator=generator).to(DEVICE)
    return policy


@pytest.mark.parametrize("shape", SHAPES)
def test_new_adapters_change_nothing_and_only_they_learn(load, shape):
    plain, policy = load(shape), adapted(load, shape, shaken=False)
    # Adapted layers are torch's own, plain ones may be ours: sums in another order.
    torch.testing.assert_close(logits(policy), logits(plain), atol=1e-5, rtol=0)
    learning = {name for name, parameter in policy.model.named_parameters() if parameter.requires_grad}
    assert learning == adapter_state(policy.model).keys() != set()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_merged_model_is_a_plain_one_that_computes_the_same(load, shape, tmp_path):
    policy = adapted(load, shape)
    policy.model.save_pretrained(tmp_path, state_dict=merged_state(policy.model))
    merged = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval().to(DEVICE)
    assert merged.state_dict().keys() == load(shape).model.state_dict().keys()
    with torch.no_grad():
        found = merged(torch.tensor([TOKENS], device=DEVICE)).logits[0]
    torch.testing.assert_close(found, logits(policy), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, logits(load(shape)), atol=1e-2)


def test_a_model_without_adapters_is_its_own_merged_state(load):
    model = load().model
    merged, own = merged_state(model), model.state_dict()
    assert merged.keys() == own.keys()
    assert all(torch.equal(merged[name], own[name]) for name in own)


def test_merging_leaves_the_policy_as_it_was(load):
    policy = adapted(load)
    before = logits(policy)
    merged_state(policy.model)
    assert torch.equal(logits(policy), before)


def test_off_is_the_starting_policy_and_on_again_afterwards_even_after_an_error(load):
    plain, policy = logits(load()), adapted(load)
    before = logits(policy)
    off = []
    with contextlib.suppress(KeyError), adapters_off(policy.model):
        off.append(logits(policy))
        raise KeyError
    torch.testing.assert_close(off[0], plain, atol=1e-5, rtol=0)
    assert torch.equal(logits(policy), before)
    assert all(tensor.requires_grad for name, tensor in policy.model.named_parameters() if "lora_" in name)


def test_the_same_seed_gives_the_same_adapters_and_touches_no_other_draw(load):
    load()  # what makes the folder draws, too
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = adapted(load, shaken=False, seed=1)
    state = torch.random.get_rng_state()
    two, three = adapted(load, shaken=False, seed=1), adapted(load, shaken=False, seed=2)
    torch.random.set_rng_state(state)
    assert torch.equal(torch.rand(3), expected)
    states = [torch.cat([tensor.flatten() for tensor in adapter_state(p.model).values()]) for p in (one, two, three)]
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2])


def test_adapters_are_float32_beside_bfloat16_weights(load):
    policy = load(dtype="bfloat16")
    add_adapters(policy.model, Lora(rank=2), seed=0)
    assert {tensor.dtype for tensor in adapter_state(policy.model).values()} == {torch.float32}
    assert logits(policy).dtype == torch.bfloat16
    assert {tensor.dtype for tensor in merged_state(policy.model).values()} == {torch.bfloat16}


def test_named_layers_alone_are_adapted(load):
    policy = adapted(load, layers=("q_proj", "v_proj"))
    assert {name.split(".")[-4] for name in adapter_state(policy.model)} == {"q_proj", "v_proj"}


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        (("q_prj",), "no layer `q_prj`; did you mean `q_proj`"),
        (("q_proj", "q"), "no layer `q`"),
        (("lm_head",), "`lm_head` is an embedding"),
        (("embed_tokens",), "`embed_tokens` is an embedding"),
    ],
)
def test_layers_that_cannot_be_adapted_are_refused(load, layers, message):
    with pytest.raises(InputError, match=message):
        adapted(load, layers=layers)


def test_the_head_is_left_alone(load):
    assert not any("lm_head" in name for shape in SHAPES for name in adapter_state(adapted(load, shape).model))


def test_without_peft_the_error_says_how_to_get_it(load, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setattr("egpo.local.models.lora.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"model.lora: LoRA adapters need the package peft; pip install peft"):
        add_adapters(load().model, Lora(), seed=0)


def test_an_update_moves_the_adapters_alone_and_a_resume_restores_them_to_the_bit(load):
    policy, other = adapted(load), adapted(load)
    batch = recorded_batch(load())
    before = {name: parameter.detach().clone() for name, parameter in policy.model.named_parameters()}
    optimizer = Optimizer(policy.model.named_parameters(), Update(lr=1e-3))
    update(policy, optimizer, batch.rollouts, batch.advantage_B, settings_of(lr=1e-3), ample(), 0)
    for name, parameter in policy.model.named_parameters():
        assert torch.equal(parameter, before[name]) != ("lora_" in name)
    load_adapter_state(other.model, {name: tensor.clone() for name, tensor in adapter_state(policy.model).items()})
    assert torch.equal(logits(other), logits(policy))
    restored = Optimizer(other.model.named_parameters(), Update(lr=1e-3))
    restored.load_state(optimizer.state())


def test_the_gradient_of_adapters_is_that_of_the_merged_matrix(load):
    """W + s B A: the gradient of B is s G A^T, where G is the merged matrix's own."""
    policy = adapted(load, layers=("o_proj",), alpha=6.0)
    pack = pack_groups([Sequences(TOKENS)], DEVICE)
    policy.hidden(pack).square().sum().backward()
    layer = policy.model.model.layers[0].self_attn.o_proj
    lora_B, lora_A = layer.lora_B["default"].weight, layer.lora_A["default"].weight
    plain = load()
    plain.model.load_state_dict(merged_state(policy.model))
    plain.hidden(pack).square().sum().backward()
    full = plain.model.model.layers[0].self_attn.o_proj.weight.grad
    torch.testing.assert_close(lora_B.grad, 3.0 * full @ lora_A.T, atol=1e-4, rtol=1e-4)


def test_adapters_of_another_shape_are_refused(load):
    with pytest.raises(InputError, match="adapters do not belong to this model"):
        load_adapter_state(adapted(load).model, adapter_state(adapted(load, rank=3).model))
