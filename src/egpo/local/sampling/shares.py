"""Which rows each core samples. P problems, G rows of each."""

from itertools import pairwise

_FEWEST_ROWS = 8
"""For a core of its own: fewer take nearly as long as these."""


def row_shares(num_problems: int, group: int, sides: int) -> list[list[int]]:
    """At most `sides` shares of rows 0 to P * G, in order and of like size. Whole groups, so that a prompt is computed
    once; where there are fewer groups than sides, groups are cut."""
    num_rows = num_problems * group
    num_shares = max(1, min(sides, num_rows // _FEWEST_ROWS))
    unit = group if num_problems >= num_shares else 1
    bounds = [unit * (num_rows // unit * share // num_shares) for share in range(num_shares + 1)]
    return [list(range(first, last)) for first, last in pairwise(bounds)]
