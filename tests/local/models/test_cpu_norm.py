"""The norm and its gradient are those of transformers."""

import pytest
import torch
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from egpo.local.models.cpu_operations import rms_norm


def test_the_gradient_is_the_limit_of_differences():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(5, dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, weight: rms_norm(x, weight, 1e-3), (x, weight))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
@pytest.mark.parametrize("shape", [(7, 16), (5, 3, 8)])
def test_values_and_gradients_are_those_of_transformers(shape, dtype, tolerance):
    generator = torch.Generator().manual_seed(1)
    x, grad = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    theirs = Qwen3RMSNorm(shape[-1], eps=1e-6).to(dtype)
    theirs.weight.data += torch.randn(shape[-1], generator=generator).to(dtype)
    results = []
    for norm in (theirs, lambda x: rms_norm(x, theirs.weight, 1e-6)):
        leaf = x.clone().requires_grad_()
        out = norm(leaf)
        results.append((out, *torch.autograd.grad(out, (leaf, theirs.weight), grad)))
    for expected, found in zip(*results, strict=True):
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected, atol=tolerance * float(expected.detach().abs().max()), rtol=0)


def test_a_row_of_zeros_stays_zero():
    assert rms_norm(torch.zeros(2, 4), torch.ones(4), 1e-6).eq(0).all()


def test_without_gradients_it_is_the_same_to_the_bit():
    x, weight = torch.randn(6, 8, generator=torch.Generator().manual_seed(2)), torch.full((8,), 1.5)
    with torch.no_grad():
        found = rms_norm(x, weight, 1e-6)
    assert torch.equal(found, rms_norm(x.requires_grad_(), weight, 1e-6))
