"""Sessions in worker processes: a limit on the seconds of every call, and a process that can be ended.

A worker hosts several sessions, each in a thread of its own. If a call exceeds its limit, its session has failed; the
worker gets no new sessions, and is ended when its other sessions have ended. If a worker dies, its sessions fail.
"""

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egpo.environments.protocol import EnvironmentFailedError, remember_schemas
from egpo.environments.records import TurnRecord
from egpo.environments.sessions import CallResult, LocalSession, SessionOpening, UserTurn, answer_request
from egpo.errors import EgpoError, how_it_ended
from egpo.rewards.verdict import Verdict
from egpo.waits import waiting

if TYPE_CHECKING:
    from egpo.environments.episodes import EpisodeLimits

_SCRIPT = Path(__file__).parent / "inside" / "session_worker.py"
START_S = 120.0
"""Seconds that a worker has to start and to import the environment."""
_END_S = 2.0


class SessionWorker:
    """A process that hosts sessions. Any thread may use it. `spec` says what it hosts (`inside/session_worker.py`)."""

    def __init__(self, python: str | Path, spec: Mapping[str, Any]) -> None:
        self._process = subprocess.Popen(
            [str(python), "-P", str(_SCRIPT), json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._input = self._process.stdin.fileno()
        os.set_blocking(self._input, False)
        self._lock, self._write_lock = threading.Lock(), threading.Lock()
        self._started: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._waiting: dict[int, queue.SimpleQueue[dict[str, Any]]] = {0: self._started}
        self._next_id, self.num_sessions, self.is_retired, self._is_dead = 1, 0, False, False
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self, where: str) -> None:
        """Raise EgpoError if the worker does not start."""
        try:
            with waiting("environment start", f"a worker process of {where}", limit_s=START_S):
                reply = self._started.get(timeout=START_S)
        except queue.Empty:
            reply = {"fault": f"it was not ready within {START_S:g} s"}
        if "fault" in reply:
            self.kill()
            raise EgpoError(f"a worker process of the environment did not start: {reply['fault']}", where=where)

    def request(self, session: str, operation: str, given: Mapping[str, Any], limit_s: float) -> Any:
        """Return the answer of a session. EnvironmentFailedError if it fails, or does not answer within `limit_s`."""
        deadline = time.monotonic() + limit_s
        replies: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._lock:
            number, self._next_id = self._next_id, self._next_id + 1
            self._waiting[number] = replies
            if self._is_dead:
                raise self._death()
        request = {"id": number, "session": session, "operation": operation, "given": given}
        try:
            with waiting("environment", f"`{given.get('name', operation)}` of the environment", limit_s=limit_s):
                self._write(json.dumps(request).encode() + b"\n", deadline)
                reply = replies.get(timeout=max(0.0, deadline - time.monotonic()))
        except (queue.Empty, TimeoutError) as error:
            self.is_retired = True
            what = f"`{given.get('name', operation)}` gave no answer within {limit_s:g} s"
            raise EnvironmentFailedError(what, "environment_timeout") from error
        except OSError as error:
            raise self._death() from error
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if "fault" in reply:
            raise EnvironmentFailedError(str(reply["fault"]), str(reply["reason"]))
        return reply["answer"]

    def _write(self, line: bytes, deadline: float) -> None:
        """Write a line. TimeoutError at the deadline: a worker that hangs may leave the pipe full."""
        with self._write_lock:
            sent = 0
            while sent < len(line):
                if not select.select([], [self._input], [], max(0.0, deadline - time.monotonic()))[1]:
                    if sent:
                        self.kill()  # the rest of the line is missing: the next line could not be read
                    raise TimeoutError
                with suppress(BlockingIOError):
                    sent += os.write(self._input, line[sent : sent + 65_536])

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = json.loads(line)
            with self._lock:
                waiting = self._waiting.get(reply["id"])
            if waiting is not None:  # None: the call had exceeded its limit
                waiting.put(reply)
        self._process.wait()
        with self._lock:
            self._is_dead = True
            waiting_all = list(self._waiting.values())
        death = self._death()
        for waiting in waiting_all:
            waiting.put({"fault": str(death), "reason": death.reason})

    def _death(self) -> EnvironmentFailedError:
        how = how_it_ended(self._process.poll() or 0)
        return EnvironmentFailedError(f"the process of the environment {how}", "environment_died")

    @property
    def is_usable(self) -> bool:
        return not self.is_retired and not self._is_dead

    def kill(self) -> None:
        with suppress(OSError):
            # The whole session: a tool may have started processes of its own.
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Let the worker exit, and kill it if it does not."""
        assert self._process.stdin is not None
        with suppress(OSError), self._write_lock:
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()


class WorkerSession:
    """A session in a worker process."""

    is_fast = False

    def __init__(self, worker: SessionWorker, name: str, limits: "EpisodeLimits", on_close: Callable[[], None]) -> None:
        self._worker, self._name, self._limits = worker, name, limits
        self._on_close: Callable[[], None] | None = on_close

    def reset(self, row: Mapping[str, Any]) -> SessionOpening:
        given = {"row": row, "result_chars": self._limits.result_chars}
        opened = self._ask("reset", given, self._limits.reset_s)
        messages = None if opened["messages"] is None else tuple(opened["messages"])
        return SessionOpening(opened["observation"], tuple(opened["tools"]), messages, opened["tools_in_prompt"])

    def call(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        return CallResult(**self._ask("call", {"name": name, "arguments": arguments}, self._limits.call_s))

    def user_turn(self) -> UserTurn:
        answer = self._ask("user_turn", {}, self._limits.call_s)
        return UserTurn(answer["text"], tuple(answer["tools"]))

    def state(self) -> Any:
        return self._ask("state", {}, self._limits.call_s)

    def verdict(self, turns: Sequence[TurnRecord]) -> Verdict:
        return Verdict(**self._ask("verdict", {"turns": [asdict(turn) for turn in turns]}, self._limits.reset_s))

    def close(self) -> None:
        if self._on_close is None:
            return
        on_close, self._on_close = self._on_close, None
        try:
            if self._worker.is_usable:
                self._ask("close", {}, self._limits.call_s)
        except EnvironmentFailedError:
            pass  # the episode has its verdict, and the host ends the worker
        finally:
            on_close()

    def _ask(self, operation: str, given: Mapping[str, Any], limit_s: float) -> Any:
        return self._worker.request(self._name, operation, given, limit_s)


class _HostedSession:
    """A session as `inside/session_worker.py` uses it."""

    def __init__(self, session: LocalSession) -> None:
        self._session = session

    def answer(self, operation: str, given: Mapping[str, Any]) -> Any:
        return answer_request(self._session, operation, given)


def hosted_opener(spec: Mapping[str, Any]) -> Callable[[], _HostedSession]:
    """Return a function that opens sessions of the environment that `spec` names. Called in a worker process."""
    from egpo.environments.table import load_environment
    from egpo.rewards.named import user_function

    kind = load_environment(spec["name"])
    remember_schemas(kind, spec["schemas"])  # reading them here would import transformers in every worker
    reward = None if spec["reward"] is None else user_function(spec["reward"])
    return lambda: _HostedSession(LocalSession(kind, spec["settings"], reward))


def own_interpreter() -> str:
    return sys.executable
