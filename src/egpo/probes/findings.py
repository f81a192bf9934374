"""The comparison of a probe's metrics with thresholds, with advice for each, and the recommended group size."""

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

SFT_FIRST = "use supervised fine-tuning first (`egpo sft`), or easier problems"
HARDER = "use harder data, or another task: almost nothing is left to learn"
FILTER = "most prompts are solved always or never: keep the others (--keep 0.1:0.9), or raise the temperature"


@dataclass(frozen=True)
class ProbeFinding:
    """One metric of a probe compared with its threshold. `bad`: it prevents learning; `remark`: it may be a problem."""

    figure: str
    value: float
    wanted: str
    status: Status
    advice: str = ""


def find_faults(figures: Figures, variance: Estimate | None) -> tuple[ProbeFinding, ...]:
    """Return one finding for each known metric; shares of truncated and failed responses only if they are too high."""
    return tuple(_findings(figures, variance))


def _findings(figures: Figures, variance: Estimate | None) -> Iterator[ProbeFinding]:
    if figures.readable_frac == 0:
        advice = "no response contains an answer: " + SFT_FIRST
        yield ProbeFinding("readable", 0.0, "over 0", "bad", advice)
    if figures.accuracy is not None:
        yield _accuracy(figures.accuracy)
    if variance is not None:
        yield _variance(variance, figures.accuracy)
    if (entropy := figures.entropy.get("response")) is not None:
        yield _entropy(entropy)
    if figures.truncated_frac is not None and figures.truncated_frac > _MOST_CUT_OFF:
        advice = "raise rollout.max_response_tokens (--max-tokens): truncated responses are judged without their end"
        yield ProbeFinding("cut off", figures.truncated_frac, f"under {_MOST_CUT_OFF:.0%}", "remark", advice)
    if figures.num_failed:
        advice = "the checker failed: read the reasons in the table, and run `egpo doctor`"
        yield ProbeFinding("failures", figures.num_failed / figures.num_responses, "none", "remark", advice)


def _accuracy(found: Estimate) -> ProbeFinding:
    """Judge the accuracy. Between 10 and 80 %, most groups have both correct and wrong responses to compare."""
    bands: list[tuple[float, Status, str]] = [
        (0.05, "bad", SFT_FIRST),
        (
            0.10,
            "remark",
            "few responses are right: larger groups or short supervised fine-tuning (`egpo sft`) will help",
        ),
        (0.80, "good", ""),
        (0.95, "remark", "little is left to learn: harder data will give more"),
    ]
    status, advice = next(((status, advice) for most, status, advice in bands if found.value < most), ("bad", HARDER))
    return ProbeFinding(
        "accuracy", found.value, "10 to 80 %", status, _with_doubt(advice, found, (0.05, 0.1, 0.8, 0.95))
    )


def _variance(found: Estimate, accuracy: Estimate | None) -> ProbeFinding:
    wanted = f"over {LEAST_VARIANCE}"
    if found.value > LEAST_VARIANCE:
        return ProbeFinding("reward variance", found.value, wanted, "good", _with_doubt("", found, (LEAST_VARIANCE,)))
    share = 0.5 if accuracy is None else accuracy.value
    advice = SFT_FIRST if share < 0.1 else HARDER if share > 0.9 else FILTER
    return ProbeFinding("reward variance", found.value, wanted, "bad", _with_doubt(advice, found, (LEAST_VARIANCE,)))


def _entropy(found: Estimate) -> ProbeFinding:
    """Judge the entropy of the response. It is never `bad`, because models learn well at different entropies."""
    wanted = f"{LEAST_ENTROPY} to {MOST_ENTROPY} nats"
    if found.value < LEAST_ENTROPY:
        advice = "responses are nearly the same: raise the temperature to explore more"
    elif found.value > MOST_ENTROPY:
        advice = "responses are close to random: lower the temperature, or fine-tune longer first (`egpo sft`)"
    else:
        return ProbeFinding("entropy", found.value, wanted, "good")
    return ProbeFinding("entropy", found.value, wanted, "remark", advice)


def _with_doubt(advice: str, found: Estimate, thresholds: tuple[float, ...]) -> str:
    if found.low is None or found.high is None or not any(found.low < limit < found.high for limit in thresholds):
        return advice
    doubt = "the 95 % interval contains a threshold: use more --problems to decide"
    return f"{advice}; {doubt}" if advice else doubt


ENOUGH = 0.7
"""The share of informative groups that is sufficient. Above it, larger groups mostly add cost."""
_NEARLY_ALL = 0.9


@dataclass(frozen=True)
class Recommendation:
    """The recommended group size, None if no group would be informative, and the reason for it."""

    group_size: int | None
    why: str


def recommend(forecasts: Sequence[Forecast]) -> Recommendation:
    """Return the smallest group size at which 70 % of the groups are informative (their rewards differ).

    If no size reaches 70 %: the smallest size whose share is at least 90 % of the share at the largest size.
    """
    shares = {one.group_size: one.informative.value for one in forecasts}
    if not any(shares.values()):
        return Recommendation(None, "no prompt has responses with different rewards: there is no learning signal")
    for size, share in shares.items():
        if share >= ENOUGH:
            return Recommendation(size, f"the smallest size with {ENOUGH:.0%} informative groups: {share:.0%}")
    largest, most = max(shares.items())
    size = min(size for size, share in shares.items() if share >= _NEARLY_ALL * most)
    if size == largest:
        return Recommendation(size, f"the largest size tried: even there only {most:.0%} of the groups are informative")
    why = f"{shares[size]:.0%} informative groups; no size reaches {ENOUGH:.0%} ({most:.0%} at size {largest})"
    return Recommendation(size, why)
