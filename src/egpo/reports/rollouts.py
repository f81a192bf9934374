"""The rollouts inside the page: some steps of each run, in whole groups, within a limit on the number of bytes.

Responses are stored compactly: each prompt once per group, tokens as lengths, entropies in hundredths of a nat. They
are escaped JSON, so that nothing a model wrote can become markup.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.reports.curves import ReportedRun
from egpo.runs.dump import RolloutRecord, read_dump

# `<`, `>` and `&` could end the block or start markup. In JSON they occur only inside strings, where an escape has the
# same meaning.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def as_json(value: Any) -> str:
    """Return strict JSON without spaces that is safe inside a <script> block, whatever the value holds."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def num_bytes(value: Any) -> int:
    """Return the size of a value in the page, in bytes."""
    return len(as_json(value).encode("utf-8", "backslashreplace"))


UNKNOWN = -1
"""Stands for an entropy that was not finite."""


def encode_groups(records: Sequence[RolloutRecord]) -> list[dict[str, Any]]:
    """Return one object per prompt with its responses in order; `of` is the number of responses."""
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
    """Return the length as JavaScript counts it: characters above U+FFFF count twice."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


BYTES = 3_500_000
"""Limit for all rollouts of a page together."""
_FEWEST_STEPS, _MOST_STEPS = 3, 24


@dataclass(frozen=True)
class StepRollouts:
    """The rollouts of one step as JSON, the number of groups kept and of all groups, and counts of token entropies."""

    step: int
    json: str
    num_groups: int
    num_all_groups: int
    entropies: Counter[int]


@dataclass(frozen=True)
class RunRollouts:
    """The steps of a run that are in the page; `num_all_steps` have rollouts on disk."""

    run: ReportedRun
    steps: Sequence[StepRollouts]
    num_all_steps: int


@dataclass(frozen=True)
class Rollouts:
    """All rollouts of a page. A token at `scale` nats of entropy or more has the full shade."""

    runs: Sequence[RunRollouts]
    scale: float

    @property
    def index(self) -> dict[str, Any]:
        """Runs and steps to choose from; the responses of a step are read by the page when it is opened."""
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
    """Select rollouts of every run; each run gets the same share of the bytes."""
    dumps = [run.stored.rollout_steps for run in runs]
    share = most_bytes // max(1, sum(bool(found) for found in dumps))
    found = [_embed_run(run, steps, share) for run, steps in zip(runs, dumps, strict=True)]
    entropies = sum((step.entropies for run in found for step in run.steps), Counter[int]())
    return Rollouts(found, full_shade(entropies))


def spread_evenly(steps: Sequence[int], count: int) -> list[int]:
    """Return at most `count` steps: the first, the last, and others at equal distances between them."""
    if len(steps) <= count:
        return list(steps)
    places = [round(part * (len(steps) - 1) / (count - 1)) for part in range(count)]
    return [steps[place] for place in places]


def full_shade(entropies: Mapping[int, int]) -> float:
    """Return the 99th percentile in nats, rounded up to half a nat; 1 if none is known.

    `entropies` counts tokens by entropy in hundredths of a nat.
    """
    known = {entropy: count for entropy, count in entropies.items() if entropy != UNKNOWN}
    left = 0.99 * sum(known.values())
    for entropy in sorted(known):
        left -= known[entropy]
        if left <= 0:
            return max(0.5, math.ceil(entropy / 50) / 2)
    return 1.0


def _embed_run(run: ReportedRun, steps: Sequence[int], share: int) -> RunRollouts:
    """Select as many whole steps as fit, estimated by the first one's size; at least three, then with fewer groups."""
    if not steps:
        return RunRollouts(run, [], 0)
    size = num_bytes(_groups(run.stored.folder.rollouts_of(steps[0])))
    chosen = spread_evenly(steps, max(_FEWEST_STEPS, min(_MOST_STEPS, share // size)))
    embedded = [_embed_step(run.stored.folder.rollouts_of(step), step, share // len(chosen)) for step in chosen]
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
    """Yield the first groups that fit into `share` bytes together."""
    for group in groups:
        share -= num_bytes(group) + 1  # and a comma
        if share < 0:
            return
        yield group


def _shortened(group: dict[str, Any], share: int) -> dict[str, Any]:
    """Return a group that is too large by itself with as many responses as fit, and at least one."""
    room = share - num_bytes(group | {"responses": []})
    responses = list(_within(group["responses"], room)) or group["responses"][:1]
    return group | {"responses": responses}
