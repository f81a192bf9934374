"""Controllers: settings of `update` that change from step to step with what was measured.

    adaptive_entropy.py    the weight of the entropy term, moved towards a target entropy
    control.py             Control: what a controller returns

A controller is a plain function of its own state, of the metrics of the step before its update, and of its settings.
It returns settings for this update, and its state for the next step. The state is a small JSON object, which every
checkpoint contains, so that a resumed run continues with the same bits.

To add a controller, write its file (settings class and function) and add a row to CONTROLLERS. A controller outside the
package is named `module:name`, where the name is a `Controller` or a plain function
`f(state, measured, **settings) -> Control`. Importing this package does not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from egpo.controllers.adaptive_entropy import AdaptiveEntropySettings, adaptive_entropy
from egpo.controllers.control import Control, State
from egpo.errors import InputError, nearest
from egpo.sections import Section
from egpo.user_code import user_row

__all__ = ["CONTROLLED", "CONTROLLERS", "Control", "Controller", "State", "controller_named"]

CONTROLLED = ("lr", "clip", "clip_high", "dual_clip", "entropy_weight", "importance_cap")
"""The settings of `update` that a controller may set. The others are needed before the first step."""
FORM = "give an egpo.controllers.Controller, or a function f(state, measured, **settings) that returns a Control"


@dataclass(frozen=True)
class Controller:
    """A controller. Calling it calls its function, and checks what it returns."""

    function: Callable[..., Control]
    """`f(state, measured, **settings) -> Control`. `state` is empty in the first step. `measured` has the metrics of
    the step that are known before its update, by the names in docs/metrics.md."""
    settings: type[Section] | None = None
    """The class of the controller's settings, which also checks their values. None: it has none, or they are not
    checked."""
    sets: tuple[str, ...] = ()
    """The settings of `update` that it always sets itself, so that a recipe must not set them."""

    def __call__(self, state: State, measured: Mapping[str, float], **settings: Any) -> Control:
        found = self.function(dict(state), measured, **settings)
        if not isinstance(found, Control):
            raise InputError(f"the controller returned {type(found).__name__}", where="update.controller", fix=FORM)
        if strange := sorted(set(found.update) - set(CONTROLLED)):
            what = f"the controller sets `{strange[0]}`, which cannot change between steps"
            raise InputError(what, where="update.controller", fix=f"it may set {', '.join(CONTROLLED)}")
        try:
            json.dumps(found.state, allow_nan=False)
        except (TypeError, ValueError) as error:
            fix = "use numbers, texts, lists and dicts"
            raise InputError(
                f"the state of the controller is not JSON ({error})", where="update.controller", fix=fix
            ) from error
        return found


def _none(state: State, measured: Mapping[str, float]) -> Control:
    return Control({}, {})


CONTROLLERS: dict[str, Controller] = {
    "none": Controller(_none),
    "adaptive_entropy": Controller(adaptive_entropy, AdaptiveEntropySettings, sets=("entropy_weight",)),
}


def controller_named(name: str) -> Controller:
    """Return the controller of that name, or of that `module:name`. Raise InputError with the nearest name
    otherwise."""
    if ":" not in name:
        if name not in CONTROLLERS:
            raise InputError(f"unknown controller `{name}`", fix=nearest(name, CONTROLLERS))
        return CONTROLLERS[name]
    found = user_row(name, "controller", FORM)
    return found if isinstance(found, Controller) else Controller(found)
