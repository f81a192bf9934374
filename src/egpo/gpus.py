"""The GPUs of this machine and their free memory, from `nvidia-smi`; torch is not imported.

`read_gpus` returns None if nothing is known: no driver, no `nvidia-smi`, or an answer that cannot be read. Callers then
leave their check out, and the program that uses the GPU reports the fault itself.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from egpo.errors import InputError
from egpo.processes.commands import run_limited

GIB = 2**30
_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,memory.total,memory.free", "--format=csv,noheader,nounits")
_MIB = 2**20
MEMORY_CODE = """
def gpu_memory(torch, index):
    try:
        return torch.cuda.mem_get_info(index)
    except Exception:
        return 0, torch.cuda.get_device_properties(index).total_memory
"""
"""Code for an interpreter with torch: the bytes of a GPU, free and in all. If other processes leave too little for the
driver's own part of a process, torch raises an error of five lines: then nothing is free."""


@dataclass(frozen=True)
class Gpu:
    """A GPU: its index, and its memory in bytes, in all and not used by any process."""

    index: int
    total_bytes: float
    free_bytes: float
    uuid: str = ""


def read_gpus() -> list[Gpu] | None:
    """Return the GPUs that this process may use (`CUDA_VISIBLE_DEVICES`); None if they cannot be found out."""
    try:
        done = run_limited(_QUERY, wait="interpreter", what=_QUERY[0], limit_s=60)
    except (OSError, subprocess.SubprocessError):
        return None
    found = parse_gpus(done.stdout) if done.returncode == 0 else None
    return None if found is None else visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def parse_gpus(text: str) -> list[Gpu] | None:
    """Return the GPUs in the output of `nvidia-smi` (MiB, one GPU per line); None for another output."""
    found = []
    for line in text.strip().splitlines():
        try:
            index, uuid, total, free = (part.strip() for part in line.split(","))
            found.append(Gpu(int(index), float(total) * _MIB, float(free) * _MIB, uuid))
        except ValueError:
            return None
    return found


def visible(gpus: Sequence[Gpu], variable: str | None) -> list[Gpu] | None:
    """Return the GPUs that CUDA_VISIBLE_DEVICES names by index or UUID, in its order; all if it is not set.

    As in CUDA, the list ends at the first name that fits no GPU. None if it names a part of a GPU (`MIG-...`), whose
    memory `nvidia-smi` does not list.
    """
    if variable is None:
        return list(gpus)
    words = [part.strip() for part in variable.split(",") if part.strip()]
    if any(word.startswith("MIG-") for word in words):
        return None
    chosen = []
    for word in words:
        fitting = [one for one in gpus if str(one.index) == word or (len(word) > 4 and one.uuid.startswith(word))]
        if not fitting:
            break
        chosen.append(fitting[0])
    return chosen


def require_free_memory(gpus: Sequence[Gpu], share: float, setting: str, what_for: str) -> None:
    """Raise InputError if a GPU has less free memory than `share` of its memory, which `what_for` takes at its start.

    `setting` is the name of the setting that sets this share.
    """
    for gpu in gpus:
        if gpu.free_bytes < share * gpu.total_bytes:
            used = gpu.total_bytes - gpu.free_bytes
            what = (
                f"{used / GIB:.1f} of {gpu.total_bytes / GIB:.1f} GiB are in use by other processes, and {what_for} "
                f"takes {share:.2f} of the memory ({share * gpu.total_bytes / GIB:.1f} GiB)"
            )
            most = max(0.0, gpu.free_bytes / gpu.total_bytes - 0.02)
            lower = f"set {setting} to at most {most:.2f}, " if most >= 0.05 else ""
            ends = "end the other processes (`nvidia-smi` lists them)"
            fix = f"{ends}, {lower}or choose other GPUs with CUDA_VISIBLE_DEVICES"
            raise InputError(what, where=f"GPU {gpu.index}", fix=fix)
