"""A process that hosts sessions of one environment. It speaks JSON lines over stdin and stdout.

The first argument is JSON: `{"file": F}` names a Python file with `open_session()`, whose sessions have
`answer(operation, given)`; it may run under an interpreter without egpo. `{"name", "settings", "reward", "path"}` names
an environment that egpo loads.

A line in: {"id", "session", "operation", "given"}. A line out: {"id", "answer"} or {"id", "fault", "reason"}. Each
session has a thread of its own, so that one that waits does not hold up the others. Only the standard library is
imported at the top: the file must run under any Python.
"""

import importlib.util
import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, BinaryIO


def main() -> None:
    replies = _private_stdout()
    lock = threading.Lock()

    def reply(value: dict[str, Any]) -> None:
        line = json.dumps(value, default=str) + "\n"
        with lock:
            replies.write(line.encode())
            replies.flush()

    try:
        open_session = _opener(json.loads(sys.argv[1]))
    except BaseException as error:  # the boundary: the parent reports it
        reply({"id": 0, "fault": f"{type(error).__name__}: {error}", "reason": "environment_fault"})
        return
    reply({"id": 0, "answer": "ready"})
    requests: dict[str, queue.SimpleQueue[dict[str, Any]]] = {}
    for line in sys.stdin.buffer:
        request = json.loads(line)
        name = request["session"]
        if name not in requests:
            requests[name] = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(open_session, requests[name], reply), daemon=True).start()
        requests[name].put(request)
        if request["operation"] == "close":
            del requests[name]
    os._exit(0)  # the parent has ended or closed the pipe; a thread that hangs must not keep this process alive


def _private_stdout() -> BinaryIO:
    """Return the pipe to the parent, and send what is printed to stderr from now on."""
    sys.stdout.flush()
    pipe = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return pipe


def _opener(spec: dict[str, Any]) -> Callable[[], Any]:
    # In the host's order: what a package put at its end (setuptools' copies of other packages) must not come first.
    given = spec.get("path", [])
    sys.path[:] = [*given, *(entry for entry in sys.path if entry not in given)]
    if "file" in spec:
        found = importlib.util.spec_from_file_location("hosted_sessions", spec["file"])
        assert found is not None
        assert found.loader is not None
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)
        return module.open_session  # type: ignore[no-any-return]
    from egpo.environments.session_workers import hosted_opener

    return hosted_opener(spec)


def _serve(open_session: Callable[[], Any], requests: Any, reply: Callable[[dict[str, Any]], None]) -> None:
    session = None
    while True:
        request = requests.get()
        try:
            if session is None:
                session = open_session()
            reply({"id": request["id"], "answer": session.answer(request["operation"], request["given"])})
        except BaseException as error:  # the boundary of the process: the parent reports it
            reason = getattr(error, "reason", "environment_fault")
            reply({"id": request["id"], "fault": str(error) or type(error).__name__, "reason": str(reason)})
        if request["operation"] == "close":
            return


if __name__ == "__main__":
    main()
