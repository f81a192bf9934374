"""The differences between two resolved configs, and the check which of them are allowed when a run is resumed."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml

from egpo.errors import ConfigError, Fault, InputError

FREE = (
    *("name", "runs", "checkpoints", "watch", "prepare", "probe", "eval"),
    *("rollout.alternatives", "task.judge_timeout_s", "verl.python", "verl.patience_minutes"),
)
"""Config keys and sections that may differ between a run and its resumption, because they do not change the training:
where the run is stored, what is kept and displayed, and the stages before and after training. (The data itself is
compared by its digest.)"""
_NOTHING = "nothing"


@dataclass(frozen=True)
class Difference:
    """A setting that differs between two configs: its dotted key, and both values as YAML (`nothing` if absent)."""

    key: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.key}: {self.old} -> {self.new}"


def config_differences(old_yaml: str, new_yaml: str) -> list[Difference]:
    """Return every key whose value differs, in the order of the new config. Keys that only the old has come last."""
    old, new = _leaves_of(old_yaml), _leaves_of(new_yaml)
    keys = [*new, *(key for key in old if key not in new)]
    shown = [Difference(key, _shown(old, key), _shown(new, key)) for key in keys]
    return [difference for difference in shown if difference.old != difference.new]


def refuse_other_training(
    old_yaml: str, new_yaml: str, where: str, changed: Mapping[str, Any] | None = None
) -> list[Difference]:
    """Raise ConfigError if the new config would change the training of a resumed run; return the allowed differences.

    `changed` contains the settings of the new config that are not at their defaults. If it is given, a key that the old
    config lacks may have its default value, because a run of an earlier version may not have the key.

    `steps` may change if the schedule is constant: the learning rate then does not depend on the length of the run.
    Differences in the section `verl` are allowed unless one of the two configs uses the verl engine.
    """
    differences = config_differences(old_yaml, new_yaml)
    free = {*FREE, "steps"} if _is_constant(old_yaml) and _is_constant(new_yaml) else set(FREE)
    if "verl" not in (_leaves_of(old_yaml).get("engine"), _leaves_of(new_yaml).get("engine")):
        free.add("verl")
    other = [difference for difference in differences if not _is_in(difference.key, free)]
    if changed is not None:
        set_keys = dict(_leaves(changed, ()))
        other = [difference for difference in other if difference.old != _NOTHING or difference.key in set_keys]
    if other:
        fix = "resume with the config of the run, or start a new run with name=..."
        faults = [Fault(f"this run has a different config ({difference})", where) for difference in other]
        raise ConfigError([*faults, Fault(f"{len(other)} settings of the run would change", where, fix)])
    return differences


def _is_in(key: str, sections: Iterable[str]) -> bool:
    return any(f"{key}.".startswith(f"{section}.") for section in sections)


def _is_constant(text: str) -> bool:
    schedules = [value for key, value in _leaves_of(text).items() if key.split(".")[-1] == "schedule"]
    return set(schedules) == {"constant"}


@lru_cache(maxsize=64)  # a comparison of fifteen runs asks hundreds of times
def _leaves_of(text: str) -> Mapping[str, Any]:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError("the stored config is not YAML", where="config.yaml", fix="restore the file") from error
    return dict(_leaves(value or {}, ()))


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and (value or not path):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    else:
        yield ".".join(path), value


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    if key not in leaves:
        return _NOTHING
    return yaml.safe_dump(leaves[key], default_flow_style=True, width=float("inf")).removesuffix("\n...\n").strip()
