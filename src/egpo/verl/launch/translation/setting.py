"""One key of verl's, its value, and where that comes from."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MODEL, ACTOR = "actor_rollout_ref.model", "actor_rollout_ref.actor"
ROLLOUT, REFERENCE = "actor_rollout_ref.rollout", "actor_rollout_ref.ref"


@dataclass(frozen=True)
class Setting:
    """`source` is the key of ours that it follows from, or the reason why it is set."""

    key: str
    value: Any
    source: str


def merged(settings: Iterable[Setting]) -> list[Setting]:
    """Each key once, at its first place, with its last value."""
    return list({setting.key: setting for setting in settings}.values())
