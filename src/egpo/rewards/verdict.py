"""What a checker says of one response."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Verdict:
    """A reward, and why.

    `correct` is fully right or not, whatever the reward's shape: accuracy is its mean.
    `failed` says that the checker itself gave up (time-out, no sandbox): nothing was learnt about the response.
    `reason` is one of the documented names; `parts` are the scores that add up to a shaped reward.
    """

    reward: float
    correct: bool
    reason: str
    failed: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)
