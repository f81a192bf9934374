"""The chunked statistics equal full logits and autograd, in value and gradient."""

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egpo.errors import InputError
from egpo.token_stats import chunked, token_stats
from egpo.token_stats.chunked import CHUNK_BYTES

CUDA = pytest.param(
    "cuda", marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
)
DEVICES = ["cpu", CUDA]


def naive(hidden, weight, targets, temperature):
    logp = ((hidden @ weight.T).float() / temperature).log_softmax(-1)
    entropy = torch.distributions.Categorical(logits=logp.detach()).entropy()
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1), entropy


def inputs(num_tokens, vocabulary, width, dtype=torch.float32, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_tokens, width, generator=generator).to(device, dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator).to(device, dtype).requires_grad_()
    targets = torch.randint(vocabulary, (num_tokens,), generator=generator).to(device)
    upstream = torch.randn(num_tokens, generator=generator).to(device)
    return hidden, weight, targets, upstream


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60)
@given(
    num_tokens=st.integers(1, 20),
    vocabulary=st.integers(1, 60),
    width=st.integers(1, 12),
    words=st.integers(1, 70),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.7]),
    seed=st.integers(0, 1000),
)
def test_equal_to_full_logits_in_value_and_gradient(device, num_tokens, vocabulary, width, words, temperature, seed):
    hidden, weight, targets, upstream = inputs(num_tokens, vocabulary, width, device=device, seed=seed)
    logp, entropy = token_stats(hidden, weight, targets, temperature, chunk_bytes=4 * num_tokens * words)
    expected_logp, expected_entropy = naive(hidden, weight, targets, temperature)
    torch.testing.assert_close(logp, expected_logp, rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(entropy, expected_entropy, rtol=1e-5, atol=2e-5)
    gradients = torch.autograd.grad((logp * upstream).sum(), (hidden, weight))
    expected = torch.autograd.grad((expected_logp * upstream).sum(), (hidden, weight))
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-4)


def test_gradient_by_finite_differences():
    hidden, weight, targets, _ = inputs(5, 11, 4, torch.float64)
    assert torch.autograd.gradcheck(
        lambda h, w: token_stats(h, w, targets, 0.7, chunk_bytes=5 * 4 * 3)[0], (hidden, weight)
    )


def with_gradient(hidden, weight, targets, temperature, chunk_bytes=None):
    return token_stats(hidden, weight, targets, temperature, chunk_bytes=chunk_bytes, entropy_gradient=True)


def naive_with_gradient(hidden, weight, targets, temperature):
    logp = ((hidden @ weight.T) / temperature).log_softmax(-1)
    return logp.gather(-1, targets.unsqueeze(-1)).squeeze(-1), -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60)
@given(
    num_tokens=st.integers(1, 20),
    vocabulary=st.integers(1, 60),
    words=st.integers(1, 70),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    seed=st.integers(0, 1000),
)
def test_the_gradient_of_the_entropy_is_that_of_autograd(device, num_tokens, vocabulary, words, temperature, seed):
    hidden, weight, targets, upstream = inputs(num_tokens, vocabulary, 6, device=device, seed=seed)
    found = with_gradient(hidden, weight, targets, temperature, 4 * num_tokens * words)
    expected = naive_with_gradient(hidden, weight, targets, temperature)
    for use_logp in (1.0, 0.0):  # the entropy beside logp, and alone
        gradients, plain = (
            torch.autograd.grad((use_logp * logp + upstream * entropy).sum(), (hidden, weight), retain_graph=True)
            for logp, entropy in (found, expected)
        )
        torch.testing.assert_close(gradients, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("words", [3, 100])
def test_the_gradient_of_the_entropy_by_finite_differences(words):
    hidden, weight, targets, _ = inputs(5, 11, 4, torch.float64)
    assert torch.autograd.gradcheck(
        lambda h, w: with_gradient(h, w, targets, 0.7, chunk_bytes=5 * 4 * words), (hidden, weight)
    )


@pytest.mark.parametrize("device", DEVICES)
def test_without_an_entropy_term_nothing_changes_to_the_bit(device):
    hidden, weight, targets, upstream = inputs(40, 500, 16, device=device)
    plain = token_stats(hidden, weight, targets, 0.7)
    other = with_gradient(hidden, weight, targets, 0.7)
    assert torch.equal(plain[0], other[0])
    assert torch.equal(plain[1], other[1])
    assert other[1].requires_grad
    one, another = (torch.autograd.grad((logp * upstream).sum(), (hidden, weight)) for logp, _ in (plain, other))
    torch.testing.assert_close(one, another, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [1e-6, 50.0, 500.0])
def test_the_gradient_of_the_entropy_is_finite_for_extreme_logits(device, scale):
    hidden, weight, targets, upstream = inputs(16, 100, 8, device=device)
    logp, entropy = with_gradient(hidden * scale, weight, targets, 1.0, 4 * 16 * 7)
    gradients = torch.autograd.grad((logp + upstream * entropy).sum(), (hidden, weight))
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gradient_of_the_entropy_in_half_precision(dtype, device):
    hidden, weight, targets, upstream = inputs(64, 500, 32, dtype, device)
    exact_hidden, exact_weight = (t.detach().float().requires_grad_() for t in (hidden, weight))
    (with_gradient(hidden, weight, targets, 1.0, 4 * 64 * 100)[1] * upstream).sum().backward()
    (naive_with_gradient(exact_hidden, exact_weight, targets, 1.0)[1] * upstream).sum().backward()
    for ours, exact in ((hidden.grad, exact_hidden.grad), (weight.grad, exact_weight.grad)):
        assert ours.dtype == dtype
        assert float((ours.float() - exact).norm() / exact.norm()) < 1e-2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_are_summed_in_float32(dtype, device):
    hidden, weight, targets, upstream = inputs(64, 500, 32, dtype, device)
    logp, entropy = token_stats(hidden, weight, targets, 1.0, chunk_bytes=4 * 64 * 100)
    exact_hidden, exact_weight = (t.detach().float().requires_grad_() for t in (hidden, weight))
    exact_logp, exact_entropy = naive(exact_hidden, exact_weight, targets, 1.0)
    assert logp.dtype == entropy.dtype == torch.float32
    torch.testing.assert_close(logp, exact_logp, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(entropy, exact_entropy, rtol=1e-4, atol=1e-4)
    (logp * upstream).sum().backward()
    (exact_logp * upstream).sum().backward()
    for ours, exact in ((hidden.grad, exact_hidden.grad), (weight.grad, exact_weight.grad)):
        assert ours.dtype == dtype
        assert float((ours.float() - exact).norm() / exact.norm()) < 1e-2


def test_leading_dimensions_are_kept():
    hidden, weight, targets, _ = inputs(12, 30, 8)
    flat = token_stats(hidden, weight, targets, 1.0)
    shaped = token_stats(hidden.view(3, 4, 8), weight, targets.view(3, 4), 1.0)
    for one, other in zip(flat, shaped, strict=True):
        assert other.shape == (3, 4)
        assert torch.equal(one, other.flatten())


def test_entropy_is_detached_and_only_what_asks_gets_a_gradient():
    hidden, weight, targets, _ = inputs(6, 20, 4)
    logp, entropy = token_stats(hidden, weight.detach(), targets, 1.0)
    assert not entropy.requires_grad
    logp.sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None
    frozen, _ = token_stats(hidden.detach(), weight, targets, 1.0)
    frozen.sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("scale", [1e-6, 1.0, 50.0, 500.0])
def test_extreme_logits_stay_finite(scale):
    hidden, weight, targets, _ = inputs(16, 100, 8)
    logp, entropy = token_stats(hidden * scale, weight, targets, 1.0, chunk_bytes=4 * 16 * 7)
    assert torch.isfinite(logp).all()
    assert (logp <= 1e-5).all()
    assert ((entropy >= -1e-4) & (entropy <= torch.log(torch.tensor(100.0)) + 1e-4)).all()


def test_no_tokens_at_all():
    logp, entropy = token_stats(torch.zeros(0, 4), torch.zeros(9, 4), torch.zeros(0, dtype=torch.long), 1.0)
    assert logp.shape == entropy.shape == (0,)


def spied(monkeypatch, name):
    """The shapes of the logits that one of the two passes is given."""
    original, shapes = getattr(chunked, name), []

    def spy(logit_NC, *rest):
        shapes.append(tuple(logit_NC.shape))
        return original(logit_NC, *rest)

    monkeypatch.setattr(chunked, name, spy)
    return shapes


def test_no_more_than_one_chunk_of_logits_is_ever_held(monkeypatch):
    forward, backward = spied(monkeypatch, "slice_stats"), spied(monkeypatch, "logp_gradient")
    hidden, weight, targets, _ = inputs(10, 1000, 4)
    token_stats(hidden, weight, targets, 1.0, chunk_bytes=4 * 10 * 50)[0].sum().backward()
    assert forward == backward == [(10, 50)] * 20


def test_the_default_chunk_bounds_a_large_vocabulary(monkeypatch):
    monkeypatch.setitem(CHUNK_BYTES, "cpu", 4 * 10 * 100)
    shapes = spied(monkeypatch, "slice_stats")
    hidden, weight, targets, _ = inputs(10, 1000, 4)
    token_stats(hidden, weight, targets)
    assert shapes == [(10, 100)] * 10


def test_autocast_does_not_round_the_logits():
    hidden, weight, targets, _ = inputs(64, 1000, 512)
    plain = token_stats(hidden, weight, targets, 1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = token_stats(hidden, weight, targets, 1.0)
    assert under[1].dtype == torch.float32
    assert torch.equal(plain[0], under[0])
    assert torch.equal(plain[1], under[1])


def test_there_is_no_second_derivative_to_get_wrong():
    hidden, weight, targets, _ = inputs(5, 11, 4)
    (gradient,) = torch.autograd.grad(token_stats(hidden, weight, targets)[0].square().sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_the_gradient_of_half_precision_states_is_summed_in_float32():
    hidden, weight, targets, _ = inputs(16, 4096, 8, torch.bfloat16)
    exact_hidden, exact_weight = (t.detach().float().requires_grad_() for t in (hidden, weight))
    token_stats(hidden, weight, targets, chunk_bytes=4 * 16)[0].sum().backward()
    naive(exact_hidden, exact_weight, targets, 1.0)[0].sum().backward()
    assert float((hidden.grad.float() - exact_hidden.grad).norm() / exact_hidden.grad.norm()) < 4e-3


def test_targets_of_any_integer_kind_and_shape():
    hidden, weight, targets, _ = inputs(6, 20, 4)
    whole = token_stats(hidden, weight, targets)[0]
    assert torch.equal(token_stats(hidden, weight, targets.int())[0], whole)
    assert token_stats(hidden[0], weight, targets[0])[0].shape == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"targets": torch.full((6,), 20)}, r"token ids must be in \[0, 20\)"),
        ({"targets": torch.full((6,), -100)}, "targets range from -100"),
        ({"targets": torch.zeros(5, dtype=torch.long)}, "the shapes must be"),
        ({"targets": torch.zeros(6)}, "give token ids"),
        ({"head_weight": torch.zeros(0, 4)}, "the shapes must be"),
        ({"head_weight": torch.zeros(20, 5)}, "the shapes must be"),
        ({"head_weight": torch.zeros(20, 4, dtype=torch.bfloat16)}, "hidden is torch.float32 and head_weight"),
    ],
)
def test_bad_input_is_named(change, message):
    hidden, weight, targets, _ = inputs(6, 20, 4)
    arguments = {"hidden": hidden, "head_weight": weight, "targets": targets, "temperature": 1.0} | change
    with pytest.raises(InputError, match=message):
        token_stats(**arguments)


INTERPRETED = """
import torch
from egpo.token_stats.chunked import Upstream, stats_gradient
from egpo.token_stats.kernels import fused_logp_gradient, fused_stats_gradient

torch.manual_seed(0)
for tokens, words, t in ((5, 37, 0.7), (3, 5000, 1.3), (1, 1, 1.0)):
    logit = 3 * torch.randn(tokens, words)
    if words > 1:
        logit[0, 0] = -torch.inf
    logp = (logit / t).log_softmax(-1)
    entropy = -(logp.exp() * logp.masked_fill(logp == -torch.inf, 0.0)).sum(-1)
    lse, target = (logit / t).logsumexp(-1), torch.arange(tokens) * 7 % (words + 2) - 1
    g, h = torch.randn(tokens), torch.randn(tokens)
    exact = Upstream(*(each.double() for each in (lse, entropy, g, h)))
    expected = stats_gradient(logit.double(), exact, target, t, torch.float64)
    found = fused_stats_gradient(logit.clone(), lse, entropy, g / t, h / t, target, t, torch.float32)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-6)
    off = fused_stats_gradient(logit.clone(), lse, entropy, g / t, 0 * h, target, t, torch.float32)
    assert torch.equal(off, fused_logp_gradient(logit.clone(), lse, g / t, target, t, torch.float32))
"""


@pytest.mark.verl
def test_the_triton_kernel_of_the_entropy_is_right_where_there_is_no_gpu():
    """By Triton's interpreter. Triton is part of verl's environment; on a GPU the tests above run the kernel itself."""
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
