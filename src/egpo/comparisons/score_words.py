"""`GRPO=61.7±1.9x5`, `GRPO=61.0,62.5,60.1`, or a file of such figures: what `--scores` takes. In percent."""

import csv
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

from egpo.comparisons.scores import Scores
from egpo.errors import InputError

_NUMBER = r"\s*(\d+(?:\.\d+)?)\s*"
_SUMMARY = re.compile(rf"{_NUMBER}(?:(?:±|\+-|\+/-){_NUMBER}[x×]\s*(\d+)\s*)?")
_FIX = "write NAME=MEAN±SDxEVALUATIONS, as in GRPO=61.7±1.9x5, or NAME=61.0,62.5,60.1 with each evaluation"


def read_scores(words: Iterable[str]) -> list[Scores]:
    """A word that names a file is read: YAML (`GRPO: [61.0, 62.5]`, `EGPO: 61.9±0.9x5`) or CSV with the columns
    `condition` and `score`, an evaluation a line."""
    found = [scores for word in words for scores in (_from_file(Path(word)) if _is_file(word) else [_from_word(word)])]
    labels = [scores.label for scores in found]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise InputError(f"`{twice}` is there twice", where="--scores", fix="give each condition a name of its own")
    return found


def scores_of(label: str, percents: Sequence[float]) -> Scores:
    """Of each evaluation, in percent."""
    for percent in percents:
        if not 0 <= percent <= 100:
            raise InputError(f"{label}: {percent:g}", where="--scores", fix="scores are in percent, from 0 to 100")
    shares = [percent / 100 for percent in percents]
    return Scores(label, fmean(shares), stdev(shares) if len(shares) > 1 else None, len(shares), shares)


def _is_file(word: str) -> bool:
    return word.endswith((".yaml", ".yml", ".csv")) or ("=" not in word and os.path.isfile(word))


def _from_word(word: str) -> Scores:
    label, equals, value = word.partition("=")
    if not equals or not label.strip():
        raise InputError(f"`{word}`", where="--scores", fix=_FIX)
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
        raise InputError(f"`{label}={value}`", where="--scores", fix=_FIX) from error


def _summary(label: str, mean: float, sd: float, count: int) -> Scores:
    if count < 2:
        raise InputError(f"{label}: a spread of {count} evaluation", where="--scores", fix="leave it out, or give more")
    return Scores(label, scores_of(label, [mean]).mean, sd / 100, count)


def _from_file(path: Path) -> list[Scores]:
    try:
        text = path.read_text(encoding="utf-8")
        return _from_csv(text) if path.suffix == ".csv" else _from_yaml(yaml.safe_load(text))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        fix = "YAML of `NAME: [61.0, 62.5]`, or CSV with the columns condition,score"
        raise InputError(f"cannot be read ({error!s:.80})", where=str(path), fix=fix) from error


def _from_csv(text: str) -> list[Scores]:
    found: dict[str, list[float]] = {}
    for line in csv.DictReader(text.splitlines()):
        found.setdefault(line["condition"], []).append(float(line["score"]))
    return [scores_of(label, percents) for label, percents in found.items()]


def _from_yaml(value: Mapping[str, Any]) -> list[Scores]:
    joined = {str(k): ",".join(map(str, held)) if isinstance(held, list) else str(held) for k, held in value.items()}
    return [_parsed(label, text) for label, text in joined.items()]
