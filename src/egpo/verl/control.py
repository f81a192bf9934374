"""A controller in verl: it sets the weight of the entropy term of the loss in each step.

verl's workers keep the configuration of the loss from the start of the run. The trainer sends them a new one by verl's
own `set_loss_fn` whenever the weight changes. The state of the controller is a file of each checkpoint. verl is
imported inside the functions, so that configurations can be checked without it.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from egpo.advantages.signals import Metrics
from egpo.controllers import controller_named
from egpo.errors import EgpoError, Fault, InputError, warn_once
from egpo.files import write_atomically
from egpo.verl.settings import ControllerKeys

WHERE = "algorithm.egpo.controller"
FILE = "egpo_controller.json"
WEIGHT = "entropy_weight"
"""The one setting of `update` that a controller can change under verl."""


def controller_of(keys: ControllerKeys) -> Any:
    """Return the controller. Raise InputError if there is none of that name, or if its settings are wrong."""
    controller = controller_named(keys.name)
    if controller.settings is not None:
        from egpo.sections import checked

        checked(controller.settings, f"{WHERE}.settings", **keys.settings)
    if others := sorted(set(controller.sets) - {WEIGHT}):
        raise _cannot_set(others[0])
    return controller


def controller_faults(keys: ControllerKeys | None) -> list[Fault]:
    """Return what is wrong with the controller of a configuration."""
    if keys is None:
        return []
    try:
        controller_of(keys)
    except EgpoError as error:
        return error.faults
    return []


def _cannot_set(name: str) -> InputError:
    what = f"the controller sets `{name}`, and under verl a controller can set `{WEIGHT}` alone"
    return InputError(what, where=WHERE, fix="train with engine=local, or use another controller")


class EntropyControl:
    """The controller of a run, with its state between steps."""

    def __init__(self, keys: ControllerKeys) -> None:
        self._controller = controller_of(keys)
        self._settings = keys.settings
        self.state: dict[str, Any] = {}

    def apply(self, measured: Mapping[str, Any], actor: Any, workers: Any) -> Metrics:
        """Set the weight for this step's update, and return the controller's metrics.

        `measured`: the metrics of the step so far. `actor`: verl's configuration of the actor, which is changed.
        `workers`: verl's worker group of the actor.
        """
        known = {name: float(value) for name, value in measured.items() if isinstance(value, int | float)}
        control = self._controller(self.state, known, **self._settings)
        if others := sorted(set(control.update) - {WEIGHT}):
            raise _cannot_set(others[0])
        weight = float(control.update.get(WEIGHT, actor.entropy_coeff))
        if weight != actor.entropy_coeff:
            actor.entropy_coeff = weight
            workers.set_loss_fn(_loss_of(actor))
        self.state = control.state
        return {**control.metrics, "actor/entropy_weight": weight}

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / FILE, json.dumps(self.state).encode())

    def load(self, folder: Path) -> None:
        """Read the state of a checkpoint. Without one the controller starts anew, with a warning."""
        if not (folder / FILE).exists():
            warn_once("controller in verl", f"{folder} has no {FILE}: the controller starts anew")
            return
        self.state = json.loads((folder / FILE).read_text(encoding="utf-8"))


def _loss_of(actor: Any) -> Any:
    """Return verl's loss with this configuration of the actor, as its workers make it."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss

    return partial(ppo_loss, config=omega_conf_to_dataclass(actor))
