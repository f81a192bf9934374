"""Metrics for the eye: which are shown, under which names, in how many digits. Knows names only, of any engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

REWARD, ACCURACY = "critic/score/mean", "critic/acc/mean"
ENTROPIES = {"thinking": "entropy/thinking", "answer": "entropy/answer", "response": "entropy/response"}
ENTROPY, KL, GRAD_NORM = "actor/entropy", "actor/kl", "actor/grad_norm"
AGREEING, TRUNCATED = "groups/zero_variance_frac", "response_length/clip_ratio"
LENGTH, LOSS, VALIDATION_LOSS = "response_length/mean", "train/loss", "val/loss"
STEP_S, TOKENS_PER_S = "timing_s/step", "perf/throughput"

_LINE = {
    "loss": LOSS,
    "reward": REWARD,
    "acc": ACCURACY,
    "entropy": ENTROPY,
    "thinking": ENTROPIES["thinking"],
    "answer": ENTROPIES["answer"],
    "kl": KL,
    "grad": GRAD_NORM,
}
_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Reading:
    """A figure's name on the screen, and as text."""

    label: str
    text: str


def validation_accuracy(metrics: Mapping[str, float]) -> float | None:
    """The mean over sources of `val-core/<source>/acc/mean@N`; None where nothing was validated."""
    found = [value for name, value in metrics.items() if name.startswith("val-core/") and "/acc/mean@" in name]
    return fmean(found) if found else None


def figure(value: float | None, digits: int = 3) -> str:
    """As many digits after the point, or scientific where they would all be 0; a dash where there is none."""
    if value is None:
        return "–"
    small = value != 0 and abs(value) < 0.5 * 10**-digits
    return f"{value:.1e}" if small or abs(value) >= 1e6 else f"{value:.{digits}f}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def duration(seconds: float | None) -> str:
    """`0:07`, `12:04`, `3:02:11`."""
    if seconds is None:
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as bars of eight heights, from the least to the greatest; in the middle where all are equal.
    More values than `width` are averaged in equal parts, so that the whole run is seen."""
    if not values:
        return ""
    parts = min(width, len(values))
    cuts = [round(i * len(values) / parts) for i in range(parts + 1)]
    means = [fmean(values[start:end]) for start, end in pairwise(cuts)]
    low, high = min(means), max(means)
    if high == low:
        return _BARS[3] * parts
    return "".join(_BARS[round((mean - low) / (high - low) * 7)] for mean in means)


def plain_line(
    step: int, total: int, metrics: Mapping[str, float], timings: Mapping[str, float], left_s: float | None
) -> str:
    """One step in one line: `name value` pairs, aligned from line to line. A metric that is absent is left out."""
    width = len(str(total))
    pairs = [f"step {step:>{width}}/{total}"]
    pairs += [f"{reading.label} {reading.text:>6}" for reading in _line_readings(metrics, timings)]
    if left_s is not None and step < total:
        pairs.append(f"left {duration(left_s):>7}")
    validations = {"validation": validation_accuracy(metrics), "validation loss": metrics.get(VALIDATION_LOSS)}
    pairs += [f"{name} {figure(value)}" for name, value in validations.items() if value is not None]
    return "  ".join(pairs)


def _line_readings(metrics: Mapping[str, float], timings: Mapping[str, float]) -> list[Reading]:
    found = [Reading(label, figure(metrics[key])) for label, key in _LINE.items() if key in metrics]
    if AGREEING in metrics:
        found.append(Reading("agree", share(metrics[AGREEING])))
    if TOKENS_PER_S in timings:
        found.append(Reading("tok/s", f"{timings[TOKENS_PER_S]:.0f}"))
    if STEP_S in timings:
        found.append(Reading("s/step", f"{timings[STEP_S]:.2f}"))
    return found
