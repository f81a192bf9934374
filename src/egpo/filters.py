"""Filters: which groups of responses are not wanted for training. `algorithm.constant_groups` says what is done then.

To add a filter: a function and its row in FILTERS. A filter outside the package is named `module:function`:
`f(reward_B, group_B, correct_B) -> unwanted_B`, one bool per response, equal for all responses of a group. Importing
this module does not import torch. Tensor suffixes: B rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from egpo.advantages import Signals, grpo
from egpo.advantages.signals import Groups
from egpo.errors import InputError, nearest
from egpo.user_code import user_row

if TYPE_CHECKING:
    from torch import Tensor

FORM = "give a function f(reward_B, group_B, correct_B) that returns one bool per response, equal within a group"


def is_constant(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """Return a mask of the rows in groups whose advantages under GRPO are all 0.

    Rewards count as equal within the same rounding tolerance as in GRPO. A group of one row is constant if its reward
    is 0.
    """
    groups = Groups.of(group_B.to(reward_B.device))
    advantage_B = grpo(Signals(reward_B, group_B), normalize=False)
    return groups.rows(groups.max(advantage_B.abs()) == 0)


def constant(reward_B: Tensor, group_B: Tensor, correct_B: Tensor) -> Tensor:
    """Return the rows of groups whose rewards are all equal: they have no gradient under GRPO."""
    return is_constant(reward_B, group_B)


def all_or_none(reward_B: Tensor, group_B: Tensor, correct_B: Tensor) -> Tensor:
    """Return the rows of groups in which every response is correct, or none: the filter of DAPO's paper.

    It differs from `constant` where rewards have more than two values, as with an overlong penalty.
    """
    return is_constant(correct_B.to(reward_B.dtype), group_B)


FILTERS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {"constant": constant, "all_or_none": all_or_none}


def filter_named(name: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the filter of that name, or of that `module:function`. Raise InputError with the nearest name
    otherwise."""
    if ":" not in name:
        if name not in FILTERS:
            raise InputError(f"unknown filter `{name}`", fix=nearest(name, FILTERS))
        return FILTERS[name]
    return _checked(user_row(name, "filter", FORM), f"filter {name}")


def _checked(
    function: Callable[[Tensor, Tensor, Tensor], Tensor], where: str
) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the function of a user with a check of its result."""

    def checked(reward_B: Tensor, group_B: Tensor, correct_B: Tensor) -> Tensor:
        import torch

        found = function(reward_B, group_B, correct_B)
        if not isinstance(found, torch.Tensor) or found.shape != reward_B.shape:
            shape = tuple(getattr(found, "shape", ()))
            raise InputError(f"it returned {type(found).__name__} of shape {shape}", where=where, fix=FORM)
        unwanted_B = found.bool().to(reward_B.device)
        groups = Groups.of(group_B.to(reward_B.device))
        whole_B = groups.rows(groups.max(unwanted_B.to(reward_B.dtype)) > 0)
        if not torch.equal(whole_B, unwanted_B):
            raise InputError("it wants some responses of a group and not others", where=where, fix=FORM)
        return unwanted_B

    return checked
