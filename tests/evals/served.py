"""A real HTTP server that speaks, or fails to speak, the chat protocol, as each test wants it."""

import json
import os
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from unittest.mock import patch


def completion(text, **message):
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text, **message}}
    return {"object": "chat.completion", "choices": [choice], "usage": {"completion_tokens": 7}}


class Served:
    """`answer(body, attempt)` gives (status, content): content is bytes, or what JSON can hold; None stalls."""

    def __init__(self, answer):
        self.answer, self.bodies, self.headers = answer, [], []
        self.most_at_once = 0
        self._attempts, self._now, self._lock = Counter(), 0, threading.Lock()
        self.models = ["tiny"]
        self.released = threading.Event()
        self.http = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    def reply(self, body, headers):
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            key = json.dumps(body, sort_keys=True)
            attempt = self._attempts[key]
            self._attempts[key] += 1
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
        try:
            return self.answer(body, attempt)
        finally:
            with self._lock:
                self._now -= 1

    def die(self):
        """From inside an answer: no further connection is taken, and those that are open break."""
        self.http.socket.close()


@contextmanager
def served(answer, port=0):
    state = Served(answer)

    class Conversation(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self.send(200, {"data": [{"id": name} for name in state.models]})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            replied = state.reply(body, dict(self.headers)) if self.path == "/v1/chat/completions" else (404, {})
            if replied is None:
                state.released.wait(20)
                self.close_connection = True
                return
            self.send(*replied)

        def send(self, status, content, **headers):
            content = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": len(content), "Connection": "close", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *words):
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client_address):
            pass

    state.http = Quiet(("127.0.0.1", port), Conversation)
    thread = threading.Thread(target=_serve, args=(state.http,), daemon=True)
    thread.start()
    try:
        with patch.dict(os.environ, NO_PROXY="127.0.0.1"):
            yield state
    finally:
        state.released.set()
        state.http.shutdown()
        state.http.server_close()
        thread.join(5)


def _serve(http):
    try:
        http.serve_forever(poll_interval=0.02)
    except (OSError, ValueError):
        return  # its socket was closed under it: the server died
