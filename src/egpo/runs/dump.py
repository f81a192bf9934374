"""`rollouts/step_N.jsonl`: every response of a step with its verdict and entropies, one JSON object per line.

The keys `input`, `output`, `gts`, `score`, `step` and `acc` are those of verl's dumps of rollouts, so that tools for
verl's dumps, such as `egpo audit rewards`, read these files too.
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
    """The tokens from `start` (included) to `end` (excluded) of one segment. In the file it is `[name, start, end]`."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class TokenAlternatives:
    """The likeliest tokens at one position, as (text, probability) in descending order; written as
    `[token, sampled, [[text, probability], ...]]`.

    `token` is the position in the response, from 0; `sampled` the place of the sampled token among the likeliest, -1 if
    it is not one of them. Probabilities are those of the distribution that was sampled from.
    """

    token: int
    sampled: int
    likeliest: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class TurnSpan:
    """The tokens of one turn of an episode, from `start` (included) to `end` (excluded), and the mean entropy of its
    segments in nats. In the file it is `[start, end, {segment: entropy}]`."""

    start: int
    end: int
    entropy: Mapping[str, float]


@dataclass(frozen=True)
class RolloutRecord:
    """One sampled response with its prompt, reward and entropies. Unknown values are None or empty."""

    input: str
    """The prompt, as text."""
    output: str
    """The response as the checker received it."""
    gts: Any
    """The ground truth that the checker compares the response with."""
    score: float
    """The reward of the response."""
    step: int
    acc: bool
    """Whether the response is fully correct."""
    reason: str
    """The checker's reason for the score, such as `correct` or `no_answer`."""
    problem: str
    """Key of the problem. Responses with the same key form a group."""
    sample: int
    """Index of the response in its group, from 0."""
    advantage: float | None = None
    failed: bool = False
    """Whether the checker itself failed; the score is then meaningless."""
    finished: bool = True
    """Whether the response ended by itself, without being truncated."""
    data_source: str = ""
    ability: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)
    segments: Mapping[str, float | None] = field(default_factory=dict)
    """Mean entropy of `thinking`, `answer` and `response`, in nats; None if the segment is empty."""
    tokens: Sequence[str] = ()
    """The text of each token of the response. The joined texts equal `output`; of an episode, those of each turn equal
    the turn's text: what the environment wrote has no tokens here."""
    token_entropy: Sequence[float | None] = ()
    """Entropy at each token in nats, rounded to four decimals; None if it is not finite."""
    token_segment: Sequence[TokenSpan] = ()
    token_alternatives: Sequence[TokenAlternatives] = ()
    """The likeliest tokens at some positions of high entropy; empty unless the recipe sets `rollout.alternatives`."""
    episode: Mapping[str, Any] | None = None
    """The stored record of an episode: turns, calls, results, changes of state, verdict. None for a single response."""
    turns: Sequence[TurnSpan] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


def token_spans(names: Iterable[str | None]) -> tuple[TokenSpan, ...]:
    """Return one span for each sequence of tokens with the same segment name; tokens named None belong to no span."""
    runs = groupby(enumerate(names), key=lambda place: place[1])
    found = [(name, [position for position, _ in run]) for name, run in runs]
    return tuple(TokenSpan(name, places[0], places[-1] + 1) for name, places in found if name is not None)


def write_dump(path: Path, records: Iterable[RolloutRecord]) -> None:
    """Write the responses of a step to a file. A failure (a full disk, objects that JSON cannot represent) only causes
    a warning, because training does not depend on this file."""
    try:
        content = b"".join(encoded(_as_line(record)) for record in records)
        path.parent.mkdir(exist_ok=True)  # without `parents`: a run folder that was removed is not created again
        write_atomically(path, content)
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        warn_once("rollouts not dumped", f"{path}: rollouts are not written ({reason}); training continues")


def read_dump(path: Path) -> list[RolloutRecord]:
    """Return every complete record of a file of rollouts. Unknown keys are ignored; a missing key is an InputError."""
    return [_as_record(line.value, f"{path}, line {line.number}") for line in read_lines(path)]


def _as_line(record: RolloutRecord) -> dict[str, Any]:
    """Return the object of a record. Alternatives, episode and turns are left out if there are none."""
    line = {item.name: getattr(record, item.name) for item in fields(record)} | {
        "score": _finite(record.score),
        "advantage": _finite(record.advantage),
        "num_tokens": record.num_tokens,
        "extra_info": dict(record.extra_info),
        "segments": {name: _finite(entropy) for name, entropy in record.segments.items()},
        "token_entropy": [_finite(entropy, ENTROPY_DIGITS) for entropy in record.token_entropy],
        "token_segment": [[span.name, span.start, span.end] for span in record.token_segment],
    }
    rarely = {
        "token_alternatives": [_alternatives_as_json(found) for found in record.token_alternatives],
        "episode": record.episode,
        "turns": [[turn.start, turn.end, _rounded(turn.entropy)] for turn in record.turns],
    }
    usual = {name: value for name, value in line.items() if name not in rarely}
    return usual | {name: value for name, value in rarely.items() if value}


def _alternatives_as_json(found: TokenAlternatives) -> list[Any]:
    return [found.token, found.sampled, [[text, round(share, ENTROPY_DIGITS)] for text, share in found.likeliest]]


def _rounded(entropy: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, ENTROPY_DIGITS) for name, value in entropy.items() if math.isfinite(value)}


def _finite(value: float | None, digits: int | None = None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(value) if digits is None else round(float(value), digits)


def _as_record(value: Mapping[str, Any], where: str) -> RolloutRecord:
    known = {item.name: value[item.name] for item in fields(RolloutRecord) if item.name in value}
    try:
        spans = tuple(TokenSpan(*span) for span in known.get("token_segment", ()))
        tuples = {name: tuple(known.get(name, ())) for name in ("tokens", "token_entropy")}
        alternatives = tuple(
            TokenAlternatives(token, sampled, tuple((text, share) for text, share in likeliest))
            for token, sampled, likeliest in known.get("token_alternatives", ())
        )
        turns = tuple(TurnSpan(start, end, entropy) for start, end, entropy in known.get("turns", ()))
        parts = {"token_segment": spans, "token_alternatives": alternatives, "turns": turns}
        return RolloutRecord(**(known | tuples | parts))
    except (TypeError, ValueError) as error:
        what = f"the line is not a rollout record ({error})"
        raise InputError(what, where=where, fix="give a file from the `rollouts/` of a run") from error
