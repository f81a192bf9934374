"""Which runs are seeds of one condition, and what the conditions are called."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from egpo.comparisons.entrants import Entrant
from egpo.errors import InputError, nearest
from egpo.runs.differences import FREE, Difference, config_differences

FACTOR = ("algorithm",)
"""What conditions differ in unless somebody says otherwise."""
_ASIDE = (*FREE, "seed")


@dataclass(frozen=True)
class Condition:
    """Runs with equal settings but for the seed; or a plain model."""

    label: str
    runs: Sequence[Entrant]


def setting_differences(one: Entrant, other: Entrant) -> list[Difference]:
    """But for name, folder, seed and what changes no arithmetic. A path to data that has the same digest in both is no
    difference: only the machine is another."""
    found = config_differences(one.config_yaml, other.config_yaml)
    aside = (*_ASIDE, "task.settings.source") if _share_data(one, other) else _ASIDE
    return [difference for difference in found if not is_under(difference.key, aside)]


def is_under(key: str, sections: Sequence[str]) -> bool:
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def conditions_of(entrants: Sequence[Entrant], factors: Sequence[str] = FACTOR) -> list[Condition]:
    """In the order of their first runs. InputError where all runs are of one, or a factor is no setting of any."""
    runs = [entrant for entrant in entrants if entrant.is_trained]
    models = [Condition(entrant.name, [entrant]) for entrant in entrants if not entrant.is_trained]
    return [*models, *_of_runs(runs, factors, alone=not models)] if runs else models


def _of_runs(entrants: Sequence[Entrant], factors: Sequence[str], *, alone: bool) -> list[Condition]:
    for factor in factors:
        _require_setting(factor, entrants)
    groups: list[list[Entrant]] = []
    for entrant in entrants:
        home = next((group for group in groups if not setting_differences(group[0], entrant)), None)
        if home is None:
            groups.append([entrant])
        else:
            home.append(entrant)
    if alone and len(groups) < 2:
        what = f"the {len(entrants)} runs are seeds of one condition: they differ in no setting"
        raise InputError(what, where="egpo compare", fix="add runs of another condition")
    labels = _labels([group[0] for group in groups], factors)
    return [Condition(label, group) for label, group in zip(labels, groups, strict=True)]


def _require_setting(factor: str, entrants: Sequence[Entrant]) -> None:
    keys = {difference.key for entrant in entrants for difference in config_differences("", entrant.config_yaml)}
    sections = {key[:dot] for key in keys for dot, letter in enumerate(key) if letter == "."}
    if not any(is_under(key, (factor,)) for key in keys):
        raise InputError(f"no run has a setting `{factor}`", where="--factor", fix=nearest(factor, keys | sections))


def _labels(firsts: Sequence[Entrant], factors: Sequence[str]) -> list[str]:
    """The value of one key of the factor, if that tells all conditions apart; else all that differ; else run names."""
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


def _columns(firsts: Sequence[Entrant], factors: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """By the key: its value in each condition."""
    found: dict[str, list[str]] = {}
    for place, other in enumerate(firsts[1:], 1):
        for difference in setting_differences(firsts[0], other):
            found.setdefault(difference.key, [difference.old] * len(firsts))[place] = difference.new
    yield from ((key, values) for key, values in found.items() if is_under(key, factors))


def _share_data(one: Entrant, other: Entrant) -> bool:
    digests = [entrant.provenance.data if entrant.provenance else {} for entrant in (one, other)]
    of_rows = one.row_digests == other.row_digests
    return bool(digests[0]) and (digests[0] == digests[1] or (bool(one.row_digests) and of_rows))
