"""Sums within groups, without a loop over groups. B rows, P groups, rows in any order, groups of any size."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Groups:
    """Which group each row is in, numbered 0 to P - 1."""

    index_B: Tensor
    size_P: Tensor

    @classmethod
    def of(cls, group_B: Tensor) -> "Groups":
        _, index_B, size_P = torch.unique(group_B, return_inverse=True, return_counts=True)
        return cls(index_B, size_P)

    def sum(self, value_B: Tensor) -> Tensor:
        return value_B.new_zeros(len(self.size_P)).index_add_(0, self.index_B, value_B)

    def max(self, value_B: Tensor) -> Tensor:
        lowest_P = value_B.new_full((len(self.size_P),), -torch.inf)
        return lowest_P.scatter_reduce_(0, self.index_B, value_B, "amax")

    def min(self, value_B: Tensor) -> Tensor:
        return -self.max(-value_B)

    def mean_where(self, known_B: Tensor, value_B: Tensor) -> Tensor:
        """The mean over a group's known rows; NaN for a group that has none."""
        return self.sum(value_B.masked_fill(~known_B, 0.0)) / self.sum(known_B.to(value_B.dtype))

    def rows(self, value_P: Tensor) -> Tensor:
        """Each group's value, at each of its rows."""
        return value_P[self.index_B]
