"""`rollouts/step_N.jsonl`: every response of a step with its verdict and its entropies, one JSON object a line.

verl's names where verl has one (`input`, `output`, `gts`, `score`, `step`, `acc`), so that whatever reads verl's dumps
reads ours, `egpo audit rewards` first of all.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import groupby
from pathlib import Path
from typing import Any

from egpo.errors import InputError, warn_once
from egpo.files import write_atomically
from egpo.runs.json_lines import encoded, read_lines

ENTROPY_DIGITS = 4


@dataclass(frozen=True)
class TokenSpan:
    """The tokens from `start` up to and without `end` belong to one segment; written as `[name, start, end]`."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class RolloutRecord:
    """One response. What is not known is None, or empty."""

    input: str
    """The prompt, as text."""
    output: str
    """The response, as the judge read it."""
    gts: Any
    """The ground truth."""
    score: float
    """The reward."""
    step: int
    acc: bool
    """Fully correct."""
    reason: str
    """Why this score: a name out of the reward's list."""
    problem: str
    """Key of the problem: responses with one key are a group."""
    sample: int
    """Place in the group, counted from 0."""
    advantage: float | None = None
    failed: bool = False
    """The checker itself failed: the score says nothing of the response."""
    finished: bool = True
    """Ended by a stop, and not cut off at the longest response."""
    data_source: str = ""
    ability: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    segments: Mapping[str, float | None] = field(default_factory=dict)
    """Mean entropy of `thinking`, `answer` and `response`, in nats; None where the segment is empty."""
    tokens: Sequence[str] = ()
    """The text of each token; joined, they are `output`."""
    token_entropy: Sequence[float | None] = ()
    """Entropy at each token in nats, to four digits; None where it is not finite."""
    token_segment: Sequence[TokenSpan] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


def token_spans(names: Iterable[str | None]) -> tuple[TokenSpan, ...]:
    """The segment of each token, as runs of equal names; None is no segment."""
    runs = groupby(enumerate(names), key=lambda place: place[1])
    found = [(name, [position for position, _ in run]) for name, run in runs]
    return tuple(TokenSpan(name, places[0], places[-1] + 1) for name, places in found if name is not None)


def write_dump(path: Path, records: Iterable[RolloutRecord]) -> None:
    """The whole file at once. What cannot be written (a full disk, a task's own objects, which JSON cannot hold) is a
    warning: training does not depend on a dump."""
    try:
        content = b"".join(encoded(_as_line(record)) for record in records)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except (OSError, TypeError, ValueError) as error:
        said = getattr(error, "strerror", None) or error
        warn_once("rollouts not dumped", f"{path}: rollouts are not kept ({said}); training goes on")


def read_dump(path: Path) -> list[RolloutRecord]:
    """Every whole line. Names that this version does not know are passed over; a missing one is an error."""
    return [_as_record(line.value, f"{path}, line {line.number}") for line in read_lines(path)]


def _as_line(record: RolloutRecord) -> dict[str, Any]:
    return {item.name: getattr(record, item.name) for item in fields(record)} | {
        "score": _finite(record.score),
        "advantage": _finite(record.advantage),
        "num_tokens": record.num_tokens,
        "extra_info": dict(record.extra_info),
        "segments": {name: _finite(entropy) for name, entropy in record.segments.items()},
        "token_entropy": [_finite(entropy, ENTROPY_DIGITS) for entropy in record.token_entropy],
        "token_segment": [[span.name, span.start, span.end] for span in record.token_segment],
    }


def _finite(value: float | None, digits: int | None = None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(value) if digits is None else round(float(value), digits)


def _as_record(value: Mapping[str, Any], where: str) -> RolloutRecord:
    known = {item.name: value[item.name] for item in fields(RolloutRecord) if item.name in value}
    try:
        spans = tuple(TokenSpan(*span) for span in known.get("token_segment", ()))
        tuples = {name: tuple(known.get(name, ())) for name in ("tokens", "token_entropy")}
        return RolloutRecord(**(known | tuples | {"token_segment": spans}))
    except TypeError as error:
        raise InputError(f"no rollout of ours ({error})", where=where, fix="give a file out of `rollouts/`") from error
