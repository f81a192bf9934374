"""How often each reason was given, under names that a tracker can hold."""

import re
from collections import Counter
from collections.abc import Sequence

_LONGEST_REASON, _MOST_REASONS = 48, 32


def shares_of(reasons: Sequence[str]) -> dict[str, float]:
    """Of each reason, by name. A judge from outside may give any text: names are made of plain characters, and beyond
    the commonest ones they are `other`."""
    counted = Counter(re.sub(r"[^\w.:-]", "_", reason[:_LONGEST_REASON]) for reason in reasons)
    common = counted.most_common(_MOST_REASONS)
    if len(common) < len(counted):
        common.append(("other", sum(counted.values()) - sum(count for _, count in common)))
    return {name: count / len(reasons) for name, count in sorted(common)}
