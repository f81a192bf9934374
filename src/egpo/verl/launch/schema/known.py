"""The keys that verl reads, from `defaults.json`. verl need not be installed.

Hydra accepts any key after a `+`, and verl ignores those that it does not read: `ignored_keys` finds them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from egpo.errors import Fault, nearest

PATH = Path(__file__).with_name("defaults.json")

OPEN = (
    "actor_rollout_ref.actor.optim.override_optimizer_config",
    "algorithm.egpo",
    "algorithm.egpo_calibrated",
    "critic.optim.override_optimizer_config",
    "distillation.teacher_models",
    "ray_kwargs.ray_init",
    "reward.custom_reward_function.reward_kwargs",
    "reward.reward_kwargs",
    "transfer_queue.backend",
)
"""Sections that verl passes on to other code: their keys are not checked here."""

MISTAKEN = {
    "trainer.max_checkpoint_limit": "trainer.max_actor_ckpt_to_keep",
    "trainer.ray_init_kwargs": "ray_kwargs.ray_init",
    "trainer.total_steps": "trainer.total_training_steps",
    "algorithm.kl_coef": "algorithm.kl_ctrl.kl_coef",
    "actor_rollout_ref.rollout.max_new_tokens": "data.max_response_length",
}
"""Common mistaken keys, and the keys of verl that are meant."""


@dataclass(frozen=True)
class Schema:
    """The keys that verl reads.

    `defaults`: the dotted keys in verl's files, with their defaults. `fields`: by section, keys that only a dataclass
    of verl declares. `read`: keys that only verl's code names, as `section.key`.
    """

    version: str
    defaults: Mapping[str, Any]
    fields: Mapping[str, list[str]]
    read: tuple[str, ...]

    def declares(self, key: str) -> bool:
        """Return whether verl's files have this key, as a value or a section. Hydra then needs no `+` to change it."""
        return key in self.defaults or any(known.startswith(f"{key}.") for known in self.defaults)

    def knows(self, key: str) -> bool:
        """Return whether verl reads this key, or passes its section on to other code."""
        parts = key.split(".")
        beginnings = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        return (
            self.declares(key)
            or any(beginning in OPEN or self._is_open(beginning) for beginning in beginnings)
            or any(self._is_field(parts[:end]) for end in range(2, len(parts) + 1))
            or ".".join(parts[-2:]) in self.read
        )

    def _is_open(self, section: str) -> bool:
        """Return whether the section is empty in verl's files: any key may be added to it."""
        return bool(self.defaults.get(section, ()) == {})

    def _is_field(self, parts: list[str]) -> bool:
        return parts[-1] in self.fields.get(".".join(parts[:-1]), ())


@cache
def schema() -> Schema:
    """Return the schema of the supported verl."""
    held = json.loads(PATH.read_text(encoding="utf-8"))
    return Schema(held["version"], held["defaults"], held["fields"], tuple(held["read"]))


def ignored_keys(keys: Iterable[str]) -> list[Fault]:
    """Return a fault for each key that verl would silently ignore, with the nearest key that it reads."""
    return [Fault(f"verl has no `{key}`, and would ignore it", f"verl.{key}", _advice(key)) for key in _unknown(keys)]


def leaves(tree: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield dotted keys with their values. An empty section counts as a value; `_target_` keys are left out."""
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, name))
        elif name != "_target_":
            yield ".".join((*path, name)), value


def _unknown(keys: Iterable[str]) -> list[str]:
    return [key for key in keys if not schema().knows(key)]


def _advice(key: str) -> str:
    """Return a suggested key: the same name in another section, otherwise a similar name in the same section."""
    if key in MISTAKEN:
        return f"write `{MISTAKEN[key]}`"
    section, _, last = key.rpartition(".")
    elsewhere = [known for known in schema().defaults if known.endswith(f".{last}")]
    siblings = [known for known in schema().defaults if known.startswith(f"{section}.")]
    if len(elsewhere) == 1:
        return f"did you mean `{elsewhere[0]}`?"
    return nearest(key, elsewhere or siblings or schema().defaults)
