"""What an estimator sees of a batch: one row a response. B rows, in any order."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from egpo.errors import InputError

Metrics = dict[str, float]
"""Where an estimator writes what it did, under the names that every engine logs."""


@dataclass(frozen=True, eq=False)
class Signals:
    """One-dimensional tensors of one length; lists and numpy arrays are converted, on the rewards' device.

    `group_B` holds any ids, integers or strings: rows with the same id answer the same problem.
    `entropy_B` is the mean Shannon entropy of the segment that the estimator asks for, NaN where it is empty;
    `nll_B` the mean of -log p of its sampled tokens. `correct_B` is fully right or not.
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


def _row(name: str, value: Any) -> Tensor:
    try:
        row = torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} is not a row of numbers: {error}", where="Signals") from error
    if row.is_complex():
        raise InputError(f"{name} is complex", where="Signals", fix="give real numbers")
    if row.ndim != 1:
        raise InputError(f"{name} has {row.ndim} dimensions", where="Signals", fix="give one value per response")
    return row


def _optional_row(name: str, value: Any, device: torch.device) -> Tensor | None:
    return None if value is None else _row(name, value).to(device)


def _finite_rewards(reward_B: Tensor) -> Tensor:
    """Rewards in float32, or float64 where they came so. A reward that is no number is a fault of its checker."""
    if reward_B.dtype != torch.float64:
        reward_B = reward_B.float()
    bad_B = ~torch.isfinite(reward_B)
    if bool(bad_B.any()):
        row = int(bad_B.nonzero()[0])
        raise InputError(
            f"{int(bad_B.sum())} of {len(reward_B)} rewards are not finite; row {row} is {float(reward_B[row])}",
            where="Signals",
            fix="mend the reward function, or give a failed check a reward of its own",
        )
    return reward_B


def _right_or_wrong(correct_B: Tensor | None) -> Tensor | None:
    """A shaped score is not correctness: only 0 and 1 are."""
    if correct_B is None:
        return None
    if not bool(((correct_B == 0) | (correct_B == 1)).all()):
        raise InputError(
            "correct_B holds more than 0 and 1", where="Signals", fix="say fully right or not, per response"
        )
    return correct_B.bool()


def _group_ids(group: Any) -> Tensor:
    """Integer ids as they are; any other hashable ids (verl's uids are an object array of strings) numbered."""
    if isinstance(group, np.ndarray) and group.dtype.kind in "iub":
        group = torch.as_tensor(np.ascontiguousarray(group))
    ids_B = group if isinstance(group, Tensor) else _numbered(group)
    if ids_B.is_floating_point() or ids_B.is_complex():
        raise InputError(f"group_B has dtype {ids_B.dtype}", where="Signals", fix="give integer or string ids")
    return ids_B.detach().long()


def _numbered(group: Iterable[Hashable]) -> Tensor:
    """Ids of any kind, numbered in order of appearance; a 0-d tensor or numpy scalar is taken as its value."""
    number_of: dict[Hashable, int] = {}
    names = [name.item() if isinstance(name, Tensor | np.generic) else name for name in group]
    if any(isinstance(name, float) for name in names):
        raise InputError("group_B holds fractions", where="Signals", fix="give integer or string ids")
    try:
        return torch.tensor([number_of.setdefault(name, len(number_of)) for name in names], dtype=torch.long)
    except TypeError as error:
        raise InputError(f"group_B holds ids that cannot be compared: {error}", where="Signals") from error
