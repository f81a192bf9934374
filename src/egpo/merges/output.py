"""Fingerprints of a model (digests of tensors, logits), and an output folder that is replaced only when complete."""

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
from egpo.files import UNFINISHED, exchange, fsync_path, fsync_tree, system_error
from egpo.fingerprints import unsealed
from egpo.merges.places import NOTE

_NUM_PROBED = 16
_TOLERANCE = 1e-3
"""Accepted difference of logits, relative to the largest: kernels may round equal weights differently by address."""

Watch = Callable[[str, int, int], None]
"""A progress callback. Its arguments: the name of a stage, the number of parts done, and the total number."""


@dataclass(frozen=True, eq=False)
class Fingerprint:
    """The digest of each tensor by name, and the logits of one forward pass over tokens spread over the vocabulary."""

    digests: Mapping[str, str]
    logits: Tensor

    @property
    def weights_sha256(self) -> str:
        """One digest for all weights, independent of how they are split into files."""
        lines = (f"{name} {digest}\n" for name, digest in sorted(self.digests.items()))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def fingerprint(model: PreTrainedModel, stage: str, watch: Watch) -> Fingerprint:
    """Compute the fingerprint of a model. InputError if its logits are not finite: the training diverged."""
    state = model.state_dict()
    digests = {}
    for done, (name, tensor) in enumerate(state.items()):
        watch(stage, done, len(state))
        digests[name] = _digest(tensor)
    logits = _logits(model)
    if not logits.isfinite().all():
        fix = "the training diverged: choose an earlier --step"
        raise InputError("the model's logits are not finite", where="forward pass", fix=fix)
    watch(stage, len(state), len(state))
    return Fingerprint(digests, logits)


def difference(written: Fingerprint, trained: Fingerprint, where: str) -> float:
    """Return the largest difference of logits. EgpoError if the written model differs from the trained one."""
    odd = sorted(name for name in trained.digests if written.digests.get(name) != trained.digests[name])
    if odd or len(written.digests) != len(trained.digests):
        name = odd[0] if odd else "an additional tensor"
        what = f"the written model differs from the trained one: {name}"
        raise EgpoError(what, where=where, fix="check the disk, then retry")
    apart = float((written.logits - trained.logits).abs().max())
    if apart > _TOLERANCE * float(trained.logits.abs().max()):
        what = f"the written model has the same weights as the trained one, but its logits differ by {apart:g}"
        raise EgpoError(what, where=where, fix="retry; if it fails again, report this as a bug of egpo")
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


def require_free(out: Path, actor: Path, *, force: bool) -> None:
    """Raise an InputError unless `out` is new, or an earlier merge of this checkpoint, or a model and `force` is set.

    A folder that is not a model is never replaced.
    """
    place = out.resolve()
    if actor.is_relative_to(place) or place.is_relative_to(actor):
        raise InputError(
            "the output folder is inside the checkpoint, or contains it",
            where=f"--out {out}",
            fix="choose another --out",
        )
    if out.exists() and not out.is_dir():
        raise InputError("the output is a file, not a folder", where=str(out), fix="give a folder as --out")
    held = sorted(path.name for path in out.iterdir() if not path.name.startswith(UNFINISHED)) if out.exists() else []
    if not held or _source_of(out) == str(actor):
        return
    is_model = "config.json" in held and any(name.endswith(_WEIGHTS) for name in held)
    if not (force and is_model):
        more = " and more" if len(held) > 3 else ""
        fix = "choose another --out, or replace the model with --force" if is_model else "choose another --out"
        raise InputError(f"the folder already contains {', '.join(held[:3])}{more}", where=str(out), fix=fix)


def require_disk_space(out: Path, num_bytes: int) -> None:
    """Raise an InputError if the free disk space is less than `num_bytes`, before anything is written."""
    existing = next(path for path in (out, *out.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if free < num_bytes:
        what = f"the model needs {num_bytes / 1e9:.2f} GB and {free / 1e9:.2f} GB are free"
        raise InputError(what, where=str(out), fix="free some disk space, or choose another --out")


@contextmanager
def replaced(out: Path) -> Iterator[Path]:
    """Yield a new folder that replaces `out` when the block ends without an error; otherwise `out` is unchanged.

    If `out` is a link, the folder that it points to is replaced.
    """
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
        fsync_tree(new)
        _put_in_place(new, out, aside.path / "old")
    except (OSError, SafetensorError) as error:
        raise _cannot_write(out, error) from error
    finally:
        if not (aside.path / "old").exists() or out.exists():  # else the earlier model could not be moved back
            aside.remove()


def _put_in_place(new: Path, out: Path, old: Path) -> None:
    """Give the new folder its name. An earlier folder of that name is there until then."""
    if not out.exists():
        os.rename(new, out)
    elif not exchange(new, out):
        os.rename(out, old)
        try:
            os.rename(new, out)
        except OSError:
            os.rename(old, out)
            raise
    fsync_path(out.parent)


def _source_of(out: Path) -> str | None:
    """Return the path of the checkpoint that the folder was merged from; None if `egpo merge` did not write it."""
    try:
        value: Any = unsealed(json.loads((out / NOTE).read_text(encoding="utf-8")))
        return str(value["source"]["checkpoint"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    except OSError as error:
        raise InputError(f"the file cannot be read ({error.strerror})", where=str(out / NOTE), fix="retry") from error


def _cannot_write(out: Path, error: Exception) -> InputError:
    """Return the error for a failed write, with the system's message (safetensors puts it after `I/O error: `)."""
    known = system_error(error)
    reason = (known.strerror if known else None) or str(error).rpartition("I/O error: ")[2]
    return InputError(
        f"the folder cannot be written ({reason}), and is unchanged",
        where=str(out),
        fix="free some disk space or fix the permissions, or choose another --out",
    )
