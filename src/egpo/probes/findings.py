"""Is there something to learn here? Figures against thresholds, each with advice.

How large should groups be?
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from egpo.evals.figures import Figures
from egpo.evals.intervals import Estimate
from egpo.probes.forecast import Forecast

Status = Literal["good", "remark", "bad"]

LEAST_VARIANCE = 0.05
LEAST_ENTROPY, MOST_ENTROPY = 0.2, 0.8
_MOST_CUT_OFF = 0.1

SFT_FIRST = "a cold start first (`egpo sft`), or easier problems"
HARDER = "harder data, or another task: there is next to nothing left to learn"
FILTER = "most prompts are solved always or never: keep those between (--keep 0.1:0.9), or raise the temperature"


@dataclass(frozen=True)
class Finding:
    """One figure against its threshold. `bad` stands in the way of learning; a `remark` is worth a look."""

    figure: str
    value: float
    wanted: str
    status: Status
    advice: str = ""


def find_faults(figures: Figures, variance: Estimate | None) -> tuple[Finding, ...]:
    """One finding for each figure that is known."""
    return tuple(_findings(figures, variance))


def _findings(figures: Figures, variance: Estimate | None) -> Iterator[Finding]:
    if figures.readable_frac == 0:
        advice = "no response held an answer: " + SFT_FIRST
        yield Finding("readable", 0.0, "over 0", "bad", advice)
    if figures.accuracy is not None:
        yield _accuracy(figures.accuracy)
    if variance is not None:
        yield _variance(variance, figures.accuracy)
    if (entropy := figures.entropy.get("response")) is not None:
        yield _entropy(entropy)
    if figures.truncated_frac is not None and figures.truncated_frac > _MOST_CUT_OFF:
        advice = "raise rollout.max_response_tokens (--max-tokens): what is cut off is judged as it stands"
        yield Finding("cut off", figures.truncated_frac, f"under {_MOST_CUT_OFF:.0%}", "remark", advice)
    if figures.num_failed:
        advice = "the checker failed: see the reasons, and `egpo doctor`"
        yield Finding("failures", figures.num_failed / figures.num_responses, "none", "remark", advice)


def _accuracy(found: Estimate) -> Finding:
    """10 to 80 % is where reinforcement has both right and wrong to choose between."""
    bands: list[tuple[float, Status, str]] = [
        (0.05, "bad", SFT_FIRST),
        (0.10, "remark", "few responses are right: larger groups or a short cold start (`egpo sft`) will help"),
        (0.80, "good", ""),
        (0.95, "remark", "little is left to learn: harder data will give more"),
    ]
    status, advice = next(((status, advice) for most, status, advice in bands if found.value < most), ("bad", HARDER))
    return Finding("accuracy", found.value, "10 to 80 %", status, _with_doubt(advice, found, (0.05, 0.1, 0.8, 0.95)))


def _variance(found: Estimate, accuracy: Estimate | None) -> Finding:
    wanted = f"over {LEAST_VARIANCE}"
    if found.value > LEAST_VARIANCE:
        return Finding("reward variance", found.value, wanted, "good", _with_doubt("", found, (LEAST_VARIANCE,)))
    share = 0.5 if accuracy is None else accuracy.value
    advice = SFT_FIRST if share < 0.1 else HARDER if share > 0.9 else FILTER
    return Finding("reward variance", found.value, wanted, "bad", _with_doubt(advice, found, (LEAST_VARIANCE,)))


def _entropy(found: Estimate) -> Finding:
    """A remark at most: models of one kind learn well where others do not."""
    wanted = f"{LEAST_ENTROPY} to {MOST_ENTROPY} nats"
    if found.value < LEAST_ENTROPY:
        advice = "responses resemble each other: a higher temperature explores more"
    elif found.value > MOST_ENTROPY:
        advice = "responses wander: a lower temperature, or a longer cold start"
    else:
        return Finding("entropy", found.value, wanted, "good")
    return Finding("entropy", found.value, wanted, "remark", advice)


def _with_doubt(advice: str, found: Estimate, thresholds: tuple[float, ...]) -> str:
    if found.low is None or found.high is None or not any(found.low < limit < found.high for limit in thresholds):
        return advice
    doubt = "the interval crosses a threshold: --problems with more will tell"
    return f"{advice}; {doubt}" if advice else doubt


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
