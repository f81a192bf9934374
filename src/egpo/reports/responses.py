"""Which responses are in the page: rollouts of some steps of each run, and evaluations, within a number of bytes.

Rollouts get three quarters of the bytes and evaluations one quarter; what one does not need, the other gets. Each run,
and each evaluation, has an equal share. Of a run, as many steps as fit are kept, between 3 and 24: the first, the last,
and others at equal distances. Of a step or an evaluation that does not fit whole, the first groups are kept.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from egpo.evals.responses import SampleRecord, read_samples
from egpo.reports.curves import ReportedRun
from egpo.reports.evaluations import ShownEvaluation
from egpo.reports.response_json import UNKNOWN, as_json, encode_groups, num_bytes
from egpo.runs.dump import RolloutRecord, read_dump

_FEWEST_STEPS, _MOST_STEPS = 3, 24
_ROLLOUTS_FRAC = 0.75
Records = Sequence[RolloutRecord | SampleRecord]


@dataclass(frozen=True)
class ResponseSet:
    """The responses of one step or of one evaluation as JSON.

    `num_groups` of `num_all_groups` groups are kept; `is_cut` if one of them lacks responses. `entropies` counts tokens
    by entropy in hundredths of a nat.
    """

    label: str
    json: str
    num_groups: int
    num_all_groups: int
    is_cut: bool
    entropies: Counter[int]

    @property
    def size(self) -> int:
        return len(self.json.encode("utf-8", "backslashreplace"))


@dataclass(frozen=True)
class ResponseSource:
    """A run with the steps that are in the page, or an evaluation as a single set. `num_all_sets` are on disk."""

    kind: str
    name: str
    place: int | None
    sets: Sequence[ResponseSet]
    num_all_sets: int

    @property
    def left_out(self) -> str:
        """What of this source is not in the page; empty if all is."""
        parts = []
        if len(self.sets) < self.num_all_sets:
            parts.append(f"{self.num_all_sets - len(self.sets)} of {self.num_all_sets} recorded steps")
        missing, known = (sum(found.num_all_groups - found.num_groups for found in self.sets), self._num_groups)
        if missing:
            where = "of the kept steps" if self.kind == "rollouts" else "of the evaluation"
            parts.append(f"{missing} of the {known} problems {where}")
        if any(found.is_cut for found in self.sets):
            parts.append("some responses to large groups")
        return f"{self.name}: {', '.join(parts)}" if parts else ""

    @property
    def _num_groups(self) -> int:
        return sum(found.num_all_groups for found in self.sets)


@dataclass(frozen=True)
class Responses:
    """All responses of a page. A token at `scale` nats of entropy or more has the full shade.

    `left_out_all`: the runs have responses, but not even one of each fits.
    """

    sources: Sequence[ResponseSource] = ()
    scale: float = 1.0
    left_out_all: bool = False

    @property
    def index(self) -> dict[str, Any]:
        """The sources and sets to choose from. The page reads the responses of a set when it is opened."""
        return {"sources": [_index_entry(source) for source in self.sources], "scale": self.scale}

    @property
    def left_out(self) -> list[str]:
        return [text for source in self.sources if (text := source.left_out)]


def _index_entry(source: ResponseSource) -> dict[str, Any]:
    sets = [{"label": found.label, "groups": found.num_groups, "of": found.num_all_groups} for found in source.sets]
    return {"kind": source.kind, "name": source.name, "place": source.place, "sets": sets, "of": source.num_all_sets}


def embed_responses(runs: Sequence[ReportedRun], evaluations: Sequence[ShownEvaluation], most_bytes: int) -> Responses:
    """Select responses of all runs and evaluations that have some."""
    stored = [one for one in evaluations if one.responses.is_file()]
    share = 1.0 if not stored else _ROLLOUTS_FRAC
    rollouts = _embed_rollouts(runs, int(share * most_bytes))
    left = most_bytes - sum(found.size for source in rollouts for found in source.sets)
    sources = [*rollouts, *_embed_evaluations(stored, left)]
    entropies = sum((found.entropies for source in sources for found in source.sets), Counter[int]())
    return Responses(sources, full_shade(entropies))


def _embed_rollouts(runs: Sequence[ReportedRun], most_bytes: int) -> list[ResponseSource]:
    dumped = [run for run in runs if run.stored.rollout_steps]
    found = []
    for number, run in enumerate(dumped):
        source = _embed_run(run, most_bytes // (len(dumped) - number))
        most_bytes -= sum(step.size for step in source.sets)
        found.append(source)
    return found


def _embed_run(run: ReportedRun, share: int) -> ResponseSource:
    """Keep as many whole steps as fit, estimated by the first one's size; at least three, then with fewer groups."""
    steps = run.stored.rollout_steps
    size = num_bytes(encode_groups(read_dump(run.stored.folder.rollouts_of(steps[0]))))
    chosen = spread_evenly(steps, max(_FEWEST_STEPS, min(_MOST_STEPS, share // max(1, size))))
    sets = [
        _embed_set(f"{step}", read_dump(run.stored.folder.rollouts_of(step)), share // len(chosen)) for step in chosen
    ]
    return ResponseSource("rollouts", run.name, run.place, sets, len(steps))


def _embed_evaluations(evaluations: Sequence[ShownEvaluation], most_bytes: int) -> list[ResponseSource]:
    found = []
    for number, evaluation in enumerate(evaluations):
        share = most_bytes // (len(evaluations) - number)
        kept = _embed_set(evaluation.exam.title, read_samples(evaluation.responses), share)
        most_bytes -= kept.size
        found.append(ResponseSource("evaluation", evaluation.label, evaluation.place, [kept], 1))
    return found


def _embed_set(label: str, records: Records, share: int) -> ResponseSet:
    groups = encode_groups(records)
    kept = list(_within(groups, share)) or [_shortened(group, share) for group in groups[:1]]
    responses = [response for group in kept for response in group["responses"]]
    entropies = Counter(entropy for response in responses for entropy in response.get("entropies", ()))
    is_cut = any(len(group["responses"]) < group["of"] for group in kept)
    return ResponseSet(label, as_json(kept), len(kept), len(groups), is_cut, entropies)


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
