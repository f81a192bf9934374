"""The gated activation of an MLP: silu(gate) * up, with both gradients in one pass."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu

from egpo.native.library import address, kernels, suits


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    if not suits(gate, up):
        return silu(gate) * up
    out: Tensor = _NativeSwiglu.apply(gate, up)  # type: ignore[no-untyped-call]
    return out


class _NativeSwiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.contiguous(), up.contiguous()
        out = torch.empty_like(gate)
        kernels().swiglu(*map(address, (gate, up, out)), gate.numel())
        ctx.save_for_backward(gate, up)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        gate, up = ctx.saved_tensors
        grad, gate_grad, up_grad = grad.contiguous(), torch.empty_like(gate), torch.empty_like(up)
        kernels().swiglu_back(*map(address, (gate, up, grad, gate_grad, up_grad)), gate.numel())
        return gate_grad, up_grad
