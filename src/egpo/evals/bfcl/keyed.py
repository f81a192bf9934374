"""A server that wants a key, for a client that must not know it: BFCL executes what the model wrote, and the network
is open to it."""

import json
import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from egpo.evals.server import Server

_PASSED_BACK = ("Content-Type", "Retry-After")
_LENGTH = re.compile("[0-9]{1,8}")
"""Of a question: under 100 MB."""


@contextmanager
def without_key(server: Server) -> Iterator[str]:
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
