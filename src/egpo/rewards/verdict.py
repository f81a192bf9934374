"""How often each reason was given, under names that a tracker can hold.

What a checker says of one response.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_LONGEST_REASON, _MOST_REASONS = 48, 32


def shares_of(reasons: Sequence[str]) -> dict[str, float]:
    """Of each reason, by name. A judge from outside may give any text: names are made of plain characters, and beyond
    the commonest ones they are `other`."""
    counted = Counter(re.sub(r"[^\w.:-]", "_", reason[:_LONGEST_REASON]) for reason in reasons)
    common = counted.most_common(_MOST_REASONS)
    if len(common) < len(counted):
        common.append(("other", sum(counted.values()) - sum(count for _, count in common)))
    return {name: count / len(reasons) for name, count in sorted(common)}


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
