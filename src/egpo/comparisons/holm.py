"""Many comparisons at once: one of twenty cries wolf, so each must be clearer."""

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: the chance that any of them cries wolf stays below the level that they are held to.

    The i-th smallest of m is multiplied by m - i + 1, is no less than the one before it, and 1 at most. One p-value
    alone stays as it is. (Holm 1979)
    """
    count, floor = len(p_values), 0.0
    adjusted = [0.0] * count
    for rank, place in enumerate(sorted(range(count), key=lambda place: p_values[place])):
        floor = max(floor, min(1.0, (count - rank) * p_values[place]))
        adjusted[place] = floor
    return adjusted
