"""The layers for GPUs compute what the plain ones do, forward and backward. Run by `make test-gpu`."""

import pytest
import torch

from egpo.local.models.packs import Sequences, pack_groups

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

GROUPS = [
    Sequences([5, 6, 7, 8, 9], [[10, 11, 12, 13], [20], [30, 31, 32]]),
    Sequences([50, 61, 72], [[1, 2, 3, 4, 5, 6, 7], [9, 9]]),
    Sequences([40] * 70, [[3] * 90, [4] * 5]),
]
SHAPES = ["llama", "qwen2", "qwen3"]


def hidden_and_gradients(policy):
    """Of a loss that weighs every hidden state differently."""
    pack = pack_groups(GROUPS, policy.device)
    hidden = policy.hidden(pack)
    weight = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(0)).to(hidden)
    (hidden.float() * weight).sum().backward()
    gradients = {name: p.grad.float().cpu() for name, p in policy.model.named_parameters() if p.grad is not None}
    policy.model.zero_grad()
    return hidden.detach().float().cpu(), gradients


def relative_error(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_in_float32_they_equal_those_on_a_cpu(load_on_cpu, load_on_gpu, shape, checkpointing):
    policy = load_on_gpu(shape, gradient_checkpointing=checkpointing)
    assert policy.path == "cuda_layers"
    hidden, gradients = hidden_and_gradients(policy)
    expected_hidden, expected = hidden_and_gradients(load_on_cpu(shape))
    torch.testing.assert_close(hidden, expected_hidden, atol=1e-4, rtol=1e-4)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert relative_error(gradient, expected[name]) < 1e-4, name


@pytest.mark.parametrize("shape", SHAPES)
def test_in_bfloat16_they_are_as_near_to_float32_as_transformers_own(load_on_cpu, load_on_gpu, shape, monkeypatch):
    policy = load_on_gpu(shape, "bfloat16")
    exact = load_on_cpu(shape)
    exact.model.load_state_dict({name: value.float().cpu() for name, value in policy.model.state_dict().items()})
    expected_hidden, expected = hidden_and_gradients(exact)
    hidden, gradients = hidden_and_gradients(policy)
    monkeypatch.setattr("egpo.local.models.policy.why_not_cuda_layers", lambda model: "for once")
    assert policy.path == "transformers"
    plain_hidden, plain = hidden_and_gradients(policy)
    assert relative_error(hidden, expected_hidden) < 1.2 * relative_error(plain_hidden, expected_hidden) + 1e-3
    for name, gradient in gradients.items():
        assert relative_error(gradient, expected[name]) < 1.5 * relative_error(plain[name], expected[name]) + 1e-2, name


def test_prompts_alone_are_sequences_by_themselves(load_on_gpu):
    policy = load_on_gpu("qwen3", "bfloat16")
    alone = [policy.hidden(pack_groups([Sequences(group.prompt)], "cuda")) for group in GROUPS]
    together = policy.hidden(pack_groups([Sequences(group.prompt) for group in GROUPS], "cuda"))
    torch.testing.assert_close(torch.cat(alone), together, atol=2e-2, rtol=2e-2)


def add_shaken_adapters(policy):
    """The same numbers wherever the policy is."""
    pytest.importorskip("peft")
    from egpo.config.schema import Lora
    from egpo.local.models.lora import add_adapters

    add_adapters(policy.model, Lora(rank=4), 0)
    torch.manual_seed(1)
    for name, parameter in sorted(policy.model.named_parameters()):
        if ".lora_" in name:
            size = 0.05 if ".lora_B" in name else 0.5
            parameter.data = (size * torch.randn(parameter.shape)).to(parameter.device)
    return policy


def test_adapters_learn_and_the_weights_beside_them_do_not(load_on_cpu, load_on_gpu):
    policies = [add_shaken_adapters(policy) for policy in (load_on_gpu("qwen3"), load_on_cpu("qwen3"))]
    assert policies[0].path == "cuda_layers"
    (hidden, gradients), (expected_hidden, expected) = map(hidden_and_gradients, policies)
    torch.testing.assert_close(hidden, expected_hidden, atol=1e-3, rtol=1e-3)
    assert gradients.keys() == expected.keys()
    assert all(".lora_" in name for name in gradients)
    for name, gradient in gradients.items():
        assert relative_error(gradient, expected[name]) < 1e-3, name


def test_in_bfloat16_adapters_are_as_near_to_float32_as_pefts_under_autocast(load_on_cpu, load_on_gpu, monkeypatch):
    policy, exact = load_on_gpu("qwen3", "bfloat16"), load_on_cpu("qwen3")
    exact.model.load_state_dict({name: value.float().cpu() for name, value in policy.model.state_dict().items()})
    expected_hidden, expected = hidden_and_gradients(add_shaken_adapters(exact))
    hidden, gradients = hidden_and_gradients(add_shaken_adapters(policy))
    monkeypatch.setattr("egpo.local.models.policy.why_not_cuda_layers", lambda model: "for once")
    with torch.autocast(policy.device.type, torch.bfloat16):
        plain_hidden, plain = hidden_and_gradients(policy)
    assert relative_error(hidden, expected_hidden) < 1.5 * relative_error(plain_hidden, expected_hidden)
    errors = [
        relative_error(*(torch.cat([found[name].flatten() for name in expected]) for found in (by_name, expected)))
        for by_name in (gradients, plain)
    ]
    assert errors[0] < 1.5 * errors[1]


def test_adapters_that_are_off_add_nothing(load_on_gpu):
    from egpo.local.models.lora import adapters_off

    plain, _ = hidden_and_gradients(load_on_gpu("qwen3"))
    policy = add_shaken_adapters(load_on_gpu("qwen3"))
    with torch.no_grad(), adapters_off(policy.model):
        off = policy.hidden(pack_groups(GROUPS, policy.device)).cpu()
    torch.testing.assert_close(off, plain, atol=1e-4, rtol=1e-4)
