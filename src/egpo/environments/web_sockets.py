"""A client of WebSockets (RFC 6455) for text messages, with a time limit for each message. Standard library only."""

import base64
import hashlib
import os
import socket
import ssl
import struct
import time
from urllib.parse import urlsplit

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10
MOST_BYTES = 64 << 20
"""Maximum size of a message."""


class WebSocket:
    """A connection to a server. Only one thread may use it at a time.

    Every method raises ConnectionError if the connection fails or ends, and TimeoutError at its limit.
    """

    def __init__(self, url: str, limit_s: float) -> None:
        parts = urlsplit(url)
        is_secure = parts.scheme in ("wss", "https")
        host, port = parts.hostname or "", parts.port or (443 if is_secure else 80)
        self._received = b""
        self._deadline = time.monotonic() + limit_s
        try:
            self._socket = socket.create_connection((host, port), timeout=limit_s)
            if is_secure:
                self._socket = ssl.create_default_context().wrap_socket(self._socket, server_hostname=host)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionError(f"no connection to {host}:{port} ({error})") from error
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._shake_hands(path, parts.netloc.rpartition("@")[2])

    def _shake_hands(self, path: str, host: str) -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {path} HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        self._write("\r\n".join([*lines, "", ""]).encode())
        while b"\r\n\r\n" not in self._received:
            self._read_more()
            if len(self._received) > 65_536:
                raise ConnectionError("the server's answer is not that of a WebSocket")
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        status, *rows = head.decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (row.partition(":") for row in rows)}
        expected = base64.b64encode(hashlib.sha1((key + _MAGIC).encode()).digest()).decode()
        if " 101 " not in f"{status} " or headers.get("sec-websocket-accept") != expected:
            raise ConnectionError(f"the server offers no WebSocket at {path} ({status[:80]})")

    def ask(self, text: str, limit_s: float) -> str:
        """Send a text message, and return the next one of the server."""
        self._deadline = time.monotonic() + limit_s
        self._send(_TEXT, text.encode())
        return self._receive()

    def close(self) -> None:
        self._deadline = time.monotonic() + 1.0
        try:
            self._send(_CLOSE, struct.pack("!H", 1000))
        except (ConnectionError, TimeoutError):
            pass  # the server has gone, or does not listen any more
        finally:
            self._socket.close()

    def _send(self, kind: int, payload: bytes) -> None:
        size = len(payload)
        length = (
            struct.pack("!B", 0x80 | size) if size < 126
            else struct.pack("!BH", 0x80 | 126, size) if size < 65_536
            else struct.pack("!BQ", 0x80 | 127, size)
        )  # fmt: skip
        mask = os.urandom(4)
        repeated = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")).to_bytes(size, "big")
        self._write(struct.pack("!B", 0x80 | kind) + length + mask + masked)

    def _receive(self) -> str:
        message = b""
        while True:
            first, second = self._take(2)
            size = second & 0x7F
            size = struct.unpack("!H", self._take(2))[0] if size == 126 else size
            size = struct.unpack("!Q", self._take(8))[0] if size == 127 else size
            if size + len(message) > MOST_BYTES:
                raise ConnectionError(f"the server sent a message of more than {MOST_BYTES >> 20} MiB")
            payload = self._take(size)
            kind = first & 0x0F
            if kind == _CLOSE:
                raise ConnectionError("the server closed the connection")
            if kind == _PING:
                self._send(_PONG, payload)
            elif kind != _PONG:
                message += payload
                if first & 0x80:
                    return message.decode("utf-8", "replace")

    def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            self._read_more()
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    def _read_more(self) -> None:
        self._limit()
        try:
            found = self._socket.recv(1 << 16)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionError(str(error)) from error
        if not found:
            raise ConnectionError("the server closed the connection")
        self._received += found

    def _write(self, data: bytes) -> None:
        self._limit()
        try:
            self._socket.sendall(data)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionError(str(error)) from error

    def _limit(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the server did not answer in time")
        self._socket.settimeout(left)
