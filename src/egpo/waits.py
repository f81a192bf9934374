"""Everything that egpo waits for outside of its own computation: one table, and the line that names a long wait.

`with waiting("compiler", "cc", limit_s=300):` stands around the code that waits. After `NOTICE_S` seconds a line on
stderr names what is waited for, the limit, and the seconds so far; further lines follow after twice the time each.

To add a row: an entry of WAITS, `waiting` around the code, and a hang in `tests/faults/test_waits.py`. The table in
`docs/reliability.md` is made from this one (`python -m website.pages`).
"""

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from egpo.errors import NOTICE_PREFIX

NOTICE_S = 15.0
"""Seconds after which a wait is named. The watcher looks once a second, so that 20 s are never exceeded."""


@dataclass(frozen=True)
class Wait:
    """One kind of wait.

    `what`: what is waited for. `limit`: the time limit, with the setting that changes it. `then`: what happens at the
    limit. `unlimited`: why there is no limit, if there is none. `named_by`: how the wait is named on the screen, if not
    by `waiting`.
    """

    what: str
    limit: str = ""
    then: str = ""
    unlimited: str = ""
    named_by: str = ""


WAITS: dict[str, Wait] = {
    "judge": Wait(
        "a task's judge or a user's reward function, for example one that asks an LLM server",
        "300 s for a call (`task.judge_timeout_s`)",
        "the response is left out and counted as `failed`; three calls that hang end the run, saved, with code 1",
        named_by="a warning with the task and the problem",
    ),
    "reward worker": Wait(
        "a process of `egpo audit rewards` that judges a response",
        "300 s for a response",
        "the process is killed, and the response, after a second attempt, gets the failed verdict `worker_died`",
        named_by="the bar of the verb, or its line after 18 s: judging the rows of FILE",
    ),
    "environment start": Wait(
        "a worker process of an environment that starts", "120 s", "the worker is killed, and the run ends with code 1"
    ),
    "environment": Wait(
        "an environment: its reset, a tool, its verdict",
        "30 s for a call, 120 s for a reset (`rollout.episodes`)",
        "the episode fails as `environment_timeout` and is left out; its worker gets no new episodes",
    ),
    "openenv": Wait(
        "an OpenEnv server",
        "30 s for a step, 120 s for a reset (`rollout.episodes`)",
        "the episode fails as `environment_reset` or `environment_timeout` and is left out",
    ),
    "chat template": Wait(
        "a chat template that is tested in a process of its own, then rendered",
        "60 s, and 10 s of processor time in the test",
        "the template is refused: code 2",
    ),
    "sandbox": Wait(
        "a program in the sandbox",
        "`Limits`: 6 s for a check, 60 s for a program, and up to 120 s of waiting for a processor; 60 s for the "
        "sandbox to start",
        "the program is killed and gets the verdict `timeout`; a sandbox that does not start, or waits longer, is a "
        "failed verdict",
    ),
    "sandbox service": Wait(
        "a remote sandbox service (HTTP)",
        "the limits of the program and 35 s",
        "a failed verdict, which is left out",
    ),
    "math worker": Wait(
        "a math-verify process",
        "60 s to start; processor time and wall-clock time for a comparison",
        "the process is killed and replaced; a failed verdict",
    ),
    "compiler": Wait(
        "the C compiler, for the kernels of the embedded engine",
        "300 s",
        "its processes are ended, and torch computes everything, after a warning",
    ),
    "triton": Wait(
        "Triton, which compiles the kernels for a GPU at first use",
        unlimited="it compiles inside this process, which only a signal can end; results are kept in Triton's cache",
        named_by="the line of training, or of the verb, after 15 to 19 s of silence",
    ),
    "server start": Wait(
        "a model server that starts (`egpo serve`, `eval.serve`, BFCL)",
        "900 s (`--timeout` of `egpo serve`)",
        "the server is ended: code 2 with the last lines of its log",
    ),
    "server": Wait(
        "answers of a model server (`egpo eval --url`)",
        "300 s for an answer, twice (`--timeout`)",
        "the question has no answer and is left out; if none has one: code 1, and the answers so far are kept",
    ),
    "server list": Wait("the list of models of a server", "300 s (`--timeout`)", "code 2"),
    "bfcl": Wait(
        "BFCL's program, which asks the server and checks the answers",
        "each answer's `--timeout`, with its retries, without a line of output",
        "the program is ended: code 1",
        named_by="the bar of the pass, or its line after 15 s",
    ),
    "interpreter": Wait(
        "an interpreter (of vLLM, verl, BFCL) that says what it has, `nvidia-smi`, a check of `egpo doctor`",
        "60 to 180 s",
        "its processes are ended: code 1 or 2 with the interpreter's path; a failed check in `egpo doctor`",
    ),
    "package index": Wait(
        "pip, for a model or the interpreter of BFCL",
        "600 s; 3,600 s for the interpreter",
        "pip is ended: code 2 (model) or 1 (interpreter), with the command to run elsewhere",
    ),
    "hub": Wait(
        "the hub, during `egpo push`",
        "300 s without a byte in a request; huggingface_hub repeats the upload of a file up to five times",
        "code 1; the repository has the commit before, because files and card are one commit",
        named_by="the line of the verb after 18 s of silence: uploading N files",
    ),
    "hub model": Wait(
        "the hub, for a model that is named and not in a folder",
        unlimited="huggingface_hub limits each request and repeats it up to five times (a server that never answered "
        "was still being asked after 6 minutes), and a download may take hours. With HF_HUB_OFFLINE=1 nothing is asked",
    ),
    "tracker": Wait(
        "a tracker (wandb, trackio, SwanLab, MLflow, TensorBoard)",
        "120 s to open, 60 s for a step, 300 s to close",
        "before training: code 2; later a warning, and the tracker gets no more metrics",
    ),
    "same job": Wait(
        "another process of `egpo run` that computes the same data, cold start, probe or base evaluation",
        unlimited="that process is alive, and its result is used; if it ends in any way, the lock is free",
        named_by="a line with its process id, at once, then every 15 s",
    ),
    "same model": Wait(
        "another process that converts the same GGUF model",
        unlimited="that process is alive, and its result is used; if it ends in any way, the lock is free",
    ),
    "other thread": Wait(
        "another thread of a Python program that trains or evaluates",
        unlimited="two threads take turns, because a model and the random seeds are global",
        named_by="a line on stderr, at once",
    ),
    "children": Wait(
        "the processes of `egpo run --parallel` and `egpo board`",
        unlimited="they train; each has the limits of this table. After a second signal they are killed after 10 s",
        named_by="the bar of all experiments, or its line after 15 s",
    ),
    "verl": Wait(
        "verl, and through it Ray, vLLM and TransferQueue",
        "120 minutes without a step, 10 on a CPU (`verl.patience_minutes`); 60 s after one of its processes has died",
        "all its processes are ended: code 1 with the cause in its log and the command that resumes",
        named_by="the line of training after 15 s, with the stage (start Ray, load model, start vLLM, ...)",
    ),
    "weights": Wait(
        "vLLM, which takes over the weights of a step (verl on a CPU)",
        "120 s (`EGPO_WEIGHTS_TIMEOUT_S`)",
        "verl ends with an error that names the limit",
        named_by="the line of training after 15 s",
    ),
    "process end": Wait(
        "processes that egpo ends: a server, verl, workers",
        "15 s after SIGTERM (verl: 20 s after SIGINT), then SIGKILL",
        "SIGKILL; a process that even that does not end is named: code 1",
        named_by="the line of the verb after 18 s of silence",
    ),
    "checkpoint": Wait(
        "the checkpoint that is being written while training goes on, before the next one or the end of the run",
        unlimited="it is written by this process, and a slow disk must not cost a checkpoint; a second signal ends the "
        "process, and the previous checkpoint stays",
    ),
    "exit": Wait(
        "threads that still run when a verb has failed or was stopped",
        "10 s",
        "the process ends with the same exit code, without waiting for them",
        named_by="nothing: it takes less than 20 s",
    ),
}
"""Everything that is waited for, by the name that `waiting` takes."""


@dataclass(eq=False)
class _OpenWait:
    name: str
    what: str
    limit_s: float | None
    start: float


_open: dict[int, _OpenWait] = {}
_watcher: threading.Thread | None = None


@contextmanager
def waiting(name: str, what: str, *, limit_s: float | None = None) -> Iterator[None]:
    """Name what the block waits for on stderr, if it takes long. `what` completes "waiting for ..."."""
    assert name in WAITS, name
    one = _OpenWait(name, what, limit_s, time.monotonic())
    _open[id(one)] = one
    _start_watcher()
    try:
        yield
    finally:
        _open.pop(id(one), None)


def _start_watcher() -> None:
    global _watcher
    if _watcher is None:
        _watcher = threading.Thread(target=_watch, name="egpo waits", daemon=True)
        try:
            _watcher.start()
        except RuntimeError:  # no thread can be started: long waits are not named
            _watcher = None


def _watch() -> None:
    next_s: dict[str, float] = {}
    while _watcher is threading.current_thread():
        time.sleep(min(1.0, NOTICE_S / 4))
        look(next_s)


def look(next_s: dict[str, float]) -> None:
    """Print a line for each kind of wait that is due. `next_s`: the seconds after which a kind is named next."""
    now, oldest, counts = time.monotonic(), dict[str, _OpenWait](), dict[str, int]()
    for one in list(_open.values()):
        counts[one.name] = counts.get(one.name, 0) + 1
        if one.name not in oldest or one.start < oldest[one.name].start:
            oldest[one.name] = one
    for name in set(next_s) - set(oldest):
        del next_s[name]
    for name, one in oldest.items():
        seconds = now - one.start
        if seconds >= next_s.setdefault(name, NOTICE_S):
            next_s[name] = 2 * max(seconds, NOTICE_S)
            more = f" and {counts[name] - 1} more" if counts[name] > 1 else ""
            limit = "no limit" if one.limit_s is None else f"limit {one.limit_s:g} s"
            with suppress(OSError, ValueError, AttributeError):  # stderr is closed
                line = f"{NOTICE_PREFIX}waiting for {one.what}{more} ({limit}), {seconds:.0f} s"
                print(line, file=sys.stderr, flush=True)


def _forget() -> None:
    """In a forked child process there is no watcher, and the waits are those of the parent."""
    global _watcher
    _watcher = None
    _open.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)
