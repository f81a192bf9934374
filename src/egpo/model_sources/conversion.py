"""Convert a GGUF file into a model folder, once, in egpo's cache.

    ~/.cache/egpo/models/<file>-<digest>/    config.json, generation_config.json, model*.safetensors (float32),
                                             tokenizer files, egpo_source.json (see `ModelOrigin`)

The digest covers the GGUF file, tokenizer files beside it, and the version of this conversion. The folder is written
under a temporary name and renamed when it is complete; shards of weights that a killed process has finished are kept.
Processes that convert the same file at the same time wait for each other.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from egpo.errors import EgpoError, notify_once, warn_once
from egpo.files import UNFINISHED, cache_folder, fsync_path, fsync_tree, lock_file, system_error, write_atomically
from egpo.fingerprints import digest_of, sealed, unsealed
from egpo.model_sources.container import GgufFile, read_gguf
from egpo.model_sources.gguf_tokenizer import TOKENIZER_FILES, require_tokenizer, stop_tokens, write_tokenizer
from egpo.model_sources.gguf_weights import GgufModel
from egpo.model_sources.quantisations import type_name
from egpo.waits import waiting

_VERSION = 1
"""Raise it when the same GGUF file would give another folder."""
SHARD_BYTES = 2**30
ORIGIN = "egpo_source.json"


@dataclass(frozen=True)
class ModelOrigin:
    """Where a converted model comes from: its name in tables, the digest of its GGUF file, and the package that
    contained it, if any. `sizes` are the bytes of the folder's files, `digests` their sha256."""

    name: str
    gguf_sha256: str
    package: str | None = None
    package_sha256: str | None = None
    sizes: dict[str, int] | None = None
    digests: dict[str, str] | None = None

    @property
    def described(self) -> str:
        """The model's origin as one line, for `provenance.json`."""
        package = f"; {self.package}, sha256 {self.package_sha256}" if self.package else ""
        return f"{self.name}; GGUF sha256 {self.gguf_sha256}{package}"


def origin_of(folder: Path) -> ModelOrigin | None:
    """Return where the model of a folder comes from; None if the folder was not converted from a GGUF file.

    OSError if the file is there and cannot be read now: the model must not get another name, or be converted again.
    """
    try:
        return ModelOrigin(**unsealed(json.loads((folder / ORIGIN).read_text(encoding="utf-8"))))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, RecursionError):
        return None


def converted_folder(path: Path, origin: ModelOrigin | None = None) -> Path:
    """Return the model folder of a GGUF file; convert the file if that has not been done.

    `origin` is where the file comes from, if that is known; without it, the model is identified by the digest
    and the name of the file.
    """
    digest = origin.gguf_sha256 if origin else _remembered_digest(path)
    folder = _place(path.stem, digest, path.parent)
    if not is_converted(folder):
        file = read_gguf(path)
        model = GgufModel.of(file)
        require_tokenizer(file)
        origin = origin or ModelOrigin(_name(file), digest)
        with _locked(folder):
            if not is_converted(folder):
                notify_once(f"converting {path.name}, once, into {folder}")
                _convert(model, folder, origin)
    return folder


def is_converted(folder: Path) -> bool:
    """Return whether the folder has all its files as they were written. A damaged one is removed and made again.

    Every byte is read, once in a process: 0.5 GB take a third of a second.
    """
    if not folder.is_dir():
        return False
    origin = origin_of(folder)
    if origin and all(_size(folder / name) == size for name, size in (origin.sizes or {}).items()):
        state = tuple((name, (folder / name).stat().st_mtime_ns) for name in origin.sizes or {})
        if _verified.get(folder) == state:
            return True
        if all(_file_digest(folder / name) == digest for name, digest in (origin.digests or {}).items()):
            _verified[folder] = state
            return True
    warn_once(f"damaged {folder}", f"{folder} is damaged; converting the model again")
    shutil.rmtree(folder, ignore_errors=True)
    return False


_verified: dict[Path, tuple[tuple[str, int], ...]] = {}
"""Folders whose digests were compared in this process, with the times at which their files were changed."""


def known_folder(stem: str, digest: str) -> Path:
    """Return where the folder of a GGUF file without tokenizer files beside it lies, or would lie."""
    return _place(stem, digest, None)


def _place(stem: str, digest: str, beside: Path | None) -> Path:
    found = {name: _file_digest(beside / name) for name in TOKENIZER_FILES if beside and (beside / name).is_file()}
    key = digest_of([_VERSION, digest, found])[:16]
    return cache_folder() / "models" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', stem)[:80]}-{key}"


def _convert(model: GgufModel, folder: Path, origin: ModelOrigin) -> None:
    file = model.file
    staging = folder.with_name(f"{UNFINISHED}{folder.name}")
    try:
        staging.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(staging)
        write_tokenizer(file, staging)
        stops = stop_tokens(file, staging)
        _write_json(staging / "config.json", model.config(stops))
        _write_json(staging / "generation_config.json", {"eos_token_id": stops})
        _write_weights(model, staging)
        sizes = {path.name: path.stat().st_size for path in sorted(staging.iterdir()) if path.name != ORIGIN}
        digests = {name: _file_digest(staging / name) for name in sizes}
        _write_json(staging / ORIGIN, sealed({**asdict(origin), "sizes": sizes, "digests": digests}))
        fsync_tree(staging)
        os.replace(staging, folder)
        fsync_path(folder.parent)
    except Exception as error:  # boundary: tokenizers reports a full disk as a plain Exception
        if (failed := system_error(error)) is None:
            raise
        raise _cannot_write(folder, failed) from error


def _cannot_write(folder: Path, error: OSError) -> EgpoError:
    fix = "free some disk space, or set XDG_CACHE_HOME to a folder with more"
    return EgpoError(f"cannot be written ({error.strerror})", where=str(folder), fix=fix)


def _remove_unfinished(staging: Path) -> None:
    """Remove what a killed process left in the temporary folder, but for shards that it finished."""
    for path in staging.iterdir():
        if path.name.startswith(".") or path.suffix != ".safetensors":
            path.unlink()


def _write_weights(model: GgufModel, staging: Path) -> None:
    from safetensors.numpy import save_file

    shards = list(_shards(model))
    names = [_shard_name(index, len(shards)) for index in range(len(shards))]
    for name, tensors in zip(names, shards, strict=True):
        if not (staging / name).exists():
            temporary = staging / f"{UNFINISHED}{name}"
            weights = {model.names[tensor]: np.ascontiguousarray(model.tensor(tensor)) for tensor in tensors}
            save_file(weights, str(temporary), metadata={"format": "pt"})
            temporary.chmod(0o644)  # save_file makes it readable for the owner alone
            fsync_path(temporary)
            os.replace(temporary, staging / name)
    if len(shards) > 1:
        places = {model.names[tensor]: name for name, held in zip(names, shards, strict=True) for tensor in held}
        total = sum(_float32_bytes(model, tensor) for tensor in model.names)
        _write_json(staging / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": places})


def _shards(model: GgufModel) -> Iterator[list[str]]:
    """Yield the names of the tensors of each shard, so that only one shard is in memory."""
    shard: list[str] = []
    size = 0
    for name in model.names:
        if shard and size + _float32_bytes(model, name) > SHARD_BYTES:
            yield shard
            shard, size = [], 0
        shard.append(name)
        size += _float32_bytes(model, name)
    yield shard


def _float32_bytes(model: GgufModel, name: str) -> int:
    return 4 * int(np.prod(model.file.tensors[name].shape))


def _shard_name(index: int, total: int) -> str:
    return "model.safetensors" if total == 1 else f"model-{index + 1:05}-of-{total:05}.safetensors"


def _name(file: GgufFile) -> str:
    """Return the model's name in tables: that of the file, and the quantisation of most of its weights."""
    weights: dict[int, int] = {}
    for entry in file.tensors.values():
        weights[entry.type_id] = weights.get(entry.type_id, 0) + int(np.prod(entry.shape))
    matrices = {kind: count for kind, count in weights.items() if kind != 0} or weights
    kind = type_name(max(matrices, key=lambda kind: matrices[kind]))
    stem = re.sub(rf"[.-]{kind}(_[SML])?$", "", file.path.stem, flags=re.IGNORECASE)
    return stem if kind in ("F32", "F16", "BF16") else f"{stem} (dequantised from {kind})"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. The system releases it when the process ends, however it ends."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder.parent / f"{UNFINISHED}{folder.name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        try:
            lock_file(handle)
        except BlockingIOError:
            with waiting("same model", f"another process, which converts the model into {folder}"):
                lock_file(handle, wait=True)
        yield
    finally:
        os.close(handle)


def _remembered_digest(path: Path) -> str:
    """Return the sha256 of a file. It is kept by path, size and time of change: reading gigabytes takes long."""
    state = path.stat()
    identity = [str(path.resolve()), state.st_size, state.st_mtime_ns]
    memory = cache_folder() / "digests" / digest_of(identity)[:32]
    try:
        digest, check = memory.read_text(encoding="ascii").split()
        if check == digest_of(digest)[:16]:
            return digest
    except (OSError, ValueError):
        pass
    digest = _file_digest(path)
    try:
        memory.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(memory, f"{digest} {digest_of(digest)[:16]}")
    except OSError as error:
        warn_once(f"memory {memory}", f"{memory} cannot be written ({error.strerror})")
    return digest


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2) + "\n")
