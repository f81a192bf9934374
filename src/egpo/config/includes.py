"""The reader of a recipe and the files that it includes: merged values, each with the file and line that set it.

    include: parts/tiny.yaml            # or a list; relative to the file that contains the key
    include: countdown_tiny             # a recipe of the package, by its name

Included files are merged in their order, and the including file last. Sections are merged key by key; any other value
replaces the earlier one.
"""

from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from egpo.config.old_spellings import current_document
from egpo.config.yaml_text import Document, parse_yaml
from egpo.errors import ConfigError, Fault, nearest, shortened
from egpo.files import path_fault
from egpo.recipes import advice_for_missing, recipe_path
from egpo.sections import KeyPath

INCLUDE = "include"
_DEEPEST = 50


@dataclass(frozen=True)
class Layers:
    """The merged values of one or more files, and for each key the place (`file:line`) that set it last."""

    value: dict[str, Any]
    set_at: dict[KeyPath, str]


def read_layers(path: FilePath, kind: str = "recipe") -> Layers:
    """Return the values of a file merged over those of the files that it includes. `kind` is used in messages."""
    return _read_layers(path, kind, (), {})


def _read_layers(path: FilePath, kind: str, chain: tuple[FilePath, ...], known: dict[FilePath, Layers]) -> Layers:
    """Read a file and, recursively, the files that it includes. `chain`: the files whose includes led to this one, to
    detect cycles. `known`: cache of files already read; without it a file that several files include is read many
    times."""
    document = current_document(_read(path, kind), str(path))
    set_at = {key: f"{path}:{line}" for key, line in document.line_of.items() if key[0] != INCLUDE}
    layers = Layers({}, {})
    for name in _included(document, path):
        place = f"{path}:{document.line_of[(INCLUDE,)]}"
        base = _base(path, name, place)
        _refuse_cycle((*chain, path), base, place)
        resolved = base.resolve()
        if resolved not in known:
            known[resolved] = _read_layers(base, kind, (*chain, path), known)
        layers = merge_layers(layers, known[resolved])
    return merge_layers(layers, Layers({key: value for key, value in document.value.items() if key != INCLUDE}, set_at))


def _included(document: Document, path: FilePath) -> list[str]:
    found = document.value.get(INCLUDE, [])
    names = [found] if isinstance(found, str) else found
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        place = f"{path}:{document.line_of[(INCLUDE,)]}"
        raise ConfigError([Fault(f"`include` is {found!r:.60}", place, "it must be a file, or a list of files")])
    return names


def _base(path: FilePath, name: str, place: str) -> FilePath:
    if fault := path_fault(name):
        raise ConfigError([Fault(f"`include` has the invalid path {shortened(name)}", place, f"it must be {fault}")])
    base = path.parent / recipe_path(FilePath(name).expanduser())
    if base.is_file():
        return base
    if base.is_dir():
        fix = "name each file of the folder"
        raise ConfigError([Fault(f"the included path `{name}` is a folder", place, fix)])
    if not base.parent.is_dir():
        what = f"the included file `{name}` does not exist: there is no folder {base.parent}"
        raise ConfigError([Fault(what, place, "check the path")])
    there = [one.name for one in base.parent.glob("*.yaml") if one.name != path.name]
    advice = nearest(base.name, there) if there else f"{base.parent} contains no .yaml file"
    raise ConfigError([Fault(f"the included file `{name}` does not exist", place, advice)])


def _refuse_cycle(chain: tuple[FilePath, ...], base: FilePath, place: str) -> None:
    if len(chain) > _DEEPEST:
        what = f"more than {_DEEPEST} files include each other in a chain"
        raise ConfigError([Fault(what, place, "include fewer files in a chain")])
    if base.resolve() in [path.resolve() for path in chain]:
        shown = " -> ".join(str(path) for path in (*chain, base))
        raise ConfigError([Fault(f"the file includes itself: {shown}", place, "remove one of these includes")])


def merge_layers(lower: Layers, upper: Layers) -> Layers:
    """Merge two sets of values. Sections are merged key by key; any other value of `upper` replaces that of `lower`."""
    replaced: list[KeyPath] = []
    value = _merged(lower.value, upper.value, (), replaced)
    kept = {key: place for key, place in lower.set_at.items() if not any(key[: len(path)] == path for path in replaced)}
    return Layers(value, kept | upper.set_at)


def _merged(lower: dict[str, Any], upper: dict[str, Any], path: KeyPath, replaced: list[KeyPath]) -> dict[str, Any]:
    """Return the merged values. Append to `replaced` the keys whose values in `lower` were replaced."""
    merged = dict(lower)
    for key, new in upper.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            merged[key] = _merged(old, new, (*path, key), replaced)
        else:
            merged[key] = new
            replaced.append((*path, key))
    return merged


def _read(path: FilePath, kind: str) -> Document:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        fix = advice_for_missing(path) if kind == "recipe" else "check the path"
        raise ConfigError([Fault("no such file", str(path), fix)]) from error
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        if fault := path_fault(str(path)):
            what = f"the {kind} cannot be read"
            raise ConfigError([Fault(what, shortened(str(path)), f"it must be {fault}")]) from error
        fix = f"a {kind} must be a YAML file in UTF-8"
        raise ConfigError([Fault(f"the {kind} cannot be read: {error}", str(path), fix)]) from error
    document = parse_yaml(text, str(path))
    if document.value is None:
        fix = (
            "a recipe needs at least model.path, and task.name or data.path"
            if kind == "recipe"
            else "remove the file, or write settings into it"
        )
        raise ConfigError([Fault(f"the {kind} is empty", str(path), fix)])
    if not isinstance(document.value, dict):
        found = "a list" if isinstance(document.value, list) else f"`{str(document.value)[:40]}`"
        raise ConfigError([Fault(f"the {kind} is {found}", str(path), "it must be a section of keys and values")])
    return document
