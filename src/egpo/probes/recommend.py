"""How large should groups be?"""

from collections.abc import Sequence
from dataclasses import dataclass

from egpo.probes.forecast import Forecast

ENOUGH = 0.7
"""So large a share of informative groups is enough: beyond it most of what a larger group adds is cost."""
_NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Recommendation:
    """`group_size` is None where no group teaches anything."""

    group_size: int | None
    why: str


def recommend(forecasts: Sequence[Forecast]) -> Recommendation:
    """The smallest size at which 70 % of the groups are informative; where none is, the knee: the smallest that has
    nine tenths of what the largest would have."""
    shares = {one.group_size: one.informative.value for one in forecasts}
    if not any(shares.values()):
        return Recommendation(None, "no prompt earned two different rewards: there is nothing to learn from")
    for size, share in shares.items():
        if share >= ENOUGH:
            return Recommendation(size, f"the smallest with {ENOUGH:.0%} informative groups: {share:.0%}")
    largest, most = max(shares.items())
    size = min(size for size, share in shares.items() if share >= _NEARLY_ALL * most)
    if size == largest:
        return Recommendation(size, f"the largest tried: even there only {most:.0%} of the groups are informative")
    why = f"{shares[size]:.0%} informative groups; {ENOUGH:.0%} are out of reach, {largest} would have {most:.0%}"
    return Recommendation(size, why)
