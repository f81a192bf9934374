"""The conditions of a comparison: groups of runs that differ only in their seed, labelled by their settings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from egpo.comparisons.compared_models import ComparedModel
from egpo.errors import InputError, nearest
from egpo.runs.differences import FREE, Difference, config_differences

FACTOR = ("algorithm",)
"""The settings in which conditions may differ by default."""
_ASIDE = (*FREE, "seed")


@dataclass(frozen=True)
class Condition:
    """Runs with equal settings except for the seed, or one plain model."""

    label: str
    runs: Sequence[ComparedModel]


def setting_differences(one: ComparedModel, other: ComparedModel) -> list[Difference]:
    """Return the settings that differ, except name, folder, seed and settings that do not influence results.

    If the data of both runs have equal digests, different paths to them are not a difference.
    """
    found = config_differences(one.config_yaml, other.config_yaml)
    aside = (*_ASIDE, "task.settings.source") if _share_data(one, other) else _ASIDE
    return [difference for difference in found if not is_under(difference.key, aside)]


def is_under(key: str, sections: Sequence[str]) -> bool:
    """Return whether a dotted key equals one of `sections`, or is inside one of them."""
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def conditions_of(models: Sequence[ComparedModel], factors: Sequence[str] = FACTOR) -> list[Condition]:
    """Return one condition for each plain model, then the conditions of the runs, in the order of their first runs.

    Raise InputError if there is only one condition, or if a factor is not a setting of any run.
    """
    runs = [model for model in models if model.is_trained]
    plain = [Condition(model.name, [model]) for model in models if not model.is_trained]
    return [*plain, *_of_runs(runs, factors, alone=not plain)] if runs else plain


def _of_runs(runs: Sequence[ComparedModel], factors: Sequence[str], *, alone: bool) -> list[Condition]:
    for factor in factors:
        _require_setting(factor, runs)
    groups: list[list[ComparedModel]] = []
    for run in runs:
        same = next((group for group in groups if not setting_differences(group[0], run)), None)
        if same is None:
            groups.append([run])
        else:
            same.append(run)
    if alone and len(groups) < 2:
        what = f"the {len(runs)} runs form one condition: they differ in no setting but the seed"
        raise InputError(what, where="egpo compare", fix="add runs with other settings")
    labels = _labels([group[0] for group in groups], factors)
    return [Condition(label, group) for label, group in zip(labels, groups, strict=True)]


def _require_setting(factor: str, runs: Sequence[ComparedModel]) -> None:
    keys = {difference.key for run in runs for difference in config_differences("", run.config_yaml)}
    sections = {key[:dot] for key in keys for dot, letter in enumerate(key) if letter == "."}
    if not any(is_under(key, (factor,)) for key in keys):
        raise InputError(f"no run has a setting `{factor}`", where="--factor", fix=nearest(factor, keys | sections))


def _labels(firsts: Sequence[ComparedModel], factors: Sequence[str]) -> list[str]:
    """Return a label for each condition: the value of a factor's key that is different in every condition; else all
    keys that differ, with their values; else the name of its first run."""
    if len(firsts) == 1:
        return [firsts[0].name]
    columns = dict(_columns(firsts, factors))
    for values in columns.values():
        if len(set(values)) == len(firsts):
            return values
    rows = [
        ", ".join(f"{key.rpartition('.')[2]}={values[place]}" for key, values in columns.items())
        for place in range(len(firsts))
    ]
    return rows if len(set(rows)) == len(firsts) else [first.name for first in firsts]


def _columns(firsts: Sequence[ComparedModel], factors: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each key of the factors whose value differs, with its value in each condition."""
    found: dict[str, list[str]] = {}
    for place, other in enumerate(firsts[1:], 1):
        for difference in setting_differences(firsts[0], other):
            found.setdefault(difference.key, [difference.old] * len(firsts))[place] = difference.new
    yield from ((key, values) for key, values in found.items() if is_under(key, factors))


def _share_data(one: ComparedModel, other: ComparedModel) -> bool:
    if not one.data_digests:
        return False
    return one.data_digests == other.data_digests or one.row_digests == other.row_digests
