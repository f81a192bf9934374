"""`egpo report --live`: serve the report of runs that are being trained. The page asks for new data every two seconds.

Two addresses, read-only: `/` is the page, `/version` is a digest that changes with the files of the runs. The server
listens on the loopback interface by default. A request whose Host header names another machine is refused, and so is
one whose Origin is another site: a web page on the internet cannot read the report through the browser.
"""

import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from egpo.errors import InputError
from egpo.reports.comparison import PATTERN
from egpo.reports.report import BUDGET_MB, render_report
from egpo.runs.folder import RunFolder

LOOPBACK = "127.0.0.1"
PORT = 8765
_CHECK_S = 0.5
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest of the policy is in the page
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True)
class LiveState:
    """The latest page, and the version of the files that it was made from. `error`: why they could not be read."""

    version: str
    page: bytes
    error: str = ""


class LiveReport:
    """Renders the page again whenever a file of the runs has changed. Safe for several threads."""

    def __init__(self, paths: Sequence[Path], budget_mb: float = BUDGET_MB) -> None:
        self._paths, self._budget_mb = list(paths), budget_mb
        self._lock = threading.Lock()
        self._state = LiveState(self.version(), render_report(self._paths, budget_mb, live=True))

    def version(self) -> str:
        """Return a digest of the names, sizes and times of all files that the report reads."""
        return sha256("\n".join(_stamps(self._paths)).encode()).hexdigest()[:16]

    def state(self) -> LiveState:
        """Return the page of the present files. The last page stays if they cannot be read, or if a folder is gone."""
        with self._lock:
            version = self.version()
            if version != self._state.version:
                self._state = self._rendered(version)
            return self._state

    def _rendered(self, version: str) -> LiveState:
        try:
            return LiveState(version, render_report(self._paths, self._budget_mb, live=True))
        except Exception as error:  # boundary: files of a run that is being written or deleted may contain anything
            return LiveState(version, self._state.page, str(error) or type(error).__name__)

    def require_folders(self) -> None:
        """Raise an InputError if a run folder was deleted."""
        for path in self._paths:
            if not path.exists():
                raise InputError("deleted while it was shown", where=str(path), fix="give the folder of a run")


def _stamps(paths: Sequence[Path]) -> Iterator[str]:
    for path in paths:
        run = RunFolder(path)
        single = [run.config, run.metrics, run.timings, run.health, run.provenance, *sorted(path.parent.glob(PATTERN))]
        for file in (path, *single, *sorted(run.rollouts.glob("*.jsonl")), *sorted(run.evals.glob("*.json*"))):
            try:
                found = file.stat()
                yield f"{file} {found.st_size} {found.st_mtime_ns}"
            except OSError:
                yield f"{file} missing"


@contextmanager
def live_server(report: LiveReport, host: str = LOOPBACK, port: int = PORT) -> Iterator[str]:
    """Serve a report in a thread of its own. Yield its address. InputError if the port cannot be used."""
    try:
        server = LiveServer(report, host, port)
    except (OSError, OverflowError) as error:
        what = f"port {port} of {host} cannot be used ({getattr(error, 'strerror', None) or error})"
        raise InputError(what, where="egpo report --live", fix="give another --port; 0: any free port") from error
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
    thread.start()
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"http://{shown}:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def serve_live(
    paths: Sequence[Path],
    say: Callable[[str], None],
    *,
    host: str = LOOPBACK,
    port: int = PORT,
    budget_mb: float = BUDGET_MB,
) -> None:
    """Serve until Ctrl-C. InputError if a run folder is deleted meanwhile."""
    report = LiveReport(paths, budget_mb)
    # Around the server, too: Ctrl-C may come as soon as the address is printed.
    with suppress(KeyboardInterrupt), live_server(report, host, port) as address:
        say(f"{address} (Ctrl-C ends it)")
        while True:
            report.require_folders()
            time.sleep(_CHECK_S)


class LiveServer(ThreadingHTTPServer):
    """Answers every request in a thread of its own. `host` is the address or name that it listens on."""

    daemon_threads = True

    def __init__(self, report: LiveReport, host: str, port: int) -> None:
        self.report, self.host = report, host
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), LiveRequest)

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a browser that closes its connection early is not an error."""


class LiveRequest(BaseHTTPRequestHandler):
    """Answers GET and HEAD of `/` and `/version`."""

    server: LiveServer
    server_version, sys_version = "egpo", ""
    timeout = 30

    def do_GET(self) -> None:
        if fault := self._fault():
            self._answer(403, fault.encode(), "text/plain; charset=utf-8")
        elif self.path == "/":
            self._answer(200, self.server.report.state().page, "text/html; charset=utf-8")
        elif self.path == "/version":
            state = self.server.report.state()
            content = json.dumps({"version": state.version, "error": state.error})
            self._answer(200, content.encode(), "application/json")
        else:
            self._answer(404, b"not found\n", "text/plain; charset=utf-8")

    do_HEAD = do_GET

    def _fault(self) -> str:
        """Return why a request is refused; empty if it is not."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        if not is_allowed_host(host, self.server.host):
            return "refused: the Host header names another machine\n"
        if origin is not None and origin != f"http://{host}":
            return "refused: the request comes from another site\n"
        return ""

    def _answer(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: a page asks every two seconds."""


def is_allowed_host(header: str, listens_on: str) -> bool:
    """Return whether a Host header means this server: `localhost`, the name that it listens on, or an IP address.

    A name of another site that resolves to this machine (DNS rebinding) is refused.
    """
    name = header.rpartition(":")[0] if not header.endswith("]") and ":" in header else header
    name = name.strip("[]").lower()
    if name in ("localhost", listens_on.lower(), socket.gethostname().lower()):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
