"""Runs BFCL once over its cases (a pass), in BFCL's own Python environment, in a new folder, inside bubblewrap.

BFCL executes text that a model wrote (`eval` of the calls in multi-turn cases), so it runs in a sandbox. Inside
bubblewrap the file system is read-only, home folders and /tmp are empty except for what BFCL needs, and other processes
are invisible. The host's network stays reachable, because BFCL sends its requests to the model's server.
"""

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from egpo.errors import EgpoError, InputError, how_it_ended, warn_once

MISSING = (
    "BFCL executes calls that the model wrote. Bubblewrap (`bwrap`) does not work on this machine, so these calls run "
    "without a sandbox. To install it on Debian or Ubuntu: apt-get install bubblewrap"
)


def in_bubblewrap(command: Sequence[str], work: Path, readable: Sequence[Path]) -> list[str]:
    """Return the command line that runs `command` inside bubblewrap.

    There it can write only to `work`; of the hidden folders (/tmp, /home and others) it can read only those in
    `readable`. If bubblewrap does not work on this machine, warn and return the command unchanged.
    """
    bwrap = shutil.which("bwrap")
    if bwrap is None or not _works(bwrap):
        warn_once("bfcl_enclosure", MISSING)
        return list(command)
    options = ["--die-with-parent", "--unshare-pid", "--unshare-ipc", "--ro-bind", "/", "/", "--dev", "/dev"]
    options += ["--proc", "/proc"]
    for hidden in _hidden():
        options += ["--tmpfs", hidden]
    for path in sorted({os.path.realpath(path) for path in readable} | {str(path.absolute()) for path in readable}):
        options += ["--ro-bind", path, path]
    whole = str(work.resolve())
    return [bwrap, *options, "--bind", whole, whole, "--chdir", whole, "--setenv", "HOME", whole, "--", *command]


def _hidden() -> list[str]:
    places = {"/tmp", "/home", "/root", "/var/tmp", "/run", str(Path.home())}
    return sorted(place for place in places if os.path.isdir(place) and place != "/")


@cache
def _works(bwrap: str) -> bool:
    """Return whether bubblewrap can start a program: in some containers it is installed but not permitted."""
    tried = [bwrap, "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "/bin/true"]
    try:
        return subprocess.run(tried, capture_output=True, timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        return False


PromptFormat = Literal["qwen_fc", "qwen", "llama", "template"]
PROMPT_FORMATS: Mapping[PromptFormat, str] = {
    "qwen_fc": "BFCL's prompt for Qwen with function calling, as on the leaderboard",
    "qwen": "BFCL's prompt for Qwen, with tools described in the prompt",
    "llama": "BFCL's prompt for Llama 3.1 and later",
    "template": "the model's own chat template",
}
ATTEMPTS = 3
BFCLS_MAX_TOKENS = 4096
"""BFCL's own limit on the length of an answer, in tokens, for every model."""
_DRIVER = Path(__file__).with_name("inside") / "drive.py"
_LINES_KEPT = 15
_NOT_READY = 3
"""Exit code of the driver if the server does not answer (`inside/drive.py`)."""
_TRIES = 3
"""Attempts per request of OpenAI's client, which BFCL uses."""
_SPARE_S = 600.0
"""Seconds allowed for BFCL's own work between two lines of its output: imports, and the execution of calls."""
_LOCKS = ".file_locks"
"""Name of the folder in which BFCL keeps a lock file for each file that it writes."""


@dataclass(frozen=True)
class BfclSettings:
    """The server, the cases and the sampling settings of a pass of BFCL.

    `url`: the server's address, which ends with `/v1`. `tokenizer`: a model folder. `cases`: ids of the cases to run in
    each category; none: all cases. `left_out`: ids of cases that are not run, because a model was trained on them.
    `threads`: cases run concurrently. `template`: variables of the
    chat template. `instruction`: text before the system message, for the prompt format `template`. `max_tokens`:
    longest answer; None: BFCL's 4,096 tokens. `context`: the server's context length in tokens; None: the model's.
    `timeout_s`: time limit, in seconds, for one answer.
    """

    url: str
    served_name: str
    tokenizer: str
    categories: tuple[str, ...]
    cases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    prompt_format: PromptFormat = "qwen_fc"
    temperature: float = 0.001
    threads: int = 16
    template: Mapping[str, Any] = field(default_factory=dict)
    instruction: str = ""
    max_tokens: int | None = None
    context: int | None = None
    timeout_s: float = 3600.0
    left_out: tuple[str, ...] = ()

    @property
    def other_max_tokens(self) -> int | None:
        """The limit on the length of an answer in tokens; None if it is BFCL's own limit, given explicitly or not."""
        return None if self.max_tokens == BFCLS_MAX_TOKENS else self.max_tokens


def run_pass(python: Path, asked: BfclSettings, work: Path, hear: Callable[[str], None]) -> None:
    """Run BFCL once over the cases, and write its results and scores to `work`.

    The folder `work` must not exist, because BFCL would reuse answers that it finds there. `hear` is called with each
    line that BFCL prints.
    """
    work.mkdir(parents=True)
    job = {
        "do": "evaluate",
        "attempts": ATTEMPTS,
        "served_name": asked.served_name,
        "prompt_format": asked.prompt_format,
        "timeout_s": asked.timeout_s,
        "categories": list(asked.categories),
        "cases": {name: list(ids) for name, ids in asked.cases.items()},
        "temperature": asked.temperature,
        "threads": asked.threads,
        "max_tokens": asked.other_max_tokens,
        "context": asked.context,
    }
    drive(python, job, asked, work, hear)


def built_prompt(python: Path, asked: BfclSettings, work: Path, messages: Sequence[Any], tools: Sequence[Any]) -> str:
    """Return the prompt that BFCL sends for these messages and tools."""
    work.mkdir(parents=True)
    job = {
        "do": "prompt",
        "served_name": asked.served_name,
        "prompt_format": asked.prompt_format,
        "timeout_s": asked.timeout_s,
        "messages": list(messages),
        "tools": list(tools),
    }
    drive(python, job, asked, work, lambda line: None)
    return (work / "prompt.txt").read_text(encoding="utf-8")


def drive(python: Path, job: Mapping[str, Any], asked: BfclSettings, work: Path, hear: Callable[[str], None]) -> None:
    """Run `inside/drive.py` with this job in BFCL's environment, and call `hear` with each line that it prints.

    Raise EgpoError if it fails, or if it prints nothing for longer than an answer may take.
    """
    file = work / "job.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    model = _folder(asked.tokenizer)
    readable = [_DRIVER.parent, python.parent.parent, _base(python), *_read_with(model)]
    command = in_bubblewrap([str(python), "-B", str(_DRIVER), str(file.resolve())], work, readable)
    if model is not None and command[0] != str(python):
        _require_readable(model, readable)
    process = subprocess.Popen(
        command,
        env=_environment(asked, work),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    said: list[str] = []
    try:
        assert process.stdout is not None
        for line in _lines_within(process.stdout, _TRIES * asked.timeout_s + _SPARE_S):
            said.append(line)
            hear(line)
        code = process.wait(_SPARE_S)
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        fix = "check the server, or allow more seconds per answer with --timeout"
        raise EgpoError(f"BFCL was stopped: {error}", where=str(work / "bfcl.log"), fix=fix) from error
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        (work / "bfcl.log").write_text("\n".join(said) + "\n", encoding="utf-8")
        shutil.rmtree(work / _LOCKS, ignore_errors=True)
    if code == _NOT_READY and said:
        raise EgpoError(said[-1], fix=f"see the server's log; BFCL's output is in {work / 'bfcl.log'}")
    if code:
        shown = "\n".join(said[-_LINES_KEPT:])
        raise EgpoError(f"BFCL {how_it_ended(code)}:\n{shown}", where=str(work / "bfcl.log"))


def _lines_within(output: IO[str], silence_s: float) -> Iterator[str]:
    """Yield the lines of a process's output. Raise TimeoutError if there is no line for `silence_s` seconds."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        for line in output:
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = lines.get(timeout=silence_s)
        except queue.Empty as error:
            raise TimeoutError(f"it printed nothing for {silence_s:.0f} s") from error
        if line is None:
            return
        yield line


def _environment(asked: BfclSettings, work: Path) -> dict[str, str]:
    """Return the environment variables of the BFCL process.

    Some of them configure BFCL. Other variables of this process, such as API keys, are not passed on.
    """
    folder = _folder(asked.tokenizer)
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE") if name in os.environ}
    return kept | {
        "HOME": str(work.resolve()),
        "BFCL_PROJECT_ROOT": str(work.resolve()),
        "REMOTE_OPENAI_BASE_URL": asked.url,
        "REMOTE_OPENAI_API_KEY": "EMPTY",  # a placeholder: BFCL must not know the real key
        # BFCL runs in another folder, where a relative path would not be found.
        "REMOTE_OPENAI_TOKENIZER_PATH": str(folder.absolute()) if folder else asked.tokenizer,
        "EGPO_BFCL_TEMPLATE": json.dumps(dict(asked.template)),
        "EGPO_BFCL_INSTRUCTION": asked.instruction,
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NO_PROXY": "127.0.0.1,localhost",
    }


def _base(python: Path) -> Path:
    """Return the installation folder of the Python from which the virtual environment of `python` was created."""
    home = python.parent.parent / "pyvenv.cfg"
    for line in home.read_text().splitlines() if home.is_file() else ():
        name, _, value = line.partition("=")
        if name.strip() == "home":
            return Path(value.strip()).resolve().parent
    return Path(sys.base_prefix)


def _folder(tokenizer: str) -> Path | None:
    return Path(tokenizer) if os.path.isdir(tokenizer) else None


def _read_with(model: Path | None) -> list[Path]:
    """Return the model folder, and the folder to which the files of the hub's cache link (snapshots/ID -> blobs)."""
    if model is None:
        return []
    place = model.resolve()
    blobs = place.parent.parent / "blobs"
    return [model, blobs] if place.parent.name == "snapshots" and blobs.is_dir() else [model]


def _require_readable(model: Path, readable: Sequence[Path]) -> None:
    """Raise InputError if the tokenizer is a link to a place that is hidden in the sandbox.

    Such a link is not followed: in a folder from somewhere else it may lead to any file of the user.
    """
    seen = [os.path.realpath(path) for path in readable]
    for path in sorted(model.iterdir()):
        target = os.path.realpath(path)
        is_hidden = _is_below(target, _hidden()) and not _is_below(target, seen)
        if path.is_symlink() and path.suffix in (".json", ".jinja", ".txt", ".model") and is_hidden:
            what = f"it is a link to {target}, which BFCL cannot read in its sandbox"
            raise InputError(what, where=str(path), fix=f"copy the model with its files: cp -rL {model} COPY")


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path.startswith(folder.rstrip("/") + "/") for folder in folders)
