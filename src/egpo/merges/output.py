"""What a model is, apart from how it is stored: the digest of each tensor, and what it computes.

A model folder that is there whole or not at all, and says where it comes from.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel

from egpo.data.output import StagingFolder, remove_abandoned
from egpo.errors import EgpoError, InputError
from egpo.files import UNFINISHED, fsync_path

_NUM_PROBED = 16
_TOLERANCE = 1e-3
"""Of the largest logit. The weights are equal to the bit; only the addresses that kernels see are not."""

Watch = Callable[[str, int, int], None]
"""Told of a stage's name, how many of its parts are done, and of how many."""


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """`digests` by the tensors' names; `logits` of one forward pass over tokens from all over the vocabulary."""

    digests: Mapping[str, str]
    logits: Tensor

    @property
    def weights_sha256(self) -> str:
        """One digest for all weights, whatever files they lie in."""
        lines = (f"{name} {digest}\n" for name, digest in sorted(self.digests.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def fingerprint(model: PreTrainedModel, stage: str, watch: Watch) -> Fingerprint:
    """An InputError where the model computes no finite numbers: there is nothing worth keeping in it."""
    state = model.state_dict()
    digests = {}
    for done, (name, tensor) in enumerate(state.items()):
        watch(stage, done, len(state))
        digests[name] = _digest(tensor)
    logits = _logits(model)
    if not logits.isfinite().all():
        fix = "the training diverged: choose an earlier --step"
        raise InputError("the model computes numbers that are not finite", where="forward pass", fix=fix)
    watch(stage, len(state), len(state))
    return Fingerprint(digests, logits)


def difference(written: Fingerprint, trained: Fingerprint, where: str) -> float:
    """The largest between two logits. An EgpoError where the model that was read back is not the one written."""
    odd = sorted(name for name in trained.digests if written.digests.get(name) != trained.digests[name])
    if odd or len(written.digests) != len(trained.digests):
        name = odd[0] if odd else "one that was not there"
        raise EgpoError(f"reads back with other weights: {name}", where=where, fix="is the disk sound? try again")
    apart = float((written.logits - trained.logits).abs().max())
    if apart > _TOLERANCE * float(trained.logits.abs().max()):
        raise EgpoError(f"reads back with the same weights, and computes otherwise by {apart:g}", where=where)
    return apart


def _digest(tensor: Tensor) -> str:
    kind = f"{tensor.dtype} {tuple(tensor.shape)}\n".encode()
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
    digest = hashlib.sha256(kind)
    digest.update(content)
    return digest.hexdigest()


@torch.no_grad()
def _logits(model: PreTrainedModel) -> Tensor:
    num_rows = model.get_input_embeddings().weight.shape[0]
    probe_BT = torch.linspace(0, num_rows - 1, _NUM_PROBED).long()[None]
    logits: Tensor = model(input_ids=probe_BT, use_cache=False).logits
    return logits.float()


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
