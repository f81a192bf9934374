"""The machine file, `egpo.machine.yaml`: settings that belong to a machine and not to a recipe. It is optional.

It contains the folders of models and data, the number of GPUs, and the interpreters of separate environments. One file
is read: the file that the variable EGPO_MACHINE names; without that variable, `egpo.machine.yaml` in the working
directory, or else in ~/.config/egpo. If EGPO_MACHINE is empty, no file is read.
"""

import json
import os
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from egpo.config.includes import read_layers
from egpo.errors import ConfigError, Fault, InputError
from egpo.files import path_fault
from egpo.fingerprints import folder_digest
from egpo.model_sources import NAMES, gguf_file, local_folder
from egpo.model_sources.named_models import INDEXED_MODELS
from egpo.sections import Count, PathText, PlaceOf, Section, faults_of

VARIABLE = "EGPO_MACHINE"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
NAME = "egpo.machine.yaml"


class Environments(Section):
    verl: PathText | None = None
    """Path of the Python interpreter of the environment that has verl, vLLM and Ray. Default: none."""
    bfcl: PathText | None = None
    """Path of the Python interpreter of the environment that has BFCL's evaluator. Default: none."""


class Machine(Section):
    """The settings of a machine file. Relative paths are relative to the folder of the file."""

    models: Annotated[tuple[PathText, ...], Field(strict=False)] = ()
    """Folders that contain models. `Qwen/Qwen3-4B` is searched in each as `Qwen/Qwen3-4B` and as `Qwen3-4B`. Default:
    none."""
    data: Annotated[tuple[PathText, ...], Field(strict=False)] = ()
    """Folders that contain raw data. A `prepare.source` that does not exist in the working directory is searched in
    each. Default: none."""
    gpus: Count | None = None
    """Number of GPUs per node: the default of `verl.gpus`."""
    nodes: Count | None = None
    """Number of nodes: the default of `verl.nodes`."""
    environments: Environments = Environments()
    """Interpreters of the environments for packages whose version pins conflict with those of egpo."""


def machine_file() -> Path | None:
    """Return the path of the machine file; None if there is none. Raise InputError if EGPO_MACHINE names no file."""
    if VARIABLE in os.environ:
        named = os.environ[VARIABLE]
        if named and (path_fault(named) or not Path(named).expanduser().is_file()):
            what = f"the machine file `{named}` does not exist"
            raise InputError(what, where=VARIABLE, fix="correct the variable, or unset it")
        return Path(named).expanduser() if named else None
    places = (Path(NAME), Path.home() / ".config" / "egpo" / NAME)
    return next((place for place in places if place.is_file()), None)


def this_machine() -> Machine:
    """Return the settings of this machine: those of its machine file, or the defaults if it has none."""
    path = machine_file()
    return Machine() if path is None else read_machine(path)


def read_machine(path: Path) -> Machine:
    """Read and check a machine file. Raise ConfigError if a folder or interpreter that it names does not exist."""
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
    """Resolve `model.path` on this machine: to a folder of that name, the folder of a GGUF file or of a short name
    (`egpo.model_sources`), or a folder or GGUF file below one of the machine's `models`. If none exists, return the
    name unchanged; it is then a name on the hub."""
    resolved = local_folder(name)
    if resolved != name or Path(name).expanduser().is_dir():
        return resolved
    tried = [Path(root, part) for root in this_machine().models for part in (name, name.rpartition("/")[2])]
    found = next((path for path in tried if (path / "config.json").is_file() or gguf_file(path)), None)
    return name if found is None else local_folder(str(found))


def model_identity(name: str) -> str:
    """Return a digest of the model's files if it is on this machine; otherwise its name on the hub.

    A model of the package index is identified by its recorded digest, so that nothing is fetched for a dry run.
    """
    if name in INDEXED_MODELS and not Path(name).exists():
        return INDEXED_MODELS[name].gguf_sha256
    folder = Path(model_folder(name)).expanduser()
    return folder_digest(folder) if folder.is_dir() else name


def require_model_place(name: str, where: str) -> str:
    """Return `model_folder(name)`, or raise InputError if it is a path that does not exist or has an invalid config.

    A name that is not a folder is taken as a hub name only if it has the form `owner/model` or `model`, of letters,
    digits, `.`, `_` and `-`. It is taken as a path if it starts with `.`, `/` or `~`, has two slashes or a trailing
    one, or if its first part is `runs` or an existing folder. A single word that is close to a short name is taken as a
    misspelling. What ends in `.gguf` is a file.
    """
    folder = model_folder(name)
    path = Path(folder).expanduser()
    if path.is_dir():
        _require_one_model(path, where)
        _require_bounded_texts(path, where)
        _require_readable_config(path / "config.json", where)
        return folder
    if path.exists():
        what = f"`{name}` is a file, not a model folder"
        raise InputError(what, where=where, fix="give the folder that contains the file")
    if name.lower().endswith(".gguf"):
        raise InputError("no such file", where=where, fix="check the path of the GGUF file")
    close = get_close_matches(name, NAMES, n=1, cutoff=0.8)
    if close or not _may_be_of_the_hub(name):
        fix = f"did you mean `{close[0]}`?" if close else _closest(path)
        raise InputError("no such folder", where=where, fix=fix)
    return folder


def _require_one_model(folder: Path, where: str) -> None:
    files = [] if (folder / "config.json").exists() else sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        fix = f"name one of them, such as {files[0]}"
        raise InputError(f"the folder holds {len(files)} GGUF files and no config.json", where=where, fix=fix)


LARGEST_TEXT = 256 * 2**20
"""Largest size in bytes of a text file of a model folder. The largest tokenizers have 35 MB."""
MOST_LAYERS = 2_000
_TEXTS = (".json", ".jinja", ".txt", ".model")
"""Suffixes of the files that are read whole. Others may be weights for other programs, which nothing reads here."""


def _require_bounded_texts(folder: Path, where: str) -> None:
    """Raise InputError if a file that would be read whole into memory is far larger than any real one."""
    for path in sorted(folder.iterdir()):
        if path.suffix in _TEXTS and path.is_file() and (size := path.stat().st_size) > LARGEST_TEXT:
            what = f"{path.name} has {size / 1e6:,.0f} MB; no config, tokenizer or chat template is that large"
            raise InputError(what, where=where, fix="fetch the model again, or remove the file")


def _require_readable_config(path: Path, where: str) -> None:
    """Raise InputError if a config.json is invalid in a way for which transformers shows only a traceback. (The code
    that loads the model reports a missing file.)"""
    if not path.is_file():
        return
    fix = "check that the folder is complete, as `save_pretrained` writes it"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"the model's config.json cannot be read ({error})", where=where, fix=fix) from error
    if not isinstance(config, dict):
        what = f"the model's config.json contains a {type(config).__name__}, not an object"
        raise InputError(what, where=where, fix=fix)
    for key in ("num_hidden_layers", "n_layer", "num_layers"):
        layers = config.get(key)
        if layers is not None and (not isinstance(layers, int) or not 1 <= layers <= MOST_LAYERS):
            what = f"`{key}` in the model's config.json is {layers!r:.40}"
            raise InputError(what, where=where, fix=f"it must be a whole number from 1 to {MOST_LAYERS:,}")


def _may_be_of_the_hub(name: str) -> bool:
    if name.startswith((".", "/", "~")) or not _HUB_NAME.fullmatch(name):
        return False
    first, slash, _ = name.partition("/")
    return not slash or (first != "runs" and not Path(first).is_dir())


def _closest(path: Path) -> str:
    """Return advice for a path that does not exist: the path with its first missing part replaced by a similar name."""
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
    """Resolve `prepare.source` on this machine: to an existing path, or to a path in one of the `data` folders of the
    machine file. If none exists, return the text unchanged, as a name on the hub."""
    if Path(source).expanduser().exists():
        return str(Path(source).expanduser())
    tried = [Path(root, source) for root in this_machine().data]
    return next((str(path) for path in tried if path.exists()), source)


def _located(machine: Machine, home: Path) -> Machine:
    def at(word: str) -> str:
        # Links are not resolved: the python of an environment is a link, and finds its packages by its own path.
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
                what = f"the folder {folder} of `{key}` does not exist"
                yield Fault(what, place_of((key,)), "correct the path, or leave it out")
    for name, python in machine.environments:
        if python is not None and not (Path(python).is_file() and os.access(python, os.X_OK)):
            fix = "give the path of a Python interpreter, such as /opt/verl/bin/python"
            yield Fault(f"`{name}` names {python}, which is not an interpreter", place_of(("environments", name)), fix)
