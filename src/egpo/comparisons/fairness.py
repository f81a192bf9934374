"""The differences between compared runs that make a comparison unfair, and notes for the reader.

Settings, reward, data and evaluation must be equal, except for the factor (the setting under comparison), and no seed
may occur twice in a condition.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from egpo.comparisons.compared_models import ComparedModel
from egpo.comparisons.conditions import FACTOR, Condition, is_under, setting_differences
from egpo.comparisons.values import ComparedMetric, RunFigures
from egpo.errors import ConfigError, Fault
from egpo.evals.responses import StoredEvaluation
from egpo.files import ROWS
from egpo.methods import METHODS, Method
from egpo.runs.stored import StoredRun

Kind = Literal["setting", "reward", "data", "evaluation", "seed"]
_ABSENT, _UNPROVED = "nothing", "unproved"
_SHORT = 40
_NUMBERED = re.compile(r"(.*?)(\d+)")


@dataclass(frozen=True)
class Inequality:
    """A property that is not equal in all runs: `key` is its name, `values` has its value for each run name."""

    kind: Kind
    key: str
    values: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.kind} {self.key}: {by_value(self.values)}"


def by_value(values: Mapping[str, str]) -> str:
    """Format values with the runs that have them, such as `1e-06 (grpo, egpo); 2e-06 (dapo)`."""
    runs_of: dict[str, list[str]] = {}
    for run, value in values.items():
        runs_of.setdefault(value, []).append(run)
    return "; ".join(f"{value} ({', '.join(together(runs))})" for value, runs in runs_of.items())


def together(runs: Sequence[str]) -> list[str]:
    """Return the names of runs, where those of three or more that differ in a last number only are one name.

    It is written as a shell reads it: `grpo-s{0,1,3}` means `grpo-s0`, `grpo-s1` and `grpo-s3`.
    """
    numbers: dict[str, list[str]] = {}
    for run in runs:
        found = _NUMBERED.fullmatch(run)
        numbers.setdefault(found[1] if found else run, []).append(found[2] if found else "")
    names = {stem: f"{stem}{{{','.join(found)}}}" for stem, found in numbers.items()}
    alone = {stem: [f"{stem}{number}" for number in found] for stem, found in numbers.items()}
    return [name for stem, found in numbers.items() for name in ([names[stem]] if len(found) > 2 else alone[stem])]


def inequalities(conditions: Sequence[Condition], factors: Sequence[str] = FACTOR) -> list[Inequality]:
    """Return every difference besides the factors: in settings, reward, data and evaluation, and repeated seeds."""
    models = [run for condition in conditions for run in condition.runs]
    runs = [model for model in models if model.is_trained]
    return [*_of_settings(runs, factors), *_of_data(runs), *_of_evaluations(models), *_of_seeds(conditions)]


def refuse(found: Sequence[Inequality]) -> None:
    """Raise ConfigError with all differences that make the comparison unfair, if there are any."""
    if found:
        fix = (
            "declare an intended difference with --factor KEY, or compare with --allow: every output then lists the "
            "differences"
        )
        faults = [Fault(str(inequality), "not a fair comparison") for inequality in found]
        what = f"{len(found)} differences besides the factor make the comparison unfair"
        raise ConfigError([*faults, Fault(what, "egpo compare", fix)])


def _of_settings(runs: Sequence[ComparedModel], factors: Sequence[str]) -> Iterator[Inequality]:
    found: dict[str, dict[str, str]] = {}
    for run in runs[1:]:
        for difference in setting_differences(runs[0], run):
            if not is_under(difference.key, factors):
                values = found.setdefault(difference.key, {one.name: difference.old for one in runs})
                values[run.name] = difference.new
    for key, values in found.items():
        yield Inequality("reward" if is_under(key, ("task", "reward")) else "setting", key, values)


def _of_data(runs: Sequence[ComparedModel]) -> Iterator[Inequality]:
    """Yield the splits whose data differ between runs, by their digests. A run without digests differs from all others.

    Digests of rows are compared if they are known. The digest of a file's bytes cannot be compared with a digest of
    rows if the file no longer exists.
    """
    digests = {run.name: run.data_digests for run in runs}
    rows = {run.name: run.row_digests for run in runs}
    names = dict.fromkeys(name for known in digests.values() for name in known) or dict.fromkeys(
        ["digests"] * bool(runs)
    )
    for name in names:
        recorded, of_rows = (
            {run: known.get(name, _ABSENT) if known else _UNPROVED for run, known in by_run.items()}
            for by_run in (digests, rows)
        )
        equal = len(set(recorded.values())) == 1 or len(set(of_rows.values())) == 1
        if not equal or _UNPROVED in recorded.values():
            yield Inequality("data", name, _shown_digests(of_rows))


def _shown_digests(values: Mapping[str, str]) -> dict[str, str]:
    """Return the digests shortened for display.

    Some digests are of a data file's rows, others of its bytes. If both kinds occur, each gets a note that says which.
    """
    kinds = {value.startswith(ROWS) for value in values.values() if value not in (_ABSENT, _UNPROVED)}
    notes = {True: " (of rows)", False: " (of the bytes of a file that no longer exists: cannot be compared)"}
    return {
        run: value.removeprefix(ROWS)[:12] + (notes[value.startswith(ROWS)] if len(kinds) > 1 else "")
        for run, value in values.items()
    }


def _of_evaluations(runs: Sequence[ComparedModel]) -> Iterator[Inequality]:
    """Yield the properties that differ between evaluations, of different runs or of the same run."""
    setups = {run.name: [_setup(one) for one in run.evaluations] for run in runs}
    plain = {run.name for run in runs if not run.is_trained}
    keys = dict.fromkeys(key for of_run in setups.values() for setup in of_run for key in setup)
    for key in keys:
        stepless = plain if key == "step" else ()
        compared = {run: of_run for run, of_run in setups.items() if run not in stepless}
        values = {run: list(dict.fromkeys(one.get(key, _ABSENT) for one in found)) for run, found in compared.items()}
        if len({value for of_run in values.values() for value in of_run}) > 1:
            shown = {run: " and ".join(map(_shortened, of_run)) for run, of_run in values.items()}
            yield Inequality("evaluation", key, shown)


def _setup(evaluation: StoredEvaluation) -> dict[str, str]:
    """Return the properties that must be equal in two evaluations, as text.

    The seed may differ. The path to the data may differ too, because the digest of the problems is compared. Only the
    embedded engine (`engine: local`) measures entropies, so an evaluation without them used a server, which renders
    prompts and samples differently.
    """
    setup = {key: evaluation.header.get(key) for key in ("task", "split", "data", "sandbox", "step")}
    setup["engine"] = "embedded" if evaluation.section("entropy") else "server"
    for section, ignored in (("task_settings", "source"), ("sampling", "seed"), ("episode_limits", "")):
        setup |= {f"{section}.{key}": value for key, value in evaluation.section(section).items() if key != ignored}
    return {key: _ABSENT if value is None else str(value) for key, value in setup.items()}


def _shortened(text: str) -> str:
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def _of_seeds(conditions: Sequence[Condition]) -> Iterator[Inequality]:
    """Yield the seeds that occur twice in a condition: two trainings with one seed do not count as two seeds."""
    for condition in conditions:
        seeds = {run.name: run.seed for run in condition.runs if run.seed is not None}
        twice = {name: str(seed) for name, seed in seeds.items() if list(seeds.values()).count(seed) > 1}
        if twice:
            yield Inequality("seed", f"twice in {condition.label}", twice)


Figures = Mapping[ComparedMetric, Sequence[Sequence[RunFigures]]]


def notes_on(conditions: Sequence[Condition], figures: Figures) -> list[str]:
    """Return notes for the reader about limits of the comparison that do not make it unfair."""
    return [
        *_on_seeds(conditions),
        *_on_methods(conditions),
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
            "Each condition has one training run: the intervals are over problems and do not include the variation "
            "between training seeds. More evaluations of the same runs do not change this."
        )
    elif min(counts) == 1:
        yield (
            "A condition has one training run: the variation between its training seeds is assumed to equal that of "
            "the other condition."
        )
    elif min(counts) == 2:
        yield "Two training seeds per condition determine the variation between seeds poorly: the intervals are wide."


def _on_methods(conditions: Sequence[Condition]) -> Iterator[str]:
    """Yield a note for each condition with a method that changes several things at once, unless all conditions have
    it: a difference from it is then not the effect of one setting."""
    for name, method in METHODS.items():
        if len(method.changes) < 2:
            continue
        having = [one for one in conditions if one.runs[0].run and _has_settings(one.runs[0].run, method)]
        if len(having) < len(conditions):
            for condition in having:
                yield (
                    f"{condition.label} has the settings of {name}, which changes several things at once: "
                    f"{', '.join(method.changes)}. A difference from it is the effect of all of them."
                )


def _has_settings(run: StoredRun, method: Method) -> bool:
    return all(_setting(run, key.split(".")) == value for key, value in method.settings.items())


def _setting(run: StoredRun, path: Sequence[str]) -> object:
    value: object = run.config
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _on_failures(conditions: Sequence[Condition]) -> Iterator[str]:
    """Yield the number of responses of each run that could not be judged, mostly long ones that ran out of time."""
    for run in (run for condition in conditions for run in condition.runs):
        samples = [sample for evaluation in run.evaluations for sample in evaluation.samples]
        if num_failed := sum(sample.failed for sample in samples):
            yield f"{num_failed:,} of {len(samples):,} responses of {run.name} could not be judged and are left out."


def _on_problems(figures: Figures) -> Iterator[str]:
    """Yield a note for each metric if runs have values for different problems: only shared problems are compared."""
    for metric, conditions in figures.items():
        keys = {run.run: set(run.by_problem) for runs in conditions for run in runs}
        shared = set.intersection(*keys.values())
        if any(len(found) > len(shared) for found in keys.values()):
            held = ", ".join(f"{name} {len(found)}" for name, found in keys.items())
            named = f" with a value of {metric.name}" if len(figures) > 1 else ""
            yield f"All runs share {len(shared)} problems{named} ({held}); only those are compared."


def _on_versions(conditions: Sequence[Condition]) -> Iterator[str]:
    runs = [run for condition in conditions for run in condition.runs if run.is_trained]
    found = [_environment(run) for run in runs]
    for name in dict.fromkeys(name for environment in found for name in environment):
        values = {run.name: known.get(name, "unknown") for run, known in zip(runs, found, strict=True)}
        if len(set(values.values())) > 1:
            yield f"Different {name}: {by_value(values)}."


def _environment(run: ComparedModel) -> dict[str, str]:
    """Return the package versions, the commit and the device with which a run was made."""
    if run.provenance is None:
        return {}
    start = run.provenance.start
    commit = "unknown" if start.git is None else start.git.commit[:12] + " with changes" * start.git.dirty
    return {**start.versions, "commit": commit, "device": start.hardware.gpu or start.hardware.cpu}
