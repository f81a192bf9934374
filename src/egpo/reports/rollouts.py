"""Data inside a page, where a model's text must stay text.

The responses of a step in few bytes: a prompt once a group, tokens as lengths, entropies in hundredths of a nat.

Which rollouts go into the page: some steps of each run, whole groups, within a bound on their bytes.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.reports.run import ReportedRun
from egpo.runs.dump import RolloutRecord, read_dump

# `<` and `>` end or open markup, `&` starts a reference where a parser takes the block for one; inside JSON they can
# only stand in strings, where an escape means the same.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def as_json(value: Any) -> str:
    """Strict JSON, without spaces, that can stand in a <script> block whatever it holds."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def num_bytes(value: Any) -> int:
    """What it takes in the page."""
    return len(as_json(value).encode("utf-8", "backslashreplace"))


UNKNOWN = -1
"""Stands for an entropy that was not finite."""


def encode_groups(records: Sequence[RolloutRecord]) -> list[dict[str, Any]]:
    """One object for each prompt, with its responses in their order; `of` is their number."""
    groups: dict[tuple[str, str], list[RolloutRecord]] = {}
    for record in records:
        groups.setdefault((record.problem, record.input), []).append(record)
    return [_encode_group(members) for members in groups.values()]


def _encode_group(members: Sequence[RolloutRecord]) -> dict[str, Any]:
    first = members[0]
    truth = first.gts if isinstance(first.gts, str) else json.dumps(first.gts, ensure_ascii=False, indent=1)
    return {
        "problem": first.problem,
        "source": first.data_source,
        "prompt": first.input,
        "truth": truth,
        "of": len(members),
        "responses": [_encode_response(record) for record in members],
    }


def _encode_response(record: RolloutRecord) -> dict[str, Any]:
    whole = bool(record.tokens) and "".join(record.tokens) == record.output
    entropies = [UNKNOWN if entropy is None else round(100 * entropy) for entropy in record.token_entropy]
    return {
        "text": record.output,
        "lengths": [utf16_length(token) for token in record.tokens] if whole else [],
        "entropies": entropies if whole and len(entropies) == len(record.tokens) else [],
        "spans": [[span.name, span.start, span.end] for span in record.token_segment] if whole else [],
        "segments": {name: _short(entropy) for name, entropy in record.segments.items() if entropy is not None},
        "sample": record.sample,
        "score": _short(record.score),
        "advantage": _short(record.advantage),
        "correct": record.acc,
        "failed": record.failed,
        "finished": record.finished,
        "reason": record.reason,
        "tokens": record.num_tokens,
    }


def utf16_length(text: str) -> int:
    """As JavaScript counts: what lies above the first 65,536 characters takes two places."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


BYTES = 3_500_000
"""Of all rollouts in a page together."""
_FEWEST_STEPS, _MOST_STEPS = 3, 24
_PREFIX = "step_"


@dataclass(frozen=True)
class StepRollouts:
    """The rollouts of one step as JSON, how many groups of it are in there, and how often which entropy."""

    step: int
    json: str
    num_groups: int
    num_all_groups: int
    entropies: Counter[int]


@dataclass(frozen=True)
class RunRollouts:
    """`num_all_steps` were kept on disk; those in `steps` are in the page."""

    run: ReportedRun
    steps: Sequence[StepRollouts]
    num_all_steps: int


@dataclass(frozen=True)
class Rollouts:
    """`scale`: the entropy, in nats, from which on a token's shade is full."""

    runs: Sequence[RunRollouts]
    scale: float

    @property
    def index(self) -> dict[str, Any]:
        """What the page must know before any step is opened."""
        runs = [
            {
                "place": found.run.place,
                "name": found.run.name,
                "steps": [
                    {"step": step.step, "groups": step.num_groups, "of": step.num_all_groups} for step in found.steps
                ],
                "of": found.num_all_steps,
            }
            for found in self.runs
            if found.steps
        ]
        return {"runs": runs, "scale": self.scale}


def embed_rollouts(runs: Sequence[ReportedRun], most_bytes: int = BYTES) -> Rollouts:
    """Each run has the same share of the bytes."""
    dumps = [dumped_steps(run) for run in runs]
    share = most_bytes // max(1, sum(bool(found) for found in dumps))
    found = [_embed_run(run, steps, share) for run, steps in zip(runs, dumps, strict=True)]
    entropies = sum((step.entropies for run in found for step in run.steps), Counter[int]())
    return Rollouts(found, full_shade(entropies))


def dumped_steps(run: ReportedRun) -> list[int]:
    """The steps whose rollouts lie in the folder."""
    names = [path.stem for path in run.folder.rollouts.glob(f"{_PREFIX}*.jsonl")]
    return sorted(int(name.removeprefix(_PREFIX)) for name in names if name.removeprefix(_PREFIX).isdecimal())


def spread_evenly(steps: Sequence[int], count: int) -> list[int]:
    """The first, the last, and others at equal distances between them: `count` at most, and no step twice."""
    if len(steps) <= count:
        return list(steps)
    places = [round(part * (len(steps) - 1) / (count - 1)) for part in range(count)]
    return [steps[place] for place in places]


def full_shade(entropies: Mapping[int, int]) -> float:
    """The 99th percentile in nats, rounded up to half a nat; 1 where none is known. Counts by hundredths of a nat."""
    known = {entropy: count for entropy, count in entropies.items() if entropy != UNKNOWN}
    left = 0.99 * sum(known.values())
    for entropy in sorted(known):
        left -= known[entropy]
        if left <= 0:
            return max(0.5, math.ceil(entropy / 50) / 2)
    return 1.0


def _embed_run(run: ReportedRun, steps: Sequence[int], share: int) -> RunRollouts:
    """As many steps as have room whole, going by the first one's size; never fewer than three, then with fewer
    groups."""
    if not steps:
        return RunRollouts(run, [], 0)
    size = num_bytes(_groups(run.folder.rollouts_of(steps[0])))
    chosen = spread_evenly(steps, max(_FEWEST_STEPS, min(_MOST_STEPS, share // size)))
    embedded = [_embed_step(run.folder.rollouts_of(step), step, share // len(chosen)) for step in chosen]
    return RunRollouts(run, embedded, len(steps))


def _embed_step(path: Path, step: int, share: int) -> StepRollouts:
    groups = _groups(path)
    kept = list(_within(groups, share)) or [_shortened(group, share) for group in groups[:1]]
    entropies = Counter(
        entropy for group in kept for response in group["responses"] for entropy in response["entropies"]
    )
    return StepRollouts(step, as_json(kept), len(kept), len(groups), entropies)


def _groups(path: Path) -> list[dict[str, Any]]:
    return encode_groups(read_dump(path))


def _within(groups: Sequence[dict[str, Any]], share: int) -> Iterator[dict[str, Any]]:
    """The first groups, while they have room together."""
    for group in groups:
        share -= num_bytes(group) + 1  # and a comma
        if share < 0:
            return
        yield group


def _shortened(group: dict[str, Any], share: int) -> dict[str, Any]:
    """A group too large by itself, with as many of its responses as have room, and one at least."""
    room = share - num_bytes(group | {"responses": []})
    responses = list(_within(group["responses"], room)) or group["responses"][:1]
    return group | {"responses": responses}
