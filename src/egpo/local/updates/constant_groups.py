"""Groups whose rewards agree: they carry no gradient, under any estimator here. B rows."""

from torch import Tensor

from egpo.advantages import Signals, grpo
from egpo.advantages.groups import Groups


def is_constant(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """True at each row of a group in which GRPO's advantage is 0 throughout: the same rounding, the same verdict.

    A group of one row has nothing to agree with: it is constant where its reward is 0.
    """
    groups = Groups.of(group_B.to(reward_B.device))
    advantage_B = grpo(Signals(reward_B, group_B), normalize=False)
    return groups.rows(groups.max(advantage_B.abs()) == 0)
