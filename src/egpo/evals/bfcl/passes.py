"""BFCL executes what a model wrote (`eval`, over the calls of a multi-turn case): so it runs where it can do no harm.

Bubblewrap: the file system is read-only, homes and /tmp are empty but for what the job needs, processes are its own.
The network is the host's, since that is where the served model is.

One pass of BFCL over its cases, in a folder of its own.
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

from egpo.errors import EgpoError, how_it_ended, warn_once

MISSING = (
    "BFCL executes calls that the model wrote, and bubblewrap (`bwrap`) does not work here: they run unprotected, as "
    "with BFCL alone. Debian, Ubuntu: apt-get install bubblewrap"
)


def in_bubblewrap(command: Sequence[str], work: Path, readable: Sequence[Path]) -> list[str]:
    """The command, able to write in `work` alone, and to read `readable` wherever it lies."""
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
    """In some containers it is installed and forbidden."""
    tried = [bwrap, "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "/bin/true"]
    try:
        return subprocess.run(tried, capture_output=True, timeout=60).returncode == 0
    except subprocess.TimeoutExpired:
        return False


PromptFormat = Literal["qwen_fc", "qwen", "llama", "template"]
PROMPT_FORMATS: Mapping[PromptFormat, str] = {
    "qwen_fc": "BFCL's own for Qwen, with tools: as on the leaderboard",
    "qwen": "BFCL's own for Qwen, with tools described in a prompt",
    "llama": "BFCL's own for Llama 3.1 and later",
    "template": "the model's own chat template",
}
ATTEMPTS = 3
BFCLS_MAX_TOKENS = 4096
"""What BFCL asks for at most, whatever the model."""
_DRIVER = Path(__file__).with_name("inside") / "drive.py"
_LINES_KEPT = 15
_NOT_READY = 3
"""Exit code of the driver where the server does not answer (`inside/drive.py`)."""
_TRIES = 3
"""How often OpenAI's client, which BFCL uses, sends a request that fails."""
_SPARE_S = 600.0
"""Seconds for BFCL's own work between two lines of its output: imports, and the execution of calls."""
_LOCKS = ".file_locks"
"""A lock file of BFCL's for each file that it has written."""


@dataclass(frozen=True)
class BfclSettings:
    """Who is asked and how. `url` is the server's, up to `/v1`; `tokenizer` a model folder, whose context also bounds
    the answers, as does `context`, the server's, where that is shorter. `cases` are ids by category; a category without
    any is asked whole. `max_tokens` bounds an answer; None: BFCL's own 4,096. `timeout_s` is the longest that one
    answer may take."""

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

    @property
    def other_max_tokens(self) -> int | None:
        """`max_tokens` where it is not BFCL's own: by number or by default, that is one exam."""
        return None if self.max_tokens == BFCLS_MAX_TOKENS else self.max_tokens


def run_pass(python: Path, asked: BfclSettings, work: Path, hear: Callable[[str], None]) -> None:
    """Results and scores in `work`, which must be new: BFCL takes answers that lie there for those of this model."""
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
    """What BFCL sends for these messages and tools."""
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
    """Run the driver to its end; `hear` is called with each line that it prints.

    An EgpoError where it fails, and where it prints nothing for longer than any answer may take.
    """
    file = work / "job.json"
    file.write_text(json.dumps(job), encoding="utf-8")
    readable = [_DRIVER.parent, python.parent.parent, _base(python), *_folder(asked.tokenizer)]
    command = in_bubblewrap([str(python), "-B", str(_DRIVER), str(file.resolve())], work, readable)
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
        fix = "is the server well? --timeout is the longest that an answer may take"
        raise EgpoError(f"BFCL was ended: {error}", where=str(work / "bfcl.log"), fix=fix) from error
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
    """The lines of a process's output; TimeoutError where none comes for `silence_s`."""
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
    """Nothing of ours that could steer it, such as a key of some vendor; BFCL's own settings are variables."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "SSL_CERT_FILE") if name in os.environ}
    return kept | {
        "HOME": str(work.resolve()),
        "BFCL_PROJECT_ROOT": str(work.resolve()),
        "REMOTE_OPENAI_BASE_URL": asked.url,
        "REMOTE_OPENAI_API_KEY": "EMPTY",  # a key stays outside, with `keyless_address`; the client wants some word
        # BFCL works in a folder of its own: a path from here would lead nowhere.
        "REMOTE_OPENAI_TOKENIZER_PATH": next(
            (str(path.absolute()) for path in _folder(asked.tokenizer)), asked.tokenizer
        ),
        "EGPO_BFCL_TEMPLATE": json.dumps(dict(asked.template)),
        "EGPO_BFCL_INSTRUCTION": asked.instruction,
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NO_PROXY": "127.0.0.1,localhost",
    }


def _base(python: Path) -> Path:
    """The interpreter's own libraries, outside of the environment."""
    home = python.parent.parent / "pyvenv.cfg"
    for line in home.read_text().splitlines() if home.is_file() else ():
        name, _, value = line.partition("=")
        if name.strip() == "home":
            return Path(value.strip()).resolve().parent
    return Path(sys.base_prefix)


def _folder(tokenizer: str) -> list[Path]:
    return [Path(tokenizer)] if os.path.isdir(tokenizer) else []
