"""Run commands of egpo in forks of one process that has already imported everything.

A start of Python with torch takes seconds, a fork some milliseconds. A fork has none of the state of earlier commands.
`python -m tests.faults.server` reads a JSON object per line, and answers with one.
"""

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from dataclasses import dataclass

LIMIT_S = 180
_SKIPPED = ("egpo.verl", "egpo.trl")
_MODELS = ("qwen3", "llama")


@dataclass(frozen=True)
class Answer:
    """How a command ended. `code` is negative if a signal ended it."""

    code: int
    out: str
    err: str
    num_calls: int = 0
    """Calls that could have been refused (`tests/faults/refusing.c`), of a command that was run with `refusing`."""

    def errors(self):
        """The lines in which egpo says what is wrong."""
        return [line for line in self.err.splitlines() if line.startswith("egpo: ")]


class Server:
    def __init__(self, **env):
        words = [sys.executable, "-m", "tests.faults.server"]
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
        )

    def run(self, words, cwd, refusing=None, **env):
        """Run one command. `refusing` are the arguments of `fault_arm` in `refusing.c`, which must be preloaded."""
        request = {"words": [str(word) for word in words], "cwd": str(cwd), "env": env, "refusing": refusing}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Answer(**json.loads(self._process.stdout.readline()))

    def close(self):
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def command(words):
    """The command line of what a fork runs."""
    if words[0] == "python":
        return [sys.executable, "-c", words[1]]
    return [sys.executable, "-m", "egpo", *words]


def _import_everything():
    import egpo

    for module in pkgutil.walk_packages(egpo.__path__, "egpo.", onerror=lambda _: None):
        if not module.name.startswith(_SKIPPED) and not {"inside", "__main__"} & {*module.name.split(".")}:
            with suppress(ModuleNotFoundError):  # the kernels of a GPU
                importlib.import_module(module.name)
    for name in _MODELS:
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def _import_again(names):
    """Import what a fork had to import, so that the next one need not."""
    for name in names:
        with suppress(Exception):
            importlib.import_module(name)
    gc.freeze()  # or a collection in a fork would copy every page


def _child(request):
    from egpo.cli.main import main

    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    tempfile.tempdir = None
    if request["refusing"]:
        path, *numbers = request["refusing"]
        ctypes.CDLL(None).fault_arm(path.encode(), *numbers)
    words = request["words"]
    if words[0] == "python":
        exec(compile(words[1], "<command>", "exec"), {})
        return
    sys.argv = ["egpo", *words]
    main()


def _run(request):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as imported:
        child = os.fork()
        if child == 0:
            _leave(request, out, err, imported)
        code = _wait(child)
        num_calls, *names = _text(imported).split() or ["0"]
        _import_again(names)
        return {"code": code, "out": _text(out), "err": _text(err), "num_calls": int(num_calls)}


def _leave(request, out, err, imported):
    code, before = 70, set(sys.modules)
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        _child(request)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            num_calls = ctypes.CDLL(None).fault_count() if request["refusing"] else 0
            os.write(imported.fileno(), " ".join([str(num_calls), *(set(sys.modules) - before)]).encode())
        finally:
            os._exit(code)


def _wait(child):
    def give_up(*_):
        os.killpg(child, signal.SIGKILL)

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LIMIT_S)
    _, status = os.waitpid(child, 0)
    signal.alarm(0)
    return os.waitstatus_to_exitcode(status)


def _text(file):
    file.seek(0)
    return file.read().decode("utf-8", "replace")


def _serve():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints as it is imported is not an answer
    _import_everything()
    for line in sys.stdin:
        answers.write(json.dumps(_run(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
