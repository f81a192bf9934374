"""What a later stage would refuse after hours of training is refused before the first one begins."""

from collections.abc import Callable
from dataclasses import replace

from egpo.config import Config
from egpo.config.schema import Task
from egpo.errors import ConfigError, Fault, InputError
from egpo.evals.bfcl.categories import parse_categories
from egpo.experiments.answering import require_servable
from egpo.experiments.exams import exams_of
from egpo.experiments.prepared import data_plan
from egpo.tasks import load_task
from egpo.verl.launch.refusals import refuse_what_verl_lacks


def require_later_stages(config: Config) -> None:
    """ConfigError with every fault: of tasks, data, exams, the server and BFCL. Nothing is read but the recipe."""
    faults = [*_refused("task", _make_task, config.task), *_refused("prepare", data_plan, config)]
    for task in config.eval.tasks:
        faults += _refused("eval.tasks", _make_task, task)
    faults += _refused("eval.tasks", exams_of, config)
    if config.engine == "verl":
        faults += _refused("engine", refuse_what_verl_lacks, config)
    if config.eval.serve:
        faults += _refused("eval.serve", require_servable, config)
    if config.eval.bfcl is not None:
        faults += _refused("eval.bfcl.categories", parse_categories, ",".join(config.eval.bfcl.categories), own=True)
    if faults:
        raise ConfigError(faults)


def _make_task(task: Task) -> None:
    """Those of the package: making one costs nothing. A task from outside may be large, and is made when it is used."""
    if ":" not in task.name:
        load_task(task.name, **task.settings)


def _refused(where: str, check: Callable[..., object], *values: object, own: bool = False) -> list[Fault]:
    """The faults that a check raises; at `where` in the recipe when they name no place, or (`own`) one of a command."""
    try:
        check(*values)
    except InputError as error:
        return [replace(fault, where=where if own else fault.where or where) for fault in error.faults]
    return []
