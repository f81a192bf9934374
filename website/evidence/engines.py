"""The comparison of the two engines: runs of verl and of the embedded engine in docs/evidence/engines, pair by pair.

Two runs are a pair if only the engine differs: same task, method, seed, settings, data and weights at the start. The
plan in docs/verl.md, written before the runs, names the margin and the one test of equivalence (`MARGIN`, `TESTED`).
With several pairs, differences are tested over pairs and problems as on boards (`egpo.comparisons.paired_seeds`).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from egpo.comparisons.compared_models import evaluations_of
from egpo.comparisons.paired_seeds import compare_paired_seeds, mean_over_seeds
from egpo.comparisons.result import signed
from egpo.errors import InputError
from egpo.evals.intervals import Estimate, mean_with_interval
from egpo.evals.responses import StoredEvaluation
from egpo.runs.differences import FREE, config_differences
from egpo.runs.metric_table import REWARD, STEP_S
from egpo.runs.stored import StoredRun, read_json_object
from website.evidence.groups import METRIC, read_groups
from website.evidence.page import markdown_table
from website.evidence.sittings import check_sittings
from website.evidence.stripping import STARTS

FOLDER = "engines"
TESTED, MARGIN, LEVEL = "bfcl", 0.05, 0.90
"""The task, the margin and the level of the interval of the equivalence test that docs/verl.md plans."""
_MAY_DIFFER = (*FREE, "engine", "verl")
_EMBEDDED_STAGES = {"sampling": "sample", "measuring": "measure", "judging": "judge", "update": "update"}
_VERL_STAGES = {
    "generation": "gen",
    "old log-probabilities": "old_log_prob",
    "advantages": "adv",
    "update": "update_actor",
    "weights to vLLM": "update_weights",
    "checkpoint": "save_checkpoint",
}
_ALLOCATED = "actor/perf/max_memory_allocated_gb"
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class EnginePair:
    """The runs of one task, method and seed on both engines."""

    task: str
    method: str
    seed: int
    embedded: StoredRun
    verl: StoredRun

    def values(self, exam: str) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return the accuracy of each problem, of the embedded engine's policy and of verl's."""
        embedded, verl = (METRIC.by_problem(_evaluation(run, exam).samples) for run in (self.embedded, self.verl))
        if embedded.keys() != verl.keys():
            what = f"{self.embedded.name} and {self.verl.name} were evaluated on different problems ({exam})"
            raise InputError(what, where=str(self.verl.folder.path), fix="evaluate both on the same problems")
        return embedded, verl

    @cached_property
    def exams(self) -> list[str]:
        """The names of the evaluations that both runs have, sampled ones first."""
        shared = {one.exam for one in evaluations_of(self.embedded)} & {one.exam for one in evaluations_of(self.verl)}
        return sorted(shared, key=lambda name: ("greedy" in name, name))


@dataclass(frozen=True)
class EngineDifference:
    """Accuracy on verl minus accuracy on the embedded engine, over some pairs, in one exam.

    `within`: the interval at `LEVEL`; None for one pair, whose interval is over problems alone.
    """

    exam: str
    methods: Sequence[str]
    embedded: Sequence[float]
    verl: Sequence[float]
    delta: Estimate
    within: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """Return the outcome of two one-sided tests against the margin."""
        if self.within is None:
            return "not tested"
        low, high = self.within
        if low > -MARGIN and high < MARGIN:
            return "equivalent"
        return "different" if low > MARGIN or high < -MARGIN else "inconclusive"


def read_pairs(folder: Path) -> list[EnginePair]:
    """Return the pairs, sorted by task, method and seed. Raise InputError if the runs of a pair may not be compared, or
    if there are runs that the sittings do not name."""
    groups = read_groups(folder)
    check_sittings(folder, {f"{group.task}/{run.name}": run for group in groups for run in group.runs})
    found: dict[tuple[str, str, int], dict[str, StoredRun]] = {}
    for group in groups:
        for run in group.runs:
            seed = run.provenance.seed if run.provenance else -1
            engine = str(run.config.get("engine", "local"))
            sides = found.setdefault((group.task, run.setting("algorithm", "estimator"), seed), {})
            if engine in sides:
                what = f"{sides[engine].name} and {run.name} are the same run on the same engine"
                raise InputError(what, where=str(run.folder.path), fix="remove one of them")
            sides[engine] = run
    pairs = [EnginePair(*key, runs["local"], runs["verl"]) for key, runs in sorted(found.items()) if len(runs) == 2]
    for pair in pairs:
        _refuse_unfair(pair)
    return pairs


def verl_runs(folder: Path) -> list[StoredRun]:
    """Return the runs on verl, those without a counterpart included."""
    runs = (run for group in read_groups(folder) for run in group.runs)
    return sorted((run for run in runs if run.config.get("engine") == "verl"), key=lambda run: run.name)


def difference(pairs: Sequence[EnginePair], exam: str) -> EngineDifference:
    """Return the difference of the engines over these pairs, with its intervals."""
    both = [pair.values(exam) for pair in pairs]
    keys = sorted(both[0][0])
    if any(sorted(embedded) != keys for embedded, _ in both):
        where = str(pairs[0].verl.folder.path.parent)
        raise InputError(f"the runs were evaluated on different problems ({exam})", where=where, fix="evaluate again")
    embedded_SP, verl_SP = (
        np.array([[side[key] for key in keys] for side in sides]) for sides in zip(*both, strict=True)
    )
    means = embedded_SP.mean(1).tolist(), verl_SP.mean(1).tolist()
    methods = list(dict.fromkeys(pair.method for pair in pairs))
    if len(pairs) == 1:
        delta = mean_with_interval((verl_SP - embedded_SP)[0], bounds=(-1.0, 1.0))
        assert delta is not None
        return EngineDifference(exam, methods, *means, delta, None)
    delta = compare_paired_seeds(embedded_SP, verl_SP).delta
    _, spread = mean_over_seeds(verl_SP - embedded_SP)
    reach = spread.reach(1 - LEVEL)
    return EngineDifference(exam, methods, *means, delta, (delta.value - reach, delta.value + reach))


def engines_part(folder: Path) -> str:
    """Return the generated part of docs/verl.md, in Markdown."""
    pairs = read_pairs(folder)
    parts = [
        *_answer(pairs),
        _accuracies(pairs),
        _rewards(pairs),
        _seconds(pairs),
        _starts(verl_runs(folder)),
        *_ends(folder),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _evaluation(run: StoredRun, exam: str) -> StoredEvaluation:
    found = [one for one in evaluations_of(run) if one.exam == exam]
    if len(found) != 1:
        what = f"there are {len(found)} evaluations `{exam}` of this run"
        raise InputError(what, where=str(run.folder.path), fix="strip it again")
    return found[0]


def _refuse_unfair(pair: EnginePair) -> None:
    both = pair.embedded, pair.verl
    differing = [
        str(one)
        for one in config_differences(pair.embedded.config_yaml, pair.verl.config_yaml)
        if not any(f"{one.key}.".startswith(f"{section}.") for section in _MAY_DIFFER)
    ]
    started = [read_json_object(run.folder.stages)["jobs"]["train"]["inputs"] for run in both]
    differing += [f"{name} at the start" for name in ("weights", "data") if started[0][name] != started[1][name]]
    if differing:
        what = f"{both[0].name} and {both[1].name} differ in more than the engine: {'; '.join(differing)}"
        raise InputError(what, where=str(both[1].folder.path), fix="compare runs of the same recipe and cold start")


def _of_task(pairs: Sequence[EnginePair]) -> dict[str, list[EnginePair]]:
    found: dict[str, list[EnginePair]] = {}
    for pair in pairs:
        found.setdefault(pair.task, []).append(pair)
    return found


def _tested_exam(pair: EnginePair) -> str:
    """Return the name of the sampled evaluation of the tested task. (Its runs are evaluated on unseen cases, too.)"""
    return next(
        one.exam
        for one in evaluations_of(pair.verl)
        if one.header.get("task") == TESTED and one.section("sampling").get("temperature")
    )


def _answer(pairs: Sequence[EnginePair]) -> Iterator[str]:
    tested = [pair for pair in pairs if pair.task == TESTED]
    if len(tested) < 2:
        yield f"The planned test needs several pairs of runs on `{TESTED}`, and there are {len(tested)}."
        return
    found = difference(tested, _tested_exam(tested[0]))
    assert found.within is not None
    low, high = (signed(end, is_share=True) for end in found.within)
    words = {
        "equivalent": "The engines are equivalent within the margin.",
        "different": "The engines differ by more than the margin.",
        "inconclusive": "The test is inconclusive: the interval exceeds the margin.",
    }
    yield (
        f"**{words[found.verdict]}** Sampled accuracy on held-out cases of tool calls, verl minus embedded, over "
        f"{len(tested)} pairs and {found.delta.num_problems} problems: {signed(found.delta.value, is_share=True)} "
        f"points, {100 * LEVEL:.0f} % interval {low} to {high}, margin {100 * MARGIN:.0f} points."
    )


def _accuracies(pairs: Sequence[EnginePair]) -> str:
    head = ["exam", "method", "embedded, by seed", "verl, by seed", "verl - embedded, 95 %", "90 %"]
    rows = []
    for of_task in _of_task(pairs).values():
        for exam in of_task[0].exams:
            methods = list(dict.fromkeys(pair.method for pair in of_task))
            for chosen in [methods, *([name] for name in methods if len(methods) > 1)]:
                rows.append(_difference_cells(difference([pair for pair in of_task if pair.method in chosen], exam)))
    return markdown_table(head, rows)


def _difference_cells(found: EngineDifference) -> list[str]:
    by_seed = [", ".join(f"{100 * value:.1f}" for value in side) for side in (found.embedded, found.verl)]
    ends = (found.delta.low, found.delta.high), found.within or (None, None)
    value = signed(found.delta.value, is_share=True)
    intervals = ["" if low is None or high is None else _span(low, high) for low, high in ends]
    return [
        found.exam,
        " and ".join(f"`{name}`" for name in found.methods),
        *by_seed,
        f"{value} ({intervals[0]})" if intervals[0] else f"{value} (nothing varies)",
        intervals[1],
    ]


def _span(low: float, high: float) -> str:
    return f"{signed(low, is_share=True)} to {signed(high, is_share=True)}"


def _rewards(pairs: Sequence[EnginePair]) -> str:
    """Return the mean reward of the sampled responses at some steps, over the seeds."""
    last = max(int(pair.verl.planned_steps or 0) for pair in pairs)
    steps = sorted({1, *range(4, last + 1, 4), last})
    rows = []
    for task, of_task in _of_task(pairs).items():
        for method in dict.fromkeys(pair.method for pair in of_task):
            chosen = [pair for pair in of_task if pair.method == method]
            for label, runs in (("embedded", [p.embedded for p in chosen]), ("verl", [p.verl for p in chosen])):
                cells = [_mean([_at(run, step) for run in runs]) for step in steps]
                rows.append([f"{task}, `{method}`", label, *cells])
    return markdown_table(["mean reward of the training responses at step", "", *map(str, steps)], rows)


def _at(run: StoredRun, step: int) -> float | None:
    return next((line[REWARD] for line in run.metrics if line.get("step") == step and REWARD in line), None)


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.2f}" if known else ""


def _seconds(pairs: Sequence[EnginePair]) -> str:
    """Return seconds per step by stage. The first step of each launch is left out: it has work that is done once."""
    stages = list(dict.fromkeys([*_EMBEDDED_STAGES, *_VERL_STAGES]))
    rows = []
    for task, of_task in _of_task(pairs).items():
        for label, runs, names in (
            ("embedded", [pair.embedded for pair in of_task], _EMBEDDED_STAGES),
            ("verl", [pair.verl for pair in of_task], _VERL_STAGES),
        ):
            lines = [line for run in runs for line in _usual_steps(run)]
            if lines:
                found = {
                    stage: fmean(line.get(f"timing_s/{key}", 0.0) for line in lines) for stage, key in names.items()
                }
                whole = fmean(line[STEP_S] for line in lines)
                cells = [f"{found[stage]:.2f}" if stage in found else "" for stage in stages]
                rows.append([task, label, f"{whole:.2f}", *cells, f"{whole - sum(found.values()):.2f}"])
    return markdown_table(["seconds per step", "", "whole step", *stages, "other and waiting"], rows)


def _usual_steps(run: StoredRun) -> list[Mapping[str, float]]:
    launches = run.provenance
    first = {1} | {launch.after_step + 1 for launch in (launches.resumptions if launches else ())}
    return [line for line in run.timings if STEP_S in line and line.get("step") not in first]


def _starts(runs: Sequence[StoredRun]) -> str:
    """Return the start of each launch of verl in seconds, and the trainer's peak of memory."""
    rows = []
    for run in runs:
        path = run.folder.verl / STARTS
        starts = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
        peak = max((line[_ALLOCATED] for line in run.timings if _ALLOCATED in line), default=None)
        for start in starts:
            stages = ", ".join(f"{name} {seconds:.0f}" for name, seconds in start["stages"].items())
            shown = "" if peak is None else f"{peak:.1f}"
            rows.append([run.name, start["time"][11:19], stages, f"{start['seconds']:.0f}", str(start["step"]), shown])
    head = ["run", "started (UTC)", "stages begin after, s", "step recorded after, s", "step", "trainer's memory, GB"]
    return markdown_table(head, rows) if rows else ""


def _ends(folder: Path) -> Iterator[str]:
    """Yield which runs were resumed, and which have no counterpart."""
    paired = {run.name for pair in read_pairs(folder) for run in (pair.embedded, pair.verl)}
    runs = [run for group in read_groups(folder) for run in group.runs]
    resumed = [
        f"`{run.name}` after step {', '.join(str(one.after_step) for one in run.provenance.resumptions)}"
        for run in runs
        if run.provenance and run.provenance.resumptions
    ]
    alone = [f"`{run.name}`" for run in runs if run.name not in paired]
    yield f"Resumed: {', '.join(resumed) or 'none'}. Runs without a counterpart: {', '.join(alone) or 'none'}."
