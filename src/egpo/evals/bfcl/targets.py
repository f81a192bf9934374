"""Finds or starts the server of a model for BFCL, and keeps the server's API key away from BFCL.

`find_targets`: MODEL or URL arguments -> `BfclTarget`s. `running_server`: the server of a target. BFCL executes what
the model wrote and can use the network, so it must not have the key: `keyless_address` runs a local proxy that adds it.
"""

import json
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

from egpo.config.machine import model_folder, this_machine
from egpo.errors import InputError
from egpo.evals.evaluate import Origin
from egpo.evals.server import Server
from egpo.evals.server_requests import RetryPolicy
from egpo.evals.targets import HERE, ModelPlace, find_model
from egpo.serving.commands import Serving
from egpo.serving.served import require_weights, served

_PASSED_BACK = ("Content-Type", "Retry-After")
_LENGTH = re.compile("[0-9]{1,8}")
"""Content length of a request: below 100 MB."""


@contextmanager
def keyless_address(server: Server) -> Iterator[str]:
    """Yield an address of `server` that needs no key: its own, or that of a proxy on this machine that adds the key.

    The proxy runs for the duration of the block. A random part of its path keeps other users of the machine out.
    """
    if server.api_key is None:
        yield server.url
        return
    with _client(server) as client, _KeyProxy(client, secrets.token_urlsafe(16)) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}{proxy.prefix}"
        finally:
            proxy.shutdown()


def _client(server: Server) -> httpx.Client:
    """Return a client without a limit on connections: BFCL decides how many requests run at a time."""
    limits = httpx.Limits(max_connections=None)
    timeout_s = server.retries.timeout_s
    return httpx.Client(base_url=f"{server.url}/", headers=server.headers, limits=limits, timeout=timeout_s)


class _KeyProxy(ThreadingHTTPServer):
    """Forwards the two requests that BFCL makes, and nothing else."""

    request_queue_size = 128

    def __init__(self, client: httpx.Client, secret: str) -> None:
        super().__init__(("127.0.0.1", 0), _ProxyRequest)
        self.client = client
        self.prefix = f"/{secret}/v1"
        # The key may open more than this.
        self.allowed = {
            ("GET", f"{self.prefix}/models"): "models",
            ("POST", f"{self.prefix}/completions"): "completions",
        }


class _ProxyRequest(BaseHTTPRequestHandler):
    """One request. It may come from code that the model wrote, so time and size are limited."""

    server: _KeyProxy
    timeout = 60
    """Seconds without a byte read or written; the time that the server takes to answer does not count."""

    def handle(self) -> None:
        with suppress(ConnectionError):  # BFCL may have been stopped meanwhile
            super().handle()

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal shows the evaluation."""

    def _answer(self) -> None:
        reply = self._asked()
        self.send_response(reply.status_code)
        for name in _PASSED_BACK:
            if name in reply.headers:
                self.send_header(name, reply.headers[name])
        self.send_header("Content-Length", str(len(reply.content)))
        self.end_headers()
        self.wfile.write(reply.content)

    def _asked(self) -> httpx.Response:
        """Return the server's reply, or 502 if there is none: BFCL's client retries a 502."""
        place = self.server.allowed.get((self.command, self.path))
        if place is None:
            return _refusal(404, "not allowed")
        length = self.headers.get("Content-Length", "0")
        if not _LENGTH.fullmatch(length):
            return _refusal(413, "invalid content length")
        try:
            body = self.rfile.read(int(length))
            headers = {"Content-Type": "application/json"}
            return self.server.client.request(self.command, place, content=body, headers=headers)
        except httpx.HTTPError as error:
            return _refusal(502, f"{type(error).__name__}: {error}")


def _refusal(status: int, why: str) -> httpx.Response:
    return httpx.Response(status, content=json.dumps({"error": {"message": why}}).encode())


@dataclass(frozen=True)
class BfclTarget:
    """A model to evaluate: `place` if it is stored here, `url` and `api_key` if it is served already.

    `tokenizer` is a model folder.
    """

    label: str
    tokenizer: str
    place: ModelPlace | None = None
    url: str | None = None
    served_name: str = ""
    api_key: str | None = field(default=None, repr=False)

    @property
    def origin(self) -> Origin:
        return Origin(self.place.model, self.place.step) if self.place else Origin(self.url or "")

    @property
    def folder(self) -> Path:
        return self.place.run.evals if self.place and self.place.run else HERE


@dataclass(frozen=True)
class RunningServer:
    """A server's address, and the name under which it serves the model."""

    url: str
    served_name: str


def find_targets(
    words: Sequence[str], served_name: str | None, tokenizer: str | None, checkpoint: str, api_key: str | None = None
) -> list[BfclTarget]:
    """Return the models that the arguments name. Models with equal labels are labelled by their arguments."""
    found = [find_target(word, served_name, tokenizer, checkpoint, api_key) for word in words]
    labels = [target.label for target in found]
    return [
        replace(target, label=word) if labels.count(target.label) > 1 else target
        for word, target in zip(words, found, strict=True)
    ]


def find_target(
    word: str, served_name: str | None, tokenizer: str | None, checkpoint: str, api_key: str | None = None
) -> BfclTarget:
    """Return the model that the argument names. Nothing is started, so that mistakes are found first."""
    if word.startswith(("http://", "https://")):
        return _at_server(Server.at(word, api_key=api_key), served_name, tokenizer)
    place = find_model(word, checkpoint)
    require_weights(model_folder(place.model), word)
    return BfclTarget(place.label, model_folder(tokenizer or place.model), place=place)


def _at_server(server: Server, served_name: str | None, tokenizer: str | None) -> BfclTarget:
    if tokenizer is None:
        fix = "give the model's folder with --tokenizer: BFCL counts and formats prompts with it"
        raise InputError("the tokenizer of a served model is not known", where=server.url, fix=fix)
    names = server.model_names()
    name = served_name or server.only_model()
    if name not in names:
        _require_known(server, name, names)
    return BfclTarget(name, model_folder(tokenizer), url=server.url, served_name=name, api_key=server.api_key)


def _require_known(server: Server, name: str, names: Sequence[str]) -> None:
    """Request one token: some servers do not list the models that they serve."""
    body, timeout = {"model": name, "prompt": "?", "max_tokens": 1}, server.retries.timeout_s
    try:
        reply = httpx.post(f"{server.url}/completions", json=body, headers=server.headers, timeout=timeout)
        reply.raise_for_status()
    except httpx.HTTPError as error:
        fix = f"choose one with --model: {', '.join(names) or 'it names none'}"
        raise InputError(f"the server does not answer for `{name}` ({error})", where=server.url, fix=fix) from error


@contextmanager
def running_server(
    target: BfclTarget, max_model_len: int | None = None, timeout_s: float = 3600.0
) -> Iterator[RunningServer]:
    """Yield the server at the target's URL, or one that we start for the duration of the block."""
    if target.url is not None:
        retries = RetryPolicy(timeout_s=timeout_s)
        with keyless_address(Server(target.url, api_key=target.api_key, retries=retries)) as url:
            yield RunningServer(url, target.served_name)
        return
    assert target.place is not None
    model = model_folder(target.place.model)
    # BFCL builds prompts and parses calls itself, so the server needs no parsers.
    serving = Serving(model, Path(model).name, max_tokens=max_model_len, tool_parser="none", reasoning_parser="none")
    with served(serving, python=this_machine().environments.verl) as server:
        yield RunningServer(server.url, server.model_name)
