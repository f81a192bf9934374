"""The cache of self-checks: what was measured for the same weights, code and device is not measured again.

One small file per measurement in egpo's cache folder. The oldest are removed when there are more than MOST_KEPT.
"""

import hashlib
import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import egpo
from egpo.files import cache_folder, write_atomically
from egpo.fingerprints import sealed, unsealed
from egpo.local.models.policy import Policy
from egpo.native.library import describe_kernels

WORTH_KEEPING_S = 0.5
"""Seconds. A faster measurement is repeated rather than stored."""
MOST_KEPT = 500
_SOURCES = ("local/models", "local/sampling", "native/sources")
_CHUNK = 2**18


def verdict_key(policy: Policy) -> str:
    """Return a digest of all that a self-check depends on."""
    model = policy.model
    name = torch.cuda.get_device_name(policy.device) if policy.device.type == "cuda" else describe_kernels()
    config = {key: value for key, value in model.config.to_dict().items() if key != "_name_or_path"}
    facts = [
        *(torch.__version__, transformers.__version__, name, type(model).__name__, policy.path, policy.context),
        *(str(policy.head_VD.dtype), _code_digest(), len(policy.tokenizer)),
        *(json.dumps(config, sort_keys=True, default=str), weights_digest(model)),
    ]
    return hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:32]


def weights_digest(model: torch.nn.Module) -> str:
    """Return a digest of all weights, computed where they are: copying them from a GPU takes longer than the check.

    It tells versions of a model apart; it does not resist somebody who forges one."""
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype} {_sums(weight).tolist()}\n".encode())
    return digest.hexdigest()


def _sums(weight: Tensor) -> Tensor:
    """Return two sums of the weights' bytes as 64-bit integers, modulo 2^64: a plain one, and one in which every place
    has a factor of its own."""
    flat = weight.detach().contiguous().view(-1).view(torch.uint8)
    whole = flat[: len(flat) // 8 * 8].view(torch.int64)
    rest = torch.nn.functional.pad(flat[len(whole) * 8 :], (0, 8)).view(-1)[:8].view(torch.int64)
    factor = torch.randint(1, 2**62, (_CHUNK,), generator=torch.Generator().manual_seed(0)).to(flat.device)
    total = torch.cat([rest, rest])
    for chunk in torch.split(whole, _CHUNK):
        total = total * 31 + torch.stack([chunk.sum(), (chunk * factor[: len(chunk)]).sum()])
    return total


@cache
def _code_digest() -> str:
    root = Path(egpo.__file__).parent
    files = sorted(
        path for place in _SOURCES for path in (root / place).rglob("*") if path.suffix in (".py", ".c", ".h")
    )
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()


def recorded_verdict(key: str) -> list[dict[str, Any]]:
    """Return the measurement of this key; empty if there is none, or if it cannot be read."""
    try:
        held = unsealed(json.loads((_folder() / f"{key}.json").read_text(encoding="utf-8")))
        rows = held.get("rows") if isinstance(held, dict) else None
        return rows if isinstance(rows, list) and all(isinstance(row, dict) for row in rows) else []
    except (OSError, ValueError, RecursionError):
        return []


def record_verdict(key: str, rows: list[dict[str, Any]], seconds: float) -> None:
    """Store a measurement that took long. A cache that cannot be written costs time, and is no error."""
    if seconds < WORTH_KEEPING_S:
        return
    with suppress(OSError):
        _folder().mkdir(parents=True, exist_ok=True)
        write_atomically(_folder() / f"{key}.json", json.dumps(sealed({"rows": rows})) + "\n")
        kept = sorted(_folder().glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in kept[:-MOST_KEPT]:
            path.unlink(missing_ok=True)


def _folder() -> Path:
    return cache_folder() / "self_checks"
