"""A model folder that is there whole or not at all, and says where it comes from."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from egpo.data.staging import StagingFolder, remove_abandoned
from egpo.errors import InputError
from egpo.files import UNFINISHED, fsync_path

_WEIGHTS = (".safetensors", ".bin")
NOTE = "merge.json"
"""What was merged, from which files, and how it was verified."""


def require_free(out: Path, actor: Path, *, force: bool) -> None:
    """Raises unless `out` is free, or holds an earlier merge of this checkpoint, or a model that `force` gives up.
    Never gives up anything else: a folder that is no model is not ours to remove."""
    place = out.resolve()
    if actor.is_relative_to(place) or place.is_relative_to(actor):
        raise InputError("lies within the checkpoint, or around it", where=str(out), fix="choose another --out")
    if out.exists() and not out.is_dir():
        raise InputError("is a file", where=str(out), fix="give a folder as --out")
    held = sorted(path.name for path in out.iterdir() if not path.name.startswith(UNFINISHED)) if out.exists() else []
    if not held or _source_of(out) == str(actor):
        return
    is_model = "config.json" in held and any(name.endswith(_WEIGHTS) for name in held)
    if not (force and is_model):
        more = " and more" if len(held) > 3 else ""
        fix = "choose another --out, or replace the model with --force" if is_model else "choose another --out"
        raise InputError(f"already holds {', '.join(held[:3])}{more}", where=str(out), fix=fix)


def require_room(out: Path, num_bytes: int) -> None:
    """Before hours of copying, not after."""
    existing = next(path for path in (out, *out.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        what = f"the model takes {num_bytes / 1e9:.2f} GB, and {free / 1e9:.2f} GB are free"
        raise InputError(what, where=str(out), fix="free some space, or choose another --out")


@contextmanager
def replaced(out: Path) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `out` when the block ends well. Until then, and after any
    failure, `out` is as it was. A link stays one: the model goes where it leads, to that disk."""
    out = out.resolve()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(out.parent)
        aside = StagingFolder(out.parent)
    except OSError as error:
        raise _cannot_write(out, error) from error
    try:
        new = aside.path / "new"
        new.mkdir()
        yield new
        for path in [*new.rglob("*"), new]:
            fsync_path(path)
        _swap(new, out, aside.path / "old")
    except (OSError, SafetensorError) as error:
        raise _cannot_write(out, error) from error
    finally:
        aside.remove()


def _swap(new: Path, out: Path, old: Path) -> None:
    if out.exists():
        os.rename(out, old)
    try:
        os.rename(new, out)
    except OSError:
        if old.exists():
            os.rename(old, out)
        raise
    fsync_path(out.parent)


def _source_of(out: Path) -> str | None:
    """The checkpoint that an earlier merge was made of."""
    try:
        value: Any = json.loads((out / NOTE).read_text(encoding="utf-8"))
        return str(value["source"]["checkpoint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _cannot_write(out: Path, error: Exception) -> InputError:
    """safetensors wraps what the system said: `Error while serializing: I/O error: No space left on device (...)`."""
    said = (error.strerror if isinstance(error, OSError) else None) or str(error).rpartition("I/O error: ")[2]
    return InputError(
        f"cannot write there ({said}); what was there is unchanged",
        where=str(out),
        fix="free some space or mend the permissions, or choose another --out",
    )
