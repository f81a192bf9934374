import pytest
import torch
from safetensors.torch import load, save

from egpo.config.schema import Update
from egpo.errors import InputError
from egpo.local.updates.optimizer import Optimizer


def network(dtype=torch.float32, seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 3)).to(dtype)


def backward(net, seed, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 6, generator=generator).to(next(net.parameters()).dtype)
    (net(x).float().square().mean() * scale).backward()


def weights(net):
    return {name: p.detach().clone() for name, p in net.named_parameters()}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


SETTINGS = Update(lr=1e-2, weight_decay=0.1, betas=(0.8, 0.95), max_grad_norm=0.3)


def test_it_is_torchs_adamw_with_decay_on_matrices_only():
    ours, theirs = network(), network()
    named = dict(theirs.named_parameters())
    decay = {True: [p for p in named.values() if p.ndim == 2], False: [p for p in named.values() if p.ndim == 1]}
    adam = torch.optim.AdamW(
        [{"params": decay[True], "weight_decay": 0.1}, {"params": decay[False], "weight_decay": 0.0}],
        betas=(0.8, 0.95),
        foreach=False,
    )
    optimizer = Optimizer(ours.named_parameters(), SETTINGS)
    for step in range(5):
        backward(ours, step, scale=10)
        backward(theirs, step, scale=10)
        norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.3)
        for group in adam.param_groups:
            group["lr"] = 1e-2 / (step + 1)
        adam.step()
        adam.zero_grad()
        assert optimizer.step(1e-2 / (step + 1)) == pytest.approx(float(norm), rel=1e-6)
        assert norm > 0.3  # it was clipped
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, named[name], atol=1e-6, rtol=0)


def test_a_short_gradient_is_left_as_it_is():
    net = network()
    optimizer = Optimizer(net.named_parameters(), Update(lr=1.0, max_grad_norm=1e6, betas=(0.0, 0.0)))
    backward(net, 0)
    expected = torch.nn.utils.get_total_norm([p.grad for p in net.parameters()])
    assert optimizer.step(0.0) == pytest.approx(float(expected))
    assert all(p.grad is None for p in net.parameters())


def test_only_what_learns_is_moved():
    net = network()
    net[0].requires_grad_(False)
    before = weights(net)
    optimizer = Optimizer(net.named_parameters(), SETTINGS)
    backward(net, 0)
    optimizer.step(1e-2)
    moved = {name for name, value in weights(net).items() if not torch.equal(value, before[name])}
    assert moved == {"1.weight", "1.bias", "2.weight", "2.bias"}
    assert not any(name.endswith(("/0.weight", "/0.bias")) for name in optimizer.state())


def test_masters_keep_steps_that_bfloat16_would_lose():
    """Just below 1 bfloat16 moves by 2^-8 at least: a hundred steps of 1e-4 are lost one by one."""
    net = torch.nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    net.weight.data.fill_(1.0)
    alone = torch.nn.Parameter(net.weight.detach().clone())
    optimizer = Optimizer(net.named_parameters(), Update(lr=1e-4))
    plain = torch.optim.AdamW([alone], lr=1e-4, weight_decay=0.0)
    for _ in range(100):
        net.weight.grad, alone.grad = None, torch.ones_like(alone)
        (net.weight.sum()).backward()
        optimizer.step(1e-4)
        plain.step()
    assert alone.item() == 1.0
    assert optimizer.state()["master/weight"].item() == pytest.approx(0.99, abs=1e-5)
    assert net.weight.item() == pytest.approx(0.99, abs=2**-8)
    assert net.weight.dtype == torch.bfloat16


def test_gradients_of_bfloat16_weights_are_summed_in_float32():
    net = torch.nn.Linear(1, 1, bias=False).to(torch.bfloat16)
    optimizer = Optimizer(net.named_parameters(), Update(max_grad_norm=1e6))
    for part in [256.0] + [1.0] * 10:  # in bfloat16 256 + 1 is 256
        (net.weight.sum() * part).backward()
        assert net.weight.grad is None  # moved on at once
    assert optimizer.step(0.0) == 266.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_optimizer_goes_on_to_the_bit(dtype):
    straight, resumed = network(dtype), network(dtype)
    optimizer = Optimizer(straight.named_parameters(), SETTINGS)
    for step in range(3):
        backward(straight, step)
        optimizer.step(1e-3)
    held = save({name: tensor.contiguous() for name, tensor in optimizer.state().items()})
    resumed.load_state_dict(straight.state_dict())
    other = Optimizer(resumed.named_parameters(), SETTINGS)
    other.load_state(load(held))
    for step in range(3, 6):
        for net, each in ((straight, optimizer), (resumed, other)):
            backward(net, step)
            each.step(1e-3)
    assert_equal(weights(resumed), weights(straight))
    assert_equal(other.state(), optimizer.state())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_from_before_the_first_step_is_restored_too(dtype):
    net = network(dtype)
    state = Optimizer(net.named_parameters(), SETTINGS).state()
    assert bool(state) == (dtype == torch.bfloat16)
    Optimizer(net.named_parameters(), SETTINGS).load_state(state)


def test_weights_are_rounded_from_restored_masters():
    net, other = network(torch.bfloat16, seed=0), network(torch.bfloat16, seed=1)
    Optimizer(other.named_parameters(), SETTINGS).load_state(Optimizer(net.named_parameters(), SETTINGS).state())
    assert_equal(weights(other), weights(net))


@pytest.mark.parametrize("spoil", ["lose", "add", "reshape"])
def test_a_state_of_another_model_is_refused(spoil):
    net = network()
    optimizer = Optimizer(net.named_parameters(), SETTINGS)
    backward(net, 0)
    optimizer.step(1e-3)
    state, before = optimizer.state(), weights(net)
    if spoil == "lose":
        del state["exp_avg/0.weight"]
    else:
        state["exp_avg/0.weight" if spoil == "reshape" else "exp_avg/9.weight"] = torch.zeros(2)
    with pytest.raises(InputError, match=r"optimizer state: 1 tensors do not belong to this model: exp_avg/"):
        optimizer.load_state(state)
    assert_equal(weights(net), before)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(value):
    net = network()
    optimizer = Optimizer(net.named_parameters(), SETTINGS)
    backward(net, 0)
    optimizer.step(1e-3)
    before, state = weights(net), {name: tensor.clone() for name, tensor in optimizer.state().items()}
    backward(net, 1)
    net[0].weight.grad[0, 0] = value
    assert not torch.tensor(optimizer.step(1e-3)).isfinite()
    assert_equal(weights(net), before)
    assert_equal(optimizer.state(), state)
    assert all(p.grad is None for p in net.parameters())


def test_forgotten_gradients_are_gone_from_masters_too():
    net = network(torch.bfloat16)
    optimizer = Optimizer(net.named_parameters(), SETTINGS)
    backward(net, 0)
    optimizer.discard_gradients()
    assert optimizer.step(1e-3) == 0
