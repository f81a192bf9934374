"""Finds or starts the server of a model for BFCL, and keeps the server's API key away from BFCL.

`find_targets` turns MODEL or URL arguments into `BfclTarget`s; `running_server` yields the server of a target.
BFCL executes what the model wrote and can use the network, so it must not know the API key: `keyless_address` runs a
local proxy that adds the key to BFCL's requests.
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

from egpo.benchmark_cases import joined_cases, read_cases
from egpo.config.machine import model_folder, this_machine
from egpo.environments.bfcl.cases import with_variants
from egpo.errors import InputError
from egpo.evals.evaluate import Origin
from egpo.evals.server import Server
from egpo.evals.server_requests import RetryPolicy
from egpo.evals.targets import HERE, ModelPlace, find_model
from egpo.runs.stored import StoredRun
from egpo.serving.commands import Serving
from egpo.serving.engine_options import NO_OPTIONS, EngineOptions
from egpo.serving.served import require_weights, served
from egpo.waits import waiting

_PASSED_BACK = ("Content-Type", "Retry-After")
_LENGTH = re.compile("[0-9]{1,8}")
"""Pattern of a valid Content-Length header: at most eight digits, so that a request is smaller than 100 MB."""


@contextmanager
def keyless_address(server: Server) -> Iterator[str]:
    """Yield an address at which `server` can be used without an API key.

    If the server needs a key, this is the address of a proxy on this machine that adds the key. The proxy runs until
    the `with` block ends. Its path has a random part, so that other users of the machine cannot use it.
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
    """Return an HTTP client for the server, without a limit on connections: BFCL limits its requests itself."""
    limits = httpx.Limits(max_connections=None)
    timeout_s = server.retries.timeout_s
    return httpx.Client(base_url=f"{server.url}/", headers=server.headers, limits=limits, timeout=timeout_s)


class _KeyProxy(ThreadingHTTPServer):
    """An HTTP proxy that adds the API key. It forwards only the two kinds of requests that BFCL makes."""

    request_queue_size = 128

    def __init__(self, client: httpx.Client, secret: str) -> None:
        super().__init__(("127.0.0.1", 0), _ProxyRequest)
        self.client = client
        self.prefix = f"/{secret}/v1"
        # The key may also permit other requests, which must not pass.
        self.allowed = {
            ("GET", f"{self.prefix}/models"): "models",
            ("POST", f"{self.prefix}/completions"): "completions",
        }


class _ProxyRequest(BaseHTTPRequestHandler):
    """A request to the proxy. Its size and time are limited, because code that the model wrote may have sent it."""

    server: _KeyProxy
    timeout = 60
    """Timeout, in seconds, of a single read or write on the connection to BFCL. An answer may take longer."""

    def handle(self) -> None:
        with suppress(ConnectionError):  # BFCL may have been stopped meanwhile
            super().handle()

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests: the log would disturb the progress display."""

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
        """Forward the request and return the server's reply.

        If the server does not reply, return status 502, after which BFCL's client retries.
        """
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
    """A model to evaluate with BFCL.

    `place` is set for a model on this machine or on the hub; `url`, `served_name` and `api_key` for a model that is
    already served. `tokenizer` is the model folder that holds its tokenizer.
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

    @property
    def trained_cases(self) -> list[str]:
        """The ids of BFCL's cases that the model was trained on, as its folder and the provenance of its run say.

        Of a multi-turn case, these are all variants of its scenario.
        Of a model that is already served, the folder of its tokenizer is asked.
        """
        run = StoredRun.at(self.place.run.path) if self.place and self.place.run else None
        recorded = run.provenance.benchmark_cases if run and run.provenance else {}
        return with_variants(joined_cases(read_cases(self.tokenizer), recorded).get("bfcl", []))


@dataclass(frozen=True)
class RunningServer:
    """A server's address, and the name under which it serves the model."""

    url: str
    served_name: str


def find_targets(
    words: Sequence[str], served_name: str | None, tokenizer: str | None, checkpoint: str, api_key: str | None = None
) -> list[BfclTarget]:
    """Return the models that the command's arguments name. Models with equal labels are labelled by their arguments."""
    found = [find_target(word, served_name, tokenizer, checkpoint, api_key) for word in words]
    labels = [target.label for target in found]
    return [
        replace(target, label=word) if labels.count(target.label) > 1 else target
        for word, target in zip(words, found, strict=True)
    ]


def find_target(
    word: str, served_name: str | None, tokenizer: str | None, checkpoint: str, api_key: str | None = None
) -> BfclTarget:
    """Return the model that a command's argument names. No server is started yet, so that mistakes are found early."""
    if word.startswith(("http://", "https://")):
        return _at_server(Server.at(word, api_key=api_key), served_name, tokenizer)
    place = find_model(word, checkpoint)
    require_weights(model_folder(place.model), word)
    return BfclTarget(place.label, model_folder(tokenizer or place.model), place=place)


def _at_server(server: Server, served_name: str | None, tokenizer: str | None) -> BfclTarget:
    if tokenizer is None:
        fix = "give the model's folder with --tokenizer: BFCL counts and formats prompts with it"
        raise InputError("a served model needs a tokenizer on this machine", where=server.url, fix=fix)
    names = server.model_names()
    name = served_name or server.only_model()
    if name not in names:
        _require_known(server, name, names)
    return BfclTarget(name, model_folder(tokenizer), url=server.url, served_name=name, api_key=server.api_key)


def _require_known(server: Server, name: str, names: Sequence[str]) -> None:
    """Raise InputError if the server does not generate a token with the model `name`.

    The list of models alone does not decide, because some servers do not list all models that they serve.
    """
    body, timeout = {"model": name, "prompt": "?", "max_tokens": 1}, server.retries.timeout_s
    try:
        with waiting("server list", f"the server at {server.url} to answer for `{name}`", limit_s=timeout):
            reply = httpx.post(f"{server.url}/completions", json=body, headers=server.headers, timeout=timeout)
        reply.raise_for_status()
    except httpx.HTTPError as error:
        fix = f"choose a model with --model; the server lists: {', '.join(names) or 'none'}"
        raise InputError(f"the server does not answer for `{name}` ({error})", where=server.url, fix=fix) from error


def serving_of(target: BfclTarget, max_model_len: int | None, options: EngineOptions) -> Serving:
    """Return the server's settings. BFCL builds prompts and parses calls itself, so the server needs no parsers."""
    assert target.place is not None
    model = model_folder(target.place.model)
    return Serving(
        model,
        Path(model).name,
        max_tokens=max_model_len,
        tool_parser="none",
        reasoning_parser="none",
        options=options.values,
        options_from=options.given_by,
    )


@contextmanager
def running_server(
    target: BfclTarget,
    max_model_len: int | None = None,
    timeout_s: float = 3600.0,
    options: EngineOptions = NO_OPTIONS,
) -> Iterator[RunningServer]:
    """Yield the server at the target's URL, or start one with these options, which runs until the block ends."""
    if target.url is not None:
        retries = RetryPolicy(timeout_s=timeout_s)
        with keyless_address(Server(target.url, api_key=target.api_key, retries=retries)) as url:
            yield RunningServer(url, target.served_name)
        return
    with served(serving_of(target, max_model_len, options), python=this_machine().environments.verl) as server:
        yield RunningServer(server.url, server.model_name)
