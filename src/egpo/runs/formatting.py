"""Numbers, durations, sparklines and the log line of a step, as text. Which metrics are shown: `metric_table`."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from egpo.runs.metric_table import METRICS, VALIDATION_ACCURACY, VALIDATION_LOSS, Metric, validation_accuracy

MISSING = "–"
_BARS = "▁▂▃▄▅▆▇█"


def log_line(
    step: int, total: int, metrics: Mapping[str, float], timings: Mapping[str, float], left_s: float | None
) -> str:
    """Return one step as one line of `label value` pairs, aligned from step to step. Absent metrics are left out.

    The validation comes last: few steps have one, and a pair in the middle would move all others.
    """
    pairs = [f"step {step:>{len(str(total))}}/{total}"]
    found = {**metrics, **timings}
    pairs += [f"{_label(metric)} {_text(metric, found):>6}" for metric in _EVERY_STEP if metric.name in found]
    if left_s is not None and step < total:
        pairs.append(f"left {format_duration(left_s):>7}")
    if (accuracy := validation_accuracy(metrics)) is not None:
        found[VALIDATION_ACCURACY] = accuracy
    pairs += [f"{_label(metric)} {_text(metric, found)}" for metric in _VALIDATIONS if metric.name in found]
    return "  ".join(pairs)


_VALIDATIONS = [metric for metric in METRICS if metric.name in (VALIDATION_ACCURACY, VALIDATION_LOSS)]
_EVERY_STEP = [metric for metric in METRICS if metric.log and metric not in _VALIDATIONS]


def _label(metric: Metric) -> str:
    assert metric.log is not None
    return metric.log.label


def _text(metric: Metric, found: Mapping[str, float]) -> str:
    assert metric.log is not None
    return format_value(found[metric.name], metric.log.format)


def format_value(value: float | None, spec: str) -> str:
    """Return a number in a format of the table: `.3f`, `.0%` or `,.0f`; a dash for None."""
    if value is None:
        return MISSING
    return format(value, spec) if "%" in spec or "," in spec else format_number(value, int(spec[1:-1]))


def format_number(value: float | None, digits: int = 3) -> str:
    """Return a number with `digits` decimals; in scientific notation if it would round to 0; a dash for None."""
    if value is None:
        return MISSING
    small = value != 0 and abs(value) < 0.5 * 10**-digits
    return f"{value:.1e}" if small or abs(value) >= 1e6 else f"{value:.{digits}f}"


def format_percent(value: float | None) -> str:
    """Return a fraction in whole per cent; a dash for None."""
    return MISSING if value is None else f"{value:.0%}"


def format_duration(seconds: float | None) -> str:
    """Return `0:07`, `12:04` or `3:02:11`; a dash for None."""
    if seconds is None:
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return values as bars of eight heights, scaled from the smallest to the largest value.

    More values than `width` are averaged in equal parts, so that the line covers the whole run. If all values are
    equal, all bars have the middle height.
    """
    if not values:
        return ""
    parts = min(width, len(values))
    cuts = [round(i * len(values) / parts) for i in range(parts + 1)]
    means = [fmean(values[start:end]) for start, end in pairwise(cuts)]
    low, high = min(means), max(means)
    if high == low:
        return _BARS[3] * parts
    return "".join(_BARS[round((mean - low) / (high - low) * 7)] for mean in means)
