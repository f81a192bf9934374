"""The verdict of a reward on one response, and the frequencies of the reasons."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_LONGEST_REASON, _MOST_REASONS = 48, 32


def shares_of(reasons: Sequence[str]) -> dict[str, float]:
    """Return the fraction of verdicts that have each reason, by the name of the reason.

    A user's reward may give any text as its reason: unusual characters become `_`, names are cut to 48 characters, and
    all but the 32 most common names are counted as `other`.
    """
    counted = Counter(re.sub(r"[^\w.:-]", "_", reason[:_LONGEST_REASON]) for reason in reasons)
    common = counted.most_common(_MOST_REASONS)
    if len(common) < len(counted):
        common.append(("other", sum(counted.values()) - sum(count for _, count in common)))
    return {name: count / len(reasons) for name, count in sorted(common)}


@dataclass(frozen=True)
class Verdict:
    """The verdict on a response: its reward, and the reason for it.

    `correct`: whether the response is fully right, in every mode of the reward; accuracy is its mean.
    `failed`: the checker itself failed (timeout, no sandbox), so that nothing is known about the response.
    `reason` is one of the names in docs/rewards/README.md; `parts` are the scores that add up to a shaped reward.
    """

    reward: float
    correct: bool
    reason: str
    failed: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)
