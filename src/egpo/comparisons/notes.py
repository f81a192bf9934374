"""What must be known to read a comparison, though it makes none unfair."""

from collections.abc import Iterator, Mapping, Sequence

from egpo.comparisons.conditions import Condition
from egpo.comparisons.entrants import Entrant
from egpo.comparisons.fairness import by_value
from egpo.comparisons.values import Metric, RunFigures

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
