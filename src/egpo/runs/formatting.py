"""Functions that format numbers, durations, sparklines and the log line of a step as text.

The table in `metric_table` decides which metrics are shown.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from egpo.runs.metric_table import METRICS, VALIDATION_ACCURACY, VALIDATION_LOSS, Metric, validation_accuracy

MISSING = "–"
_BARS = "▁▂▃▄▅▆▇█"


def log_line(
    step: int, total: int, metrics: Mapping[str, float], timings: Mapping[str, float], left_s: float | None
) -> str:
    """Return the log line of one step: `label value` pairs, aligned from step to step. Absent metrics are left out.

    `left_s` is the estimated time until the end of the run in seconds. Validation metrics come last: few steps have
    them, and in the middle they would shift the other pairs.
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
    """Return a number as text in a format of the metric table, such as `.3f`, `.0%` or `,.0f`; a dash for None."""
    if value is None:
        return MISSING
    return format(value, spec) if "%" in spec or "," in spec else format_number(value, int(spec[1:-1]))


def format_number(value: float | None, digits: int = 3) -> str:
    """Return a number with `digits` decimals; a dash for None.

    Numbers that would round to 0, and numbers from a million, are in scientific notation.
    """
    if value is None:
        return MISSING
    small = value != 0 and abs(value) < 0.5 * 10**-digits
    return f"{value:.1e}" if small or abs(value) >= 1e6 else f"{value:.{digits}f}"


def format_percent(value: float | None) -> str:
    """Return a fraction as a whole number of per cent; a dash for None."""
    return MISSING if value is None else f"{value:.0%}"


def format_duration(seconds: float | None) -> str:
    """Return seconds as minutes and seconds, with hours if needed (`0:07`, `12:04`, `3:02:11`); a dash for None."""
    if seconds is None:
        return MISSING
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sparkline(values: Sequence[float], width: int) -> str:
    """Return values as a line of bars of eight heights, scaled from the smallest to the largest value.

    If there are more values than `width`, each bar is the mean of several consecutive values. If all values are equal,
    all bars have the middle height.
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
