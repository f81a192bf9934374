"""A server that wants a key, for a client that must not know it: BFCL executes what the model wrote, and the network
is open to it.

MODEL or URL on the command line: a server that answers for it, and where its evaluation belongs.
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
"""Of a question: under 100 MB."""


@contextmanager
def keyless_address(server: Server) -> Iterator[str]:
    """An address of `server` that asks for no key: its own where it wants none; otherwise one on loopback, for as long
    as the block lasts, that adds the key to what BFCL asks. A word in its path keeps other users of the machine out."""
    if server.api_key is None:
        yield server.url
        return
    with _client(server) as client, _Doorkeeper(client, secrets.token_urlsafe(16)) as door:
        threading.Thread(target=door.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{door.server_port}{door.prefix}"
        finally:
            door.shutdown()


def _client(server: Server) -> httpx.Client:
    """BFCL decides how many questions are under way. It waits for an answer as long as `patience` says."""
    limits = httpx.Limits(max_connections=None)
    timeout_s = server.patience.timeout_s
    return httpx.Client(base_url=f"{server.url}/", headers=server.headers, limits=limits, timeout=timeout_s)


class _Doorkeeper(ThreadingHTTPServer):
    request_queue_size = 128

    def __init__(self, client: httpx.Client, word: str) -> None:
        super().__init__(("127.0.0.1", 0), _Caller)
        self.client = client
        self.prefix = f"/{word}/v1"
        # What BFCL asks for, and nothing else that the key would open.
        self.open_to = {
            ("GET", f"{self.prefix}/models"): "models",
            ("POST", f"{self.prefix}/completions"): "completions",
        }


class _Caller(BaseHTTPRequestHandler):
    """Of the callers one may be what the model wrote: none gets more of this process than a thread for a while."""

    server: _Doorkeeper
    timeout = 60
    """Seconds in which no byte comes or goes; how long the server takes to answer does not count."""

    def handle(self) -> None:
        with suppress(ConnectionError):  # BFCL was ended meanwhile
            super().handle()

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """The screen belongs to the evaluation."""

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
        """The server's reply, or 502 where it has none: BFCL's client tries that again, as it would without us."""
        place = self.server.open_to.get((self.command, self.path))
        if place is None:
            return _refusal(404, "not open")
        length = self.headers.get("Content-Length", "0")
        if not _LENGTH.fullmatch(length):
            return _refusal(413, "no length of a question")
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
    """`tokenizer` is a model folder. `place` where the model lies here, and `url` where it is served already, to those
    who have the `api_key`."""

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
    """A server, and the name under which it knows the model."""

    url: str
    served_name: str


def find_targets(
    words: Sequence[str], served_name: str | None, tokenizer: str | None, checkpoint: str, api_key: str | None = None
) -> list[BfclTarget]:
    """Labels that two of them share give way to the words themselves: their files are named after them."""
    found = [find_target(word, served_name, tokenizer, checkpoint, api_key) for word in words]
    labels = [target.label for target in found]
    return [
        replace(target, label=word) if labels.count(target.label) > 1 else target
        for word, target in zip(words, found, strict=True)
    ]


def find_target(
    word: str, served_name: str | None, tokenizer: str | None, checkpoint: str, api_key: str | None = None
) -> BfclTarget:
    """Nothing is started yet: mistakes come first."""
    if word.startswith(("http://", "https://")):
        return _at_server(Server.at(word, api_key=api_key), served_name, tokenizer)
    place = find_model(word, checkpoint)
    require_weights(model_folder(place.model), word)
    return BfclTarget(place.label, model_folder(tokenizer or place.model), place=place)


def _at_server(server: Server, served_name: str | None, tokenizer: str | None) -> BfclTarget:
    if tokenizer is None:
        fix = "give the model's folder with --tokenizer: it says how long prompts are, and how they are written"
        raise InputError("a server does not show its tokenizer", where=server.url, fix=fix)
    names = server.model_names()
    name = served_name or server.only_model()
    if name not in names:
        _require_known(server, name, names)
    return BfclTarget(name, model_folder(tokenizer), url=server.url, served_name=name, api_key=server.api_key)


def _require_known(server: Server, name: str, names: Sequence[str]) -> None:
    """Some servers list a cache and not what they serve: then one token tells."""
    body, timeout = {"model": name, "prompt": "?", "max_tokens": 1}, server.patience.timeout_s
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
    """The server at its URL, or one of our own for as long as the block lasts."""
    if target.url is not None:
        patience = RetryPolicy(timeout_s=timeout_s)
        with keyless_address(Server(target.url, api_key=target.api_key, patience=patience)) as url:
            yield RunningServer(url, target.served_name)
        return
    assert target.place is not None
    model = model_folder(target.place.model)
    # BFCL writes prompts and reads calls by itself: the server has nothing to parse.
    serving = Serving(model, Path(model).name, max_tokens=max_model_len, tool_parser="none", reasoning_parser="none")
    with served(serving, python=this_machine().environments.verl) as server:
        yield RunningServer(server.url, server.model_name)
