"""What a controller returns."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

State = dict[str, Any]
"""The state of a controller between steps: JSON values."""


@dataclass(frozen=True)
class Control:
    """`update`: values of `update.*` for this step, by name. `state`: the input of the next step. `metrics`: metrics of
    the controller's own."""

    update: Mapping[str, float | None]
    state: State
    metrics: Mapping[str, float] = field(default_factory=dict)
