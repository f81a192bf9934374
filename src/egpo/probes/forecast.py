"""The share of groups that will carry a gradient, for groups of 2, 4, ... 64 responses. P prompts, R resamples.

A group is informative where its rewards differ: that is what the estimators see. For rewards of 0 and 1 it is the same
as neither all right nor all wrong; a shaped reward may differ where correctness does not, and the other way about.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import hypot, sqrt

import numpy as np

from egpo.evals.bootstrap import SHARES, Estimate, mean_with_interval, mid_quantiles, percentile_tails
from egpo.probes.agreement import Agreement, Prompts, agreement_within
from egpo.probes.beta_binomial import Floats
from egpo.probes.rewards import Rewards

GROUP_SIZES = (2, 4, 8, 16, 32, 64)
NUM_REFITS = 2_000
_NORMAL_95 = 1.96


@dataclass(frozen=True)
class Forecast:
    """The share of groups of `group_size` whose rewards differ. `extrapolated` where some prompt has fewer responses
    than that."""

    group_size: int
    informative: Estimate
    extrapolated: bool

    def seen_in(self, num_groups: int) -> tuple[float, float]:
        """Where the share seen in so many groups will lie, 95 times in 100: the errors of the forecast and of the
        groups' own draw, added as squares. Each group is another prompt."""
        share = self.informative
        low, high = (share.value if end is None else end for end in (share.low, share.high))
        # The spread at the end that is tried, and not at the value: 0 and 1 have none.
        below, above = (_NORMAL_95 * sqrt(end * (1 - end) / num_groups) for end in (low, high))
        return max(0.0, share.value - hypot(share.value - low, below)), min(
            1.0, share.value + hypot(high - share.value, above)
        )


def forecast(
    rewards: Rewards, sizes: Iterable[int] = GROUP_SIZES, seed: int = 0, num_refits: int = NUM_REFITS
) -> tuple[Forecast, ...]:
    """Out of each prompt's rewards, with 95 % intervals over prompts. Without prompts there is none.

    The plain formula, the mean of 1 - p^G - (1 - p)^G with p = c / n, is too low: see docs/probing.md.
    """
    prompts, sizes = tuple(rewards.values()), sorted(sizes)
    if not prompts:
        return ()
    least = min(counts.total() for counts in prompts)
    within = [_within(prompts, size, seed) for size in sizes if size <= least]
    beyond = [size for size in sizes if size > least]
    if not beyond:
        return tuple(within)
    agreement = Agreement.fitted(prompts, _weights(len(prompts), seed, num_refits))
    return (*within, *(_beyond(prompts, size, agreement, seed) for size in beyond))


def _within(prompts: Prompts, size: int, seed: int) -> Forecast:
    estimate = mean_with_interval(1 - agreement_within(prompts, size), seed=seed, bounds=SHARES)
    assert estimate is not None
    return Forecast(size, estimate, extrapolated=False)


def _beyond(prompts: Prompts, size: int, agreement: Agreement, seed: int) -> Forecast:
    """The fit cannot tell a prompt that is never solved from one that is solved once in a hundred tries. So the ends
    are the outer ones of two intervals: the refits', and that of the share if all that agreed so far always will."""
    value, *refitted = map(float, 1 - agreement.mean_R(size))
    known = mean_with_interval(
        [1 - float(agreement_within([counts], min(size, counts.total()))[0]) for counts in prompts],
        seed=seed,
        bounds=SHARES,
    )
    assert known is not None
    ends = [value, known.low, known.high]
    if len(prompts) > 1:
        ends += mid_quantiles(np.array(refitted), percentile_tails(len(prompts)))
    held = [end for end in ends if end is not None]
    return Forecast(size, Estimate(value, min(held), max(held), len(prompts)), extrapolated=True)


def _weights(num_prompts: int, seed: int, num_refits: int) -> Floats:
    """How often each prompt is drawn: once in the first row, with replacement in the others."""
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(num_prompts, np.full(num_prompts, 1 / num_prompts), size=num_refits)
    return np.vstack([np.ones(num_prompts), drawn])
