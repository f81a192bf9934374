"""Was it fair? What the runs of a comparison must share, and what they do not.

What must be known to read a comparison, though it makes none unfair.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from egpo.comparisons.conditions import FACTOR, Condition, is_under, setting_differences
from egpo.comparisons.entrants import Entrant, Sitting
from egpo.comparisons.values import Metric, RunFigures
from egpo.errors import ConfigError, Fault
from egpo.files import ROWS

Kind = Literal["setting", "reward", "data", "evaluation", "seed"]
_ABSENT, _UNPROVED = "nothing", "unproved"
_SHORT = 40


@dataclass(frozen=True)
class Inequality:
    """Something that is not the same in all runs: its value by the run's name."""

    kind: Kind
    key: str
    values: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.kind} {self.key}: {by_value(self.values)}"


def by_value(values: Mapping[str, str]) -> str:
    """Who has which: `1e-06 (grpo, egpo); 2e-06 (dapo)`."""
    runs_of: dict[str, list[str]] = {}
    for run, value in values.items():
        runs_of.setdefault(value, []).append(run)
    return "; ".join(f"{value} ({', '.join(runs)})" for value, runs in runs_of.items())


def inequalities(conditions: Sequence[Condition], factors: Sequence[str] = FACTOR) -> list[Inequality]:
    """Everything beyond the factor: settings, the reward's among them, digests of the data, and the evaluation."""
    entrants = [run for condition in conditions for run in condition.runs]
    runs = [entrant for entrant in entrants if entrant.is_trained]
    return [*_of_settings(runs, factors), *_of_data(runs), *_of_evaluations(entrants), *_of_seeds(conditions)]


def refuse(found: Sequence[Inequality]) -> None:
    """ConfigError with all of them at once, if there are any."""
    if found:
        fix = "declare what was meant to differ by --factor KEY, or go on with --allow: it is then said in every output"
        faults = [Fault(str(inequality), "not a fair comparison") for inequality in found]
        raise ConfigError([*faults, Fault(f"{len(found)} differences beyond the factor", "egpo compare", fix)])


def _of_settings(runs: Sequence[Entrant], factors: Sequence[str]) -> Iterator[Inequality]:
    found: dict[str, dict[str, str]] = {}
    for run in runs[1:]:
        for difference in setting_differences(runs[0], run):
            if not is_under(difference.key, factors):
                values = found.setdefault(difference.key, {one.name: difference.old for one in runs})
                values[run.name] = difference.new
    for key, values in found.items():
        yield Inequality("reward" if is_under(key, ("task", "reward")) else "setting", key, values)


def _of_data(runs: Sequence[Entrant]) -> Iterator[Inequality]:
    """A run that cannot prove its data is no equal of any. Digests of rows are compared with digests of rows; beside
    one of a file's bytes, whose file is gone, nothing can be decided."""
    digests = {run.name: run.provenance.data if run.provenance else {} for run in runs}
    rows = {run.name: run.row_digests or digests[run.name] for run in runs}
    names = dict.fromkeys(name for known in digests.values() for name in known) or dict.fromkeys(
        ["digests"] * bool(runs)
    )
    for name in names:
        recorded, of_rows = (
            {run: known.get(name, _ABSENT) if known else _UNPROVED for run, known in told.items()}
            for told in (digests, rows)
        )
        equal = len(set(recorded.values())) == 1 or len(set(of_rows.values())) == 1
        if not equal or _UNPROVED in recorded.values():
            yield Inequality("data", name, _shown_digests(of_rows))


def _shown_digests(values: Mapping[str, str]) -> dict[str, str]:
    """The beginning of each. Where digests of rows and of bytes meet, each says of what it is."""
    kinds = {value.startswith(ROWS) for value in values.values() if value not in (_ABSENT, _UNPROVED)}
    notes = {True: " (of rows)", False: " (of bytes of a file that is gone: cannot be decided)"}
    return {
        run: value.removeprefix(ROWS)[:12] + (notes[value.startswith(ROWS)] if len(kinds) > 1 else "")
        for run, value in values.items()
    }


def _of_evaluations(runs: Sequence[Entrant]) -> Iterator[Inequality]:
    """Between runs, and between the evaluations of one."""
    told = {run.name: [_asked(sitting) for sitting in run.sittings] for run in runs}
    plain = {run.name for run in runs if not run.is_trained}
    keys = dict.fromkeys(key for of_run in told.values() for asked in of_run for key in asked)
    for key in keys:
        stepless = plain if key == "step" else ()
        asked_of = {run: asked for run, asked in told.items() if run not in stepless}
        values = {run: list(dict.fromkeys(one.get(key, _ABSENT) for one in asked)) for run, asked in asked_of.items()}
        if len({value for of_run in values.values() for value in of_run}) > 1:
            shown = {run: " and ".join(map(_shortened, of_run)) for run, of_run in values.items()}
            yield Inequality("evaluation", key, shown)


def _asked(sitting: Sitting) -> dict[str, str]:
    """What decides an evaluation. Its seed does not; a path to data says less than the digest of its problems. Only
    the embedded engine knows entropies: an evaluation without any was asked of a server, which writes prompts and
    samples in its own way."""
    asked = {key: sitting.header.get(key) for key in ("task", "split", "data", "sandbox", "step")}
    asked["engine"] = "embedded" if sitting.section("entropy") else "server"
    for section, aside in (("task_settings", "source"), ("sampling", "seed")):
        asked |= {f"{section}.{key}": value for key, value in sitting.section(section).items() if key != aside}
    return {key: _ABSENT if value is None else str(value) for key, value in asked.items()}


def _shortened(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def _of_seeds(conditions: Sequence[Condition]) -> Iterator[Inequality]:
    """One seed twice is one training told twice, and no second seed."""
    for condition in conditions:
        seeds = {run.name: run.seed for run in condition.runs if run.seed is not None}
        twice = {name: str(seed) for name, seed in seeds.items() if list(seeds.values()).count(seed) > 1}
        if twice:
            yield Inequality("seed", f"twice in {condition.label}", twice)


Figures = Mapping[Metric, Sequence[Sequence[RunFigures]]]


def notes_on(conditions: Sequence[Condition], figures: Figures) -> list[str]:
    return [
        *_on_seeds(conditions),
        *_on_failures(conditions),
        *_on_problems(figures),
        *_on_versions(conditions),
    ]


def _on_seeds(conditions: Sequence[Condition]) -> Iterator[str]:
    counts = [len(condition.runs) for condition in conditions if condition.runs[0].is_trained]
    if not counts:
        return
    if max(counts) == 1:
        yield (
            "One training run each: the intervals are over problems. Of other training seeds they say nothing, however "
            "often a run is evaluated."
        )
    elif min(counts) == 1:
        yield "A condition with one training run is taken to vary with its seed as much as the other does."
    elif min(counts) == 2:
        yield "Two training seeds tell little of how much seeds matter: the intervals are as wide as that leaves them."


def _on_failures(conditions: Sequence[Condition]) -> Iterator[str]:
    """What the checker or the server failed is no chance sample: long answers time out first."""
    for run in (run for condition in conditions for run in condition.runs):
        samples = [sample for sitting in run.sittings for sample in sitting.samples]
        if num_failed := sum(sample.failed for sample in samples):
            yield f"{num_failed:,} of {len(samples):,} responses of {run.name} failed and count in no figure."


def _on_problems(figures: Figures) -> Iterator[str]:
    """Where runs have values for other problems, only the shared ones count."""
    for metric, conditions in figures.items():
        keys = {run.run: set(run.by_problem) for runs in conditions for run in runs}
        shared = set.intersection(*keys.values())
        if any(len(found) > len(shared) for found in keys.values()):
            held = ", ".join(f"{name} {len(found)}" for name, found in keys.items())
            named = f" with a value of {metric.name}" if len(figures) > 1 else ""
            yield f"All runs share {len(shared)} problems{named} ({held}); only those count in a contrast."


def _on_versions(conditions: Sequence[Condition]) -> Iterator[str]:
    runs = [run for condition in conditions for run in condition.runs if run.is_trained]
    told = [_ground(run) for run in runs]
    for name in dict.fromkeys(name for ground in told for name in ground):
        values = {run.name: ground.get(name, "unknown") for run, ground in zip(runs, told, strict=True)}
        if len(set(values.values())) > 1:
            yield f"Not the same {name}: {by_value(values)}."


def _ground(run: Entrant) -> dict[str, str]:
    """What runs were made with: packages, code, machine."""
    if run.provenance is None:
        return {}
    start = run.provenance.start
    commit = "unknown" if start.git is None else start.git.commit[:12] + " with changes" * start.git.dirty
    return {**start.versions, "commit": commit, "device": start.hardware.gpu or start.hardware.cpu}
