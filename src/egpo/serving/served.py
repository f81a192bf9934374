"""`with served("models/first") as server:` — a model that answers, until the block ends."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from egpo.assets import resolve_model
from egpo.errors import InputError
from egpo.serving.commands import Serving, command, environment
from egpo.serving.engines import Engine, Wanted, find_engine
from egpo.serving.offers import offer
from egpo.serving.ports import free_port
from egpo.serving.processes import Say, ServerProcess
from egpo.serving.templates import read_template

_POLL_S = 0.5
Watch = Callable[[float], None]
"""Told for how many seconds the server has been starting."""


@dataclass(frozen=True, eq=False)
class Served:
    """`url` up to and with `/v1`, as `egpo eval --url` takes it; the model answers to `model_name`."""

    url: str
    model_name: str
    engine: Engine
    process: ServerProcess


def _unheard(line: str) -> None:
    pass


def _unwatched(seconds: float) -> None:
    pass


@contextmanager
def served(
    serving: Serving | str,
    *,
    engine: Wanted = "auto",
    python: str | None = None,
    timeout_s: float = 900.0,
    say: Say = _unheard,
    watch: Watch = _unwatched,
) -> Iterator[Served]:
    """Starts a server for the model, waits until it answers, and ends it with the block, or with this process.

    A string is a model folder, or a name of the hub, served under its last part. `say` hears the server's log. An
    InputError with its last lines where it ends, or is silent for `timeout_s`.
    """
    wanted = Serving(serving, Path(serving).name) if isinstance(serving, str) else serving
    port = free_port(wanted.host, wanted.port)
    found = find_engine(engine, python)
    model = _model(wanted.model)
    settings = replace(wanted, model=model, port=port)
    words = command(settings, found, read_template(model))
    with TemporaryDirectory(prefix="egpo-serve-") as folder:
        if found.kind == "transformers":
            offer(Path(folder), settings)
        process = ServerProcess(words, environment(found), Path(folder), say)
        try:
            server = Served(f"http://{_reachable(settings.host)}:{port}/v1", settings.name, found, process)
            _wait(server, port, timeout_s, watch)
            yield server
        finally:
            process.end()


def _model(word: str) -> str:
    path = Path(resolve_model(word)).expanduser()
    if not path.is_dir() and not (path.exists() or word.startswith((".", "/", "~")) or word.count("/") > 1):
        return word
    require_weights(str(path), word)
    return str(path.absolute())


def require_weights(folder: str, word: str) -> None:
    """Raises where `folder`, which the user called `word`, is no model that could be served."""
    path, where = Path(folder).expanduser(), f"model {word}"
    if not path.is_dir():
        raise InputError("no such folder", where=where, fix="give the folder of a model, as in models/first")
    if not (path / "config.json").is_file():
        fix = "give what `egpo merge` wrote"
        raise InputError("not a model folder: no config.json in it", where=where, fix=fix)
    if not any(entry.suffix in (".safetensors", ".bin") for entry in path.iterdir()):
        fix = "of a checkpoint of verl, make a model with `egpo merge`"
        raise InputError("no weights in it", where=where, fix=fix)


def _reachable(host: str) -> str:
    """A server that listens everywhere is asked here."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def _wait(server: Served, port: int, timeout_s: float, watch: Watch) -> None:
    """Whoever else answers on the port is never taken for ours."""
    started = time.monotonic()
    while not (_answers(server) and server.process.listens_on(port)):
        waited = time.monotonic() - started
        watch(waited)
        if server.process.ended:
            raise _never_ready(server, f"ended after {waited:.0f} s, before it answered")
        if waited > timeout_s:
            raise _never_ready(server, f"did not answer within {timeout_s:.0f} s")
        time.sleep(_POLL_S)


def _answers(server: Served) -> bool:
    """`/v1/models` of vLLM names what it serves; that of `transformers serve` lists a cache, so its health is asked."""
    names_it = server.engine.kind == "vllm"
    place = f"{server.url}/models" if names_it else server.url.removesuffix("/v1") + "/health"
    try:
        reply = httpx.get(place, timeout=10, trust_env=False)  # a proxy knows nothing of this machine's ports
    except httpx.HTTPError:
        return False
    return reply.status_code == httpx.codes.OK and (not names_it or server.model_name in _names(reply))


def _names(reply: httpx.Response) -> list[str]:
    try:
        return [model["id"] for model in reply.json()["data"]]
    except (ValueError, KeyError, TypeError):
        return []


def _never_ready(server: Served, what: str) -> InputError:
    log = "\n".join(f"  {line}" for line in server.process.last_lines[-20:]) or "  nothing"
    fix = f"its last words were:\n{log}"
    return InputError(f"the server ({server.engine.kind}) {what}", where=server.url, fix=fix)
