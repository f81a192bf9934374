"""Writes `defaults.json` from the installed verl. Run it once for each new version of verl that is supported.

    python -m egpo.verl.launch.schema.snapshot

`defaults`: every dotted key of `ppo_trainer.yaml`, resolved. `fields`: further keys, declared only by dataclasses.
`read`: further keys that verl's code reads from plain sections without a declared default (`trainer.get("...")`).
"""

import importlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from egpo.files import write_atomically
from egpo.verl.launch.schema.known import PATH, leaves

_READ = re.compile(r"\b(trainer|data|rollout|model|actor|algorithm|ray_kwargs|reward)\.get\(\s*\"(\w+)\"")
_READ_BY_DATASET = re.compile(r"\bconfig\.get\(\s*\"(\w+)\"")


def snapshot() -> dict[str, Any]:
    """Return the schema of the installed verl."""
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    with initialize_config_module("verl.trainer.config", version_base=None):
        tree = OmegaConf.to_container(compose("ppo_trainer"), resolve=True, throw_on_missing=False)
    defaults = dict(leaves(tree))
    return {
        "version": metadata.version("verl"),
        "defaults": defaults,
        "fields": dict(_undeclared_fields(tree, ())),
        "read": sorted(read for read in _read_keys() if not any(f".{read}." in f".{key}." for key in defaults)),
    }


def _undeclared_fields(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    if "_target_" in tree:
        module, _, name = tree["_target_"].rpartition(".")
        kind = getattr(importlib.import_module(module), name)
        # Fields with a leading underscore are internal to the dataclass.
        known = [field.name for field in fields(kind) if field.name[0] != "_"] if is_dataclass(kind) else []
        if missing := sorted(set(known) - set(tree)):
            yield ".".join(path), missing
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _undeclared_fields(value, (*path, name))


def _read_keys() -> set[str]:
    """Return `section.key` for each `section.get("key")` in verl's source.

    verl's dataset (rl_dataset.py) has the section `data` in a variable `config`: `config.get("key")` is `data.key`.
    """
    import verl

    root = Path(verl.__file__).parent
    found: set[str] = set()
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        found |= {f"{section}.{key}" for section, key in _READ.findall(text)}
        if path.name == "rl_dataset.py":
            found |= {f"data.{key}" for key in _READ_BY_DATASET.findall(text)}
    return found


if __name__ == "__main__":
    write_atomically(PATH, json.dumps(snapshot(), indent=1, sort_keys=True) + "\n")
