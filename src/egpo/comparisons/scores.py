"""The comparison of published scores without responses: means and standard deviations over E evaluations of a model.

Two questions can be asked:
- Is one model better on exactly these test cases? Welch's t-test over evaluations answers it.
- Is it better on other cases of the same kind? Without the result of each case, only a wide interval can be given: the
  models cannot be compared case by case, so the variance between cases counts in full. The variance of a mean is
  between / cases + within / (cases * E), where within is cases * sd^2 (evaluations differ by chance only) and between
  is p (1 - p) - within.

`--scores` takes `GRPO=61.7±1.9x5`, `GRPO=61.0,62.5,60.1`, or a file of such scores, in percent.
"""

import csv
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

from egpo.comparisons.outcome import ALPHA, POWER, DifferenceTest, TDesign, t_quantile, two_sided_p
from egpo.comparisons.result import Comparison, ConditionRow, Pair, RunRow, amount, contrasts_of, signed
from egpo.errors import InputError
from egpo.evals.intervals import Estimate

WELCH = "Welch's t over evaluations"
BINOMIAL = "two shares, unpaired"
METRIC = "accuracy"
EFFECT = 0.02
_MOST_EVALUATIONS = 10_000


@dataclass(frozen=True)
class Scores:
    """The scores of one condition, as shares: their mean, and their standard deviation over `num_evaluations` of one
    model (None for a single evaluation)."""

    label: str
    mean: float
    sd: float | None
    num_evaluations: int
    evaluations: Sequence[float] = ()


def compare_scores(conditions: Sequence[Scores], num_cases: int | None = None, effect: float = EFFECT) -> Comparison:
    """Compare every pair of conditions. Notes give the number of evaluations needed to detect a difference of `effect`.

    Raise InputError if there are fewer than two conditions, or neither standard deviations nor `num_cases`.
    """
    if len(conditions) < 2:
        fix = "give at least two conditions, as in --scores A=61.7±1.9x5 --scores B=63.0±1.2x5"
        raise InputError("fewer than two conditions to compare", where="--scores", fix=fix)
    places = list(combinations(conditions, 2))
    tests = [difference_of_scores(base, other, num_cases) for base, other in places]
    return Comparison(
        title=_title(num_cases),
        conditions=[_row(condition) for condition in conditions],
        contrasts=contrasts_of([Pair(METRIC, base.label, other.label) for base, other in places], tests),
        notes=[note for pair in places for note in _notes(*pair, num_cases, effect)] + [_ON_SEEDS],
    )


def difference_of_scores(base: Scores, other: Scores, num_cases: int | None) -> DifferenceTest:
    """Test the difference of two conditions: over evaluations if both have several, else over independent cases."""
    if base.sd is not None and other.sd is not None:
        return _test(base, other, _over_evaluations(base, other), WELCH, num_cases)
    if num_cases is None:
        fix = "give the standard deviation as in A=61.7±1.9x5, or each evaluation as in A=61.0,62.5, or --cases"
        what = "a condition with one evaluation does not show how much evaluations vary"
        raise InputError(what, where="--scores", fix=fix)
    return _test(base, other, over_cases(base, other, num_cases), BINOMIAL, num_cases)


def num_evaluations_for(base: Scores, other: Scores, effect: float) -> int | None:
    """Return how many evaluations per condition are needed to find a difference of `effect` with 80 % power.

    None if evaluations do not vary, or if no number up to 10,000 is enough.
    """
    if not base.sd or not other.sd:
        return None
    for count in range(2, _MOST_EVALUATIONS):
        error = math.sqrt((base.sd**2 + other.sd**2) / count)
        if effect < 2 * error:  # a power far below 80 %
            continue
        if TDesign(error, _welch_freedom(base.sd, other.sd, count, count)).power(effect, ALPHA) >= POWER:
            return count
    return None


def over_cases(base: Scores, other: Scores, num_cases: int) -> TDesign:
    """Return the design of a t-test over cases, as if the two conditions were evaluated on different random cases.

    If both were evaluated on the same cases, its standard error is an upper bound.
    """
    return TDesign(math.sqrt(sum(_case_variance(side, num_cases) for side in (base, other))), 2 * num_cases - 2)


def _case_variance(side: Scores, num_cases: int) -> float:
    whole = side.mean * (1 - side.mean)
    within = min(whole, num_cases * side.sd**2) if side.sd is not None else whole
    return (whole - within) / num_cases + within / num_cases / side.num_evaluations


def _over_evaluations(base: Scores, other: Scores) -> TDesign:
    assert base.sd is not None
    assert other.sd is not None
    error = math.sqrt(base.sd**2 / base.num_evaluations + other.sd**2 / other.num_evaluations)
    return TDesign(error, _welch_freedom(base.sd, other.sd, base.num_evaluations, other.num_evaluations))


def _welch_freedom(sd: float, other_sd: float, count: int, other_count: int) -> float:
    parts = (sd**2 / count, count - 1), (other_sd**2 / other_count, other_count - 1)
    scatter = sum(part**2 / freedom for part, freedom in parts)
    return sum(part for part, _ in parts) ** 2 / scatter if scatter else float(count + other_count - 2)


def _test(base: Scores, other: Scores, design: TDesign, method: str, num_cases: int | None) -> DifferenceTest:
    value, size = other.mean - base.mean, num_cases or 0
    if design.error == 0:
        return DifferenceTest(base.mean, Estimate(value, None, None, size), 1.0, method, design)
    delta = Estimate(value, *_interval(value, design), size)
    return DifferenceTest(base.mean, delta, two_sided_p(value / design.error, design.freedom), method, design)


def _interval(value: float, design: TDesign) -> tuple[float, float]:
    reach = design.error * t_quantile(1 - ALPHA / 2, design.freedom)
    return value - reach, value + reach


_ON_SEEDS = (
    "Evaluations of one training run do not show the variation between training seeds: another seed is another model. "
    "To compare methods, train several seeds of each."
)


def _notes(base: Scores, other: Scores, num_cases: int | None, effect: float) -> list[str]:
    names = f"{base.label} and {other.label}"
    notes = []
    if (count := num_evaluations_for(base, other, effect)) is not None:
        notes.append(f"{names}: detecting {amount(effect, True)} on these cases takes {count} evaluations of each.")
    if num_cases is not None:
        low, high = _interval(other.mean - base.mean, over_cases(base, other, num_cases))
        interval = f"[{signed(low, True)}, {signed(high, True)}]"
        notes.append(
            f"{names}: on other cases of the same kind as these {num_cases}, the 95 % interval of the difference is at "
            f"most {interval}. More cases, or the results of each case, would narrow it; more evaluations hardly would."
        )
    return notes


def _row(scores: Scores) -> ConditionRow:
    evaluations = list(scores.evaluations)
    run = RunRow(scores.label, None, scores.mean, scores.num_evaluations, evaluations, scores.sd)
    return ConditionRow(scores.label, METRIC, True, scores.mean, [run])


def _title(num_cases: int | None) -> str:
    return "scores as given" if num_cases is None else f"scores as given, {num_cases} cases"


_NUMBER = r"\s*(\d+(?:\.\d+)?)\s*"
_SUMMARY = re.compile(rf"{_NUMBER}(?:(?:±|\+-|\+/-){_NUMBER}[x×]\s*(\d+)\s*)?")
_FIX = "write NAME=MEAN±SDxEVALUATIONS, as in GRPO=61.7±1.9x5, or the score of each evaluation, as in GRPO=61.0,62.5"


def read_scores(words: Iterable[str]) -> list[Scores]:
    """Parse the values of the option `--scores`: each is `NAME=...` or the path of a file.

    A file is YAML (`GRPO: [61.0, 62.5]`, `EGPO: 61.9±0.9x5`) or CSV with the columns `condition` and `score`, one
    evaluation per line.
    """
    found = [scores for word in words for scores in (_from_file(Path(word)) if _is_file(word) else [_from_word(word)])]
    labels = [scores.label for scores in found]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise InputError(f"`{twice}` is given twice", where="--scores", fix="give each condition a name of its own")
    return found


def scores_of(label: str, percents: Sequence[float]) -> Scores:
    """Return the scores of a condition from the score of each evaluation, in percent."""
    for percent in percents:
        if not 0 <= percent <= 100:
            what = f"`{label}` has the score {percent:g}"
            raise InputError(what, where="--scores", fix="scores must be in percent, from 0 to 100")
    shares = [percent / 100 for percent in percents]
    return Scores(label, fmean(shares), stdev(shares) if len(shares) > 1 else None, len(shares), shares)


def _is_file(word: str) -> bool:
    return word.endswith((".yaml", ".yml", ".csv")) or ("=" not in word and os.path.isfile(word))


def _from_word(word: str) -> Scores:
    label, equals, value = word.partition("=")
    if not equals or not label.strip():
        raise InputError(f"`{word}` is neither a file nor NAME=...", where="--scores", fix=_FIX)
    return _parsed(label.strip(), value)


def _parsed(label: str, value: str) -> Scores:
    parts = value.split(",")
    if summary := _SUMMARY.fullmatch(value):
        mean, sd, count = summary.groups()
        if count is not None:
            return _summary(label, float(mean), float(sd), int(count))
        parts = [mean]
    try:
        return scores_of(label, [float(part) for part in parts])
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"the scores `{label}={value}` cannot be read", where="--scores", fix=_FIX) from error


def _summary(label: str, mean: float, sd: float, count: int) -> Scores:
    if count < 2:
        raise InputError(
            f"`{label}` has a standard deviation, which needs at least 2 evaluations, but has {count}",
            where="--scores",
            fix="leave out the standard deviation, or give more evaluations",
        )
    return Scores(label, scores_of(label, [mean]).mean, sd / 100, count)


def _from_file(path: Path) -> list[Scores]:
    try:
        text = path.read_text(encoding="utf-8")
        return _from_csv(text) if path.suffix == ".csv" else _from_yaml(yaml.safe_load(text))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        fix = "write YAML as `NAME: [61.0, 62.5]`, or CSV with the columns condition,score"
        raise InputError(f"the file of scores cannot be read ({error!s:.80})", where=str(path), fix=fix) from error


def _from_csv(text: str) -> list[Scores]:
    found: dict[str, list[float]] = {}
    for line in csv.DictReader(text.splitlines()):
        found.setdefault(line["condition"], []).append(float(line["score"]))
    return [scores_of(label, percents) for label, percents in found.items()]


def _from_yaml(value: Mapping[str, Any]) -> list[Scores]:
    joined = {str(k): ",".join(map(str, held)) if isinstance(held, list) else str(held) for k, held in value.items()}
    return [_parsed(label, text) for label, text in joined.items()]
