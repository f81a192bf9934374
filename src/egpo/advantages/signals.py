"""The inputs of an advantage estimator, and sums within groups.

Tensor suffixes: B rows (one per response, in any order), P groups.

torch is imported inside the functions, so that recipes and their estimators' settings can be checked without it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from egpo.errors import InputError, warn_once

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Metrics = dict[str, float]
"""Metrics of a batch by the names in docs/metrics.md."""

SAME_ROUNDINGS = 8
"""Rewards that differ by at most this many rounding errors count as equal, such as one sum in two orders."""
LOW_COVERAGE = 0.05
"""Fraction of responses with the measured segment below which a warning is given."""


@dataclass(frozen=True, eq=False)
class Signals:
    """The inputs of an estimator, one value per response. Lists and numpy arrays are converted to tensors.

    `group_B`: ids, integers or strings; rows with the same id are responses to the same problem.
    `entropy_B`: the mean Shannon entropy of the segment that the estimator uses, NaN if the segment is empty.
    `nll_B`: the mean of -log p of the segment's sampled tokens. `correct_B`: whether the response is fully correct.
    """

    reward_B: Tensor
    group_B: Tensor
    entropy_B: Tensor | None = None
    correct_B: Tensor | None = None
    nll_B: Tensor | None = None

    def __post_init__(self) -> None:
        reward_B = _finite_rewards(_row("reward_B", self.reward_B))
        device = reward_B.device
        converted = {
            "reward_B": reward_B,
            "group_B": _group_ids(self.group_B).to(device),
            "entropy_B": _optional_row("entropy_B", self.entropy_B, device),
            "correct_B": _right_or_wrong(_optional_row("correct_B", self.correct_B, device)),
            "nll_B": _optional_row("nll_B", self.nll_B, device),
        }
        for name, value in converted.items():
            if value is not None and value.shape != reward_B.shape:
                raise InputError(
                    f"{name} has shape {tuple(value.shape)} and reward_B {tuple(reward_B.shape)}",
                    where="Signals",
                    fix="give one value per response to each",
                )
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Groups:
    """The group of each row, numbered 0 to P - 1, and the group sizes. Sums need no loop over groups."""

    index_B: Tensor
    size_P: Tensor

    @classmethod
    def of(cls, group_B: Tensor) -> Groups:
        """Number the groups by their ids."""
        import torch

        _, index_B, size_P = torch.unique(group_B, return_inverse=True, return_counts=True)
        return cls(index_B, size_P)

    def sum(self, value_B: Tensor) -> Tensor:
        return value_B.new_zeros(len(self.size_P)).index_add_(0, self.index_B, value_B)

    def max(self, value_B: Tensor) -> Tensor:
        lowest_P = value_B.new_full((len(self.size_P),), float("-inf"))
        return lowest_P.scatter_reduce_(0, self.index_B, value_B, "amax")

    def min(self, value_B: Tensor) -> Tensor:
        return -self.max(-value_B)

    def mean_where(self, known_B: Tensor, value_B: Tensor) -> Tensor:
        """Return each group's mean over the rows that `known_B` marks; NaN for a group without such rows."""
        return self.sum(value_B.masked_fill(~known_B, 0.0)) / self.sum(known_B.to(value_B.dtype))

    def rows(self, value_P: Tensor) -> Tensor:
        """Return each group's value at each of its rows."""
        return value_P[self.index_B]

    def equal(self, value_B: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a mask of the groups whose values are equal, but for a few rounding errors of `dtype`."""
        import torch

        highest_P, lowest_P = self.max(value_B), self.min(value_B)
        largest_P = torch.maximum(highest_P.abs(), lowest_P.abs())
        return highest_P - lowest_P <= SAME_ROUNDINGS * torch.finfo(dtype).eps * largest_P.clamp(min=1.0)

    def sorted(self, value_B: Tensor) -> Tensor:
        """Return the numbers of the rows, group after group, in the order of their values within each group."""
        by_value_B = value_B.argsort(stable=True)
        return by_value_B[self.index_B[by_value_B].argsort(stable=True)]

    def first_P(self) -> Tensor:
        """Return the place of each group's first row in the order of `sorted`."""
        return self.size_P.cumsum(0) - self.size_P


def measured(signals: Signals, estimator: str, measure: str = "entropy") -> Tensor:
    """Return each row's entropy or nll (float64); NaN if the segment is empty or the value is not finite."""
    value_B = signals.entropy_B if measure == "entropy" else signals.nll_B
    if value_B is None:
        raise InputError(
            f"`{measure}_B` is missing",
            where=f"estimator `{estimator}`",
            fix=f"give Signals({measure}_B=...), the mean {measure} over the segment of each response",
        )
    value_B = value_B.double().masked_fill(~value_B.isfinite(), float("nan"))
    _warn_of_low_coverage(value_B, estimator)
    return value_B


def right(signals: Signals, estimator: str, why: str = "") -> Tensor:
    """Return the mask of the right responses. Raise InputError if it is missing; `why` names the setting it is for."""
    if signals.correct_B is None:
        raise InputError(
            f"`correct_B` is missing{why}",
            where=f"estimator `{estimator}`",
            fix="give Signals(correct_B=...), whether each response is fully correct",
        )
    return signals.correct_B


def describe(value_B: Tensor, groups: Groups, measure: str, metrics: Metrics) -> None:
    """Add to `metrics` the coverage and the mean of the measure, over responses and over groups, if there is data."""
    known_B = value_B.isfinite()
    if len(value_B):
        metrics["egpo/segment/coverage"] = float(known_B.double().mean())
    if bool(known_B.any()):
        mean_P = groups.mean_where(known_B, value_B)
        metrics[f"egpo/{measure}/seq_mean"] = float(value_B[known_B].mean())
        metrics[f"egpo/{measure}/group_mean"] = float(mean_P[mean_P.isfinite()].mean())


def describe_weights(weight_B: Tensor, metrics: Metrics) -> None:
    """Add to `metrics` the factors on the advantages, over all rows, if there are any."""
    if len(weight_B):
        metrics["egpo/weight/mean"] = float(weight_B.mean())
        metrics["egpo/weight/std"] = float(weight_B.std(correction=0))
        metrics["egpo/weight/min"] = float(weight_B.min())
        metrics["egpo/weight/max"] = float(weight_B.max())


def _warn_of_low_coverage(value_B: Tensor, estimator: str) -> None:
    """Warn if hardly any response has the segment: all other rows get GRPO's advantage, which is easily missed."""
    coverage = float(value_B.isfinite().double().mean()) if len(value_B) else 1.0
    if coverage < LOW_COVERAGE:
        warn_once(
            f"coverage of {estimator}",
            f"estimator `{estimator}`: {coverage:.0%} of {len(value_B)} responses have the segment it measures, "
            "so it acts as grpo; check the tag pair, and tell segment_masks which prompts open the tag (opened_B)",
        )


def _row(name: str, value: Any) -> Tensor:
    import torch

    try:
        row = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} is not a list of numbers: {error}", where="Signals") from error
    if row.is_complex():
        raise InputError(f"{name} contains complex numbers", where="Signals", fix="give real numbers")
    if row.ndim != 1:
        raise InputError(f"{name} has {row.ndim} dimensions", where="Signals", fix="give one value per response")
    return row


def _optional_row(name: str, value: Any, device: torch.device) -> Tensor | None:
    return None if value is None else _row(name, value).to(device)


def _finite_rewards(reward_B: Tensor) -> Tensor:
    """Return rewards as float32 (float64 stays). Raise InputError if a reward is not finite."""
    import torch

    if reward_B.dtype != torch.float64:
        reward_B = reward_B.float()
    bad_B = ~reward_B.isfinite()
    if bool(bad_B.any()):
        row = int(bad_B.nonzero()[0])
        raise InputError(
            f"{int(bad_B.sum())} of {len(reward_B)} rewards are not finite; row {row} is {float(reward_B[row])}",
            where="Signals",
            fix="fix the reward function, or leave out responses whose check failed",
        )
    return reward_B


def _right_or_wrong(correct_B: Tensor | None) -> Tensor | None:
    """Return correctness as booleans. Raise InputError for a value other than 0 and 1, such as a partial score."""
    if correct_B is None:
        return None
    if not bool(((correct_B == 0) | (correct_B == 1)).all()):
        raise InputError(
            "correct_B has values other than 0 and 1",
            where="Signals",
            fix="give 1 for a fully correct response, else 0",
        )
    return correct_B.bool()


def _group_ids(group: Any) -> Tensor:
    """Return integer ids as they are, and number any other hashable ids (verl's uids are an array of strings)."""
    import numpy as np
    import torch

    if isinstance(group, np.ndarray) and group.dtype.kind in "iub":
        group = torch.as_tensor(np.ascontiguousarray(group))
    ids_B = group if isinstance(group, torch.Tensor) else _numbered(group)
    if ids_B.is_floating_point() or ids_B.is_complex():
        raise InputError(f"group_B has dtype {ids_B.dtype}", where="Signals", fix="give integer or string ids")
    return ids_B.detach().long()


def _numbered(group: Iterable[Hashable]) -> Tensor:
    """Number ids of any kind in order of appearance; a 0-d tensor or numpy scalar counts as its value."""
    import numpy as np
    import torch

    number_of: dict[Hashable, int] = {}
    names = [name.item() if isinstance(name, torch.Tensor | np.generic) else name for name in group]
    if any(isinstance(name, float) for name in names):
        raise InputError("group_B has floating-point ids", where="Signals", fix="give integer or string ids")
    try:
        return torch.tensor([number_of.setdefault(name, len(number_of)) for name in names], dtype=torch.long)
    except TypeError as error:
        raise InputError(f"group_B has ids that are not hashable: {error}", where="Signals") from error
