"""What belongs to a machine and to no recipe: where models and data lie, GPUs, the environments of others.

One optional file, `egpo.machine.yaml`: the one that the variable EGPO_MACHINE names, or the one in the working
directory, or the one in ~/.config/egpo. An empty EGPO_MACHINE: none at all.
"""

import json
import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from egpo.assets import MODELS, resolve_model
from egpo.config.includes import read_layers
from egpo.errors import ConfigError, Fault, InputError
from egpo.files import path_fault
from egpo.sections import Count, PathText, PlaceOf, Section, faults_of

VARIABLE = "EGPO_MACHINE"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
NAME = "egpo.machine.yaml"


class Environments(Section):
    verl: PathText | None = None
    """Python of the environment that has verl, vLLM and Ray."""
    bfcl: PathText | None = None
    """Python of the environment that has BFCL's evaluator."""


class Machine(Section):
    """A relative path starts where the file lies."""

    models: Annotated[tuple[PathText, ...], Field(strict=False)] = ()
    """Folders of models: `Qwen/Qwen3-4B` is looked for in each, as `Qwen/Qwen3-4B` and as `Qwen3-4B`."""
    data: Annotated[tuple[PathText, ...], Field(strict=False)] = ()
    """Folders of raw data: a `prepare.source` that is not in the working directory is looked for in each."""
    gpus: Count | None = None
    """Of each node: `verl.gpus` where a recipe does not say."""
    nodes: Count | None = None
    """`verl.nodes` where a recipe does not say."""
    environments: Environments = Environments()
    """Interpreters of environments with pins of their own."""


def machine_file() -> Path | None:
    """Where this machine's file is; None where it has none. A name in EGPO_MACHINE must be a file."""
    if VARIABLE in os.environ:
        named = os.environ[VARIABLE]
        if named and (path_fault(named) or not Path(named).expanduser().is_file()):
            raise InputError(f"no such file `{named}`", where=VARIABLE, fix="mend the variable, or unset it")
        return Path(named).expanduser() if named else None
    places = (Path(NAME), Path.home() / ".config" / "egpo" / NAME)
    return next((place for place in places if place.is_file()), None)


def this_machine() -> Machine:
    """Nothing is known of a machine without a file."""
    path = machine_file()
    return Machine() if path is None else read_machine(path)


def read_machine(path: Path) -> Machine:
    """Checked whole: a folder or an interpreter that is not there is a fault now, and not hours later."""
    layers = read_layers(path, "machine file")
    place_of = PlaceOf(str(path), layers.set_at, {})
    try:
        machine = Machine.model_validate(layers.value)
    except ValidationError as error:
        raise ConfigError(faults_of(error, Machine, place_of)) from error
    located = _located(machine, path.parent)
    if faults := list(_wrong_paths(located, place_of)):
        raise ConfigError(faults)
    return located


def model_folder(name: str) -> str:
    """What a recipe's `model.path` is here: a folder of that name, a model of the package, a folder under one of the
    machine's `models`; or the name itself, which is then one of the hub."""
    resolved = resolve_model(name)
    if resolved != name or Path(name).expanduser().is_dir():
        return resolved
    tried = [Path(root, part) for root in this_machine().models for part in (name, name.rpartition("/")[2])]
    return next((str(folder) for folder in tried if (folder / "config.json").is_file()), name)


def require_model_place(name: str, where: str) -> str:
    """`model_folder` of the name, or an InputError where it is a path that leads nowhere, or to a broken config.

    A name that is no folder goes to the hub only if it can be one of the hub's: `owner/model` or `model`, of letters,
    digits, `.`, `_` and `-`. It is a path if it starts with `.`, `/` or `~`, has two slashes or a trailing one, or if
    its first part is `runs` or a folder here. A single word that is close to a model of the package is a misspelling.
    """
    folder = model_folder(name)
    path = Path(folder).expanduser()
    if path.is_dir():
        _require_readable_config(path / "config.json", where)
        return folder
    if path.exists():
        raise InputError("is a file, not a model folder", where=where, fix="give the folder that holds it")
    close = get_close_matches(name, MODELS, n=1, cutoff=0.8)
    if close or not _may_be_of_the_hub(name):
        raise InputError("no such folder", where=where, fix=f"did you mean `{close[0]}`?" if close else _closest(path))
    return folder


def _require_readable_config(path: Path, where: str) -> None:
    """Raise on what transformers meets with a traceback. A folder without a config is its reader's business."""
    if not path.is_file():
        return
    fix = "is the folder whole? give what `save_pretrained` wrote"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"its config.json cannot be read ({error})", where=where, fix=fix) from error
    if not isinstance(config, dict):
        raise InputError(f"its config.json holds a {type(config).__name__}, not an object", where=where, fix=fix)
    for key in ("num_hidden_layers", "n_layer", "num_layers"):
        layers = config.get(key)
        if layers is not None and (not isinstance(layers, int) or layers < 1):
            raise InputError(f"`{key}` of its config.json is {layers!r:.40}", where=where, fix="it must be 1 or more")


def _may_be_of_the_hub(name: str) -> bool:
    if name.startswith((".", "/", "~")) or not _HUB_NAME.fullmatch(name):
        return False
    first, slash, _ = name.partition("/")
    return not slash or (first != "runs" and not Path(first).is_dir())


def _closest(path: Path) -> str:
    """Advice: the existing folder that is closest to the path, compared at its first part that does not exist."""
    missing = next(place for place in (*reversed(path.parents), path) if not place.is_dir())
    home = missing.parent
    try:
        names = [entry.name for entry in home.iterdir() if entry.is_dir()]
    except OSError:
        names = []
    close = get_close_matches(missing.name, names, n=1, cutoff=0.6)
    if not close:
        return f"check the path: there is no `{missing.name}` in {home.absolute()}"
    return f"did you mean `{home / close[0] / path.relative_to(missing)}`?"


def data_place(source: str) -> str:
    """What a recipe's `prepare.source` is here: a path as it stands, under one of the machine's `data`, or itself."""
    if Path(source).expanduser().exists():
        return str(Path(source).expanduser())
    tried = [Path(root, source) for root in this_machine().data]
    return next((str(path) for path in tried if path.exists()), source)


def _located(machine: Machine, home: Path) -> Machine:
    def at(word: str) -> str:
        # Not resolved: the python of an environment is a link, and must be called by its own name.
        return str(home.absolute() / Path(word).expanduser())

    named = {name: at(python) for name, python in machine.environments if python is not None}
    return machine.model_copy(
        update={
            "models": tuple(map(at, machine.models)),
            "data": tuple(map(at, machine.data)),
            "environments": machine.environments.model_copy(update=named),
        }
    )


def _wrong_paths(machine: Machine, place_of: PlaceOf) -> Iterator[Fault]:
    for key, folders in (("models", machine.models), ("data", machine.data)):
        for folder in folders:
            if not Path(folder).is_dir():
                yield Fault(f"`{key}`: no such folder {folder}", place_of((key,)), "mend the path, or leave it out")
    for name, python in machine.environments:
        if python is not None and not (Path(python).is_file() and os.access(python, os.X_OK)):
            fix = "give the path of its python, as /opt/verl/bin/python"
            yield Fault(f"`{name}`: no interpreter at {python}", place_of(("environments", name)), fix)
