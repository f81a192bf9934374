"""From the joint projection to heads: the norm of queries and keys (Qwen3), rotary positions, and the split.

N tokens, H heads of queries, K of keys and as many of values, A = H + 2 K of all, d their width, h = d / 2. The tables
of cosines and sines have a row for each position, and both their halves are alike.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from egpo.local.cuda.kernels.head_kernels import join_kernel, split_kernel

# Rows of the partial sums of the norms' gradients.
_PARTS = 528


@dataclass(frozen=True, eq=False)
class Rotation:
    """Tables (positions, d), and each token's row in them."""

    cos: Tensor
    sin: Tensor
    position_N: Tensor


@dataclass(frozen=True, eq=False)
class HeadNorms:
    """Weights (d,) of the norms of a query's and a key's head."""

    query_d: Tensor
    key_d: Tensor
    eps: float


@dataclass(frozen=True)
class HeadShape:
    queries: int
    keys: int
    width: int

    @property
    def total(self) -> int:
        return self.queries + 2 * self.keys

    def constants(self) -> dict[str, int]:
        half = self.width // 2
        blocks = {"BLOCK_A": triton.next_power_of_2(self.total), "BLOCK_h": triton.next_power_of_2(half)}
        return {"QUERIES": self.queries, "KEYS": self.keys, "HALF": half, **blocks}


def split_heads(
    joint_NA: Tensor, shape: HeadShape, rotation: Rotation, norms: HeadNorms | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (N, H, d), keys and values (N, K, d) of the joint projection (N, A * d)."""
    query_d, key_d, eps = (norms.query_d, norms.key_d, norms.eps) if norms else (None, None, 0.0)
    apply: Any = _SplitHeads.apply
    return apply(joint_NA, query_d, key_d, eps, shape, rotation)


class _SplitHeads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, joint_NA: Tensor, query_d: Tensor | None, key_d: Tensor | None, eps: float, shape: HeadShape,
        rotation: Rotation,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        rows = len(joint_NA)
        query, key, value = (
            joint_NA.new_empty(rows, heads, shape.width) for heads in (shape.queries, shape.keys, shape.keys)
        )
        weights = (joint_NA, joint_NA) if query_d is None else (query_d, key_d)
        split_kernel[(rows,)](
            joint_NA, query, key, value, rotation.cos, rotation.sin, rotation.position_N, *weights, eps,
            rotation.position_N, rotation.position_N, rotation.position_N, 0,
            NORMS=query_d is not None, CACHES=False, **shape.constants(),
        )  # fmt: skip
        ctx.save_for_backward(joint_NA, query_d, key_d, rotation.cos, rotation.sin, rotation.position_N)
        ctx.eps, ctx.shape = eps, shape
        return query, key, value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, query_grad: Tensor, key_grad: Tensor, value_grad: Tensor) -> Any:
        joint_NA, query_d, key_d, cos, sin, position_N = ctx.saved_tensors
        rows, norms = len(joint_NA), query_d is not None
        parts = min(rows, _PARTS)
        joint_grad = torch.empty_like(joint_NA)
        weight_parts = torch.empty(parts, 2, ctx.shape.width, device=joint_NA.device)
        weights = (query_d, key_d) if norms else (joint_NA, joint_NA)
        join_kernel[(parts,)](
            query_grad.contiguous(), key_grad.contiguous(), value_grad.contiguous(), joint_NA, joint_grad,
            cos, sin, position_N, *weights, ctx.eps, weight_parts, rows,
            NORMS=norms, num_warps=8, **ctx.shape.constants(),
        )  # fmt: skip
        if not norms:
            return joint_grad, None, None, None, None, None
        query_sum, key_sum = weight_parts.sum(0).to(query_d.dtype)
        return joint_grad, query_sum, key_sum, None, None, None


@dataclass(frozen=True, eq=False)
class CachePlaces:
    """Where the new token of each row goes: `slot` and `place` in it. A row that is not live writes nothing."""

    slot_R: Tensor
    place_R: Tensor
    live_R: Tensor


def split_heads_into(
    cache: tuple[Tensor, Tensor], joint_RA: Tensor, shape: HeadShape, rotation: Rotation, norms: HeadNorms | None,
    places: CachePlaces,
) -> Tensor:  # fmt: skip
    """Queries (R, H, d); keys and values go to their places in the cache, (slots, K, room, d) each."""
    keys, values = cache
    query = joint_RA.new_empty(len(joint_RA), shape.queries, shape.width)
    weights = (norms.query_d, norms.key_d, norms.eps) if norms else (joint_RA, joint_RA, 0.0)
    split_kernel[(len(joint_RA),)](
        joint_RA, query, keys, values, rotation.cos, rotation.sin, rotation.position_N, *weights,
        places.slot_R, places.place_R, places.live_R, keys.shape[2],
        NORMS=norms is not None, CACHES=True, **shape.constants(),
    )  # fmt: skip
    return query
