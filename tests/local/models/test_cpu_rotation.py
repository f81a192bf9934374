"""Rotations are those of transformers, and turn back."""

import torch
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from egpo.local.models.cpu_operations import rotate


def angles(num_tokens, width, dtype=torch.float32):
    angle = torch.rand(num_tokens, width // 2, generator=torch.Generator().manual_seed(0), dtype=dtype) * 6
    return torch.cat([angle, angle], dim=-1).cos(), torch.cat([angle, angle], dim=-1).sin()


def test_values_are_those_of_transformers():
    x = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(1))
    cos, sin = angles(5, 8)
    expected, _ = apply_rotary_pos_emb(x, x, cos, sin, unsqueeze_dim=1)
    torch.testing.assert_close(rotate(x, cos, sin), expected)


def test_turning_back_gives_what_was_there():
    x = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(1))
    cos, sin = angles(5, 8)
    torch.testing.assert_close(rotate(rotate(x, cos, sin), cos, -sin), x)


def test_the_gradient_is_the_limit_of_differences():
    x = torch.randn(4, 2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotate(x, *angles(4, 6, torch.float64)), (x,))
