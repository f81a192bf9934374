"""What a task is: problems, a prompt for each, a judge, and an answer that the judge must accept.

A task's self-check: its own gold answers must earn full reward.

A verdict on every response, from the task's own judge, within a time limit.
"""

import faulthandler
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import UnsupportedOperation
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Protocol, runtime_checkable

from egpo.data.rows import Message
from egpo.errors import EgpoError, Fault, warn_once
from egpo.rewards.verdict import Verdict

METHODS = ("problems", "prompt", "judge", "gold")


@dataclass(frozen=True)
class Problem:
    """One thing to solve.

    `key` is its identity: problems with equal keys are the same problem, and never in both splits.
    `messages` is the prompt; `ground_truth` is what answers are judged by, JSON text where it has parts.
    `extra` is whatever else the task knows: text or whole numbers, written to `extra_info`.
    """

    key: str
    messages: tuple[Message, ...]
    ground_truth: str
    ability: str = ""
    extra: Mapping[str, str | int] = field(default_factory=dict)


@runtime_checkable
class Task(Protocol):
    """Data, prompt and reward in one place. A class with these four methods is a task: no base class, no registry."""

    def problems(self, split: str) -> Sequence[Problem]:
        """The problems of "train" or "test", the same at every call."""
        ...

    def prompt(self, problem: Problem) -> list[Message]:
        """Chat messages {role, content}, ready for `apply_chat_template`."""
        ...

    def judge(self, problem: Problem, text: str) -> Verdict:
        """The verdict on a response. Never raises on what a model may have written."""
        ...

    def gold(self, problem: Problem) -> str:
        """A response that earns full reward."""
        ...


def user(text: str) -> tuple[Message, ...]:
    """A prompt of one turn."""
    return ({"role": "user", "content": text},)


def problems_digest(problems: Iterable[Problem]) -> str:
    """Return the SHA-256 of keys, prompts and ground truths, in order: equal digests mean equal problems."""
    digest = hashlib.sha256()
    for problem in problems:
        shown = [problem.key, [dict(message) for message in problem.messages], problem.ground_truth]
        digest.update(json.dumps(shown, default=str).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def check_gold(task: Task, split: str = "train", count: int = 16) -> list[Fault]:
    """What is wrong with the first `count` problems of a split; empty for a sound task."""
    faults = []
    for problem in islice(task.problems(split), count):
        verdict = task.judge(problem, task.gold(problem))
        if not verdict.correct:
            what = f"gold is judged `{verdict.reason}` (reward {verdict.reward})"
            faults.append(Fault(what, where=f"problem {problem.key}", fix="mend `gold` or `judge`"))
    return faults


JUDGE_RAISED = "judge_raised"
"""The reason of a verdict that a task's judge did not give: it raised, or returned something else."""
JUDGE_TIMED_OUT = "judge_timed_out"
"""The reason of a verdict that a task's judge did not give in time."""

TIMEOUT_S = 300.0
"""The time limit of one judgement, where neither the recipe nor the task sets another."""
_NOTICE_S = 20.0
_MOST_HANGING = 3
"""So many judgements may hang at the same time: their threads cannot be ended, and take the machine's time."""
_LARGEST = 3e38

_hanging: list[threading.Thread] = []


def judge_texts(
    task: Task, problems: Sequence[Problem], texts: Sequence[str], *, timeout_s: float | None = None
) -> tuple[Verdict, ...]:
    """On each text, as an answer to the problem at its place. Judges that wait (for a sandbox, for a worker) wait side
    by side.

    A judge that raises, returns what is no verdict or no finite reward, or takes longer than `timeout_s` (none: the
    task's own `judge_timeout_s`, else `TIMEOUT_S`), fails that text. One that fails every text is an error, and so is
    one that hangs `_MOST_HANGING` times at once.
    """
    limit_s = timeout_s or float(getattr(task, "judge_timeout_s", None) or TIMEOUT_S)
    batch = _JudgedBatch(task, problems, texts, limit_s)
    try:
        batch.judge()
    finally:
        # An interrupt does not wait for a judge that hangs: what the run has done can then be saved.
        batch.is_over = True
    verdicts = tuple(batch.verdicts[index] for index in range(len(texts)))
    _require_some(verdicts, batch.errors, _name(task))
    return verdicts


class _JudgedBatch:
    """Texts that are being judged, in daemon threads: one that hangs does not keep the process from ending."""

    def __init__(self, task: Task, problems: Sequence[Problem], texts: Sequence[str], limit_s: float) -> None:
        self._task, self._problems, self._texts, self._limit_s = task, problems, texts, limit_s
        self._left = iter(range(len(texts)))
        self._started: dict[int, float] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._done: SimpleQueue[tuple[int, Verdict | EgpoError]] = SimpleQueue()
        self.verdicts: dict[int, Verdict] = {}
        self.errors: list[BaseException] = []
        self.is_over = False

    def judge(self) -> None:
        look_s, looked = min(1.0, self._limit_s / 4), time.monotonic()
        with _BlockedProcessReport(self._limit_s + _NOTICE_S) as report:
            started = [self._start_thread() for _ in range(min(len(self._texts), os.cpu_count() or 1))]
            if not any(started):
                self._work()  # on a machine that has no thread left: in this one, without a time limit
            while len(self.verdicts) < len(self._texts):
                self._take(look_s)
                if time.monotonic() - looked >= look_s:
                    looked = time.monotonic()
                    report.postpone()
                    self._look()

    def _start_thread(self) -> bool:
        try:
            threading.Thread(target=self._work, daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _work(self) -> None:
        while not self.is_over and (index := next(self._left, None)) is not None:
            self._started[index], self._threads[index] = time.monotonic(), threading.current_thread()
            self._done.put((index, self._verdict(self._problems[index], self._texts[index])))

    def _verdict(self, problem: Problem, text: str) -> Verdict | EgpoError:
        try:
            return _checked(self._task.judge(problem, text))
        except EgpoError as error:
            return error
        except BaseException as error:  # the boundary: a task from outside may raise anything, SystemExit too
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            self.errors.append(error)
            return Verdict(0.0, False, JUDGE_RAISED, failed=True)

    def _take(self, wait_s: float) -> None:
        try:
            index, outcome = self._done.get(timeout=wait_s)
        except Empty:
            return
        if isinstance(outcome, EgpoError):
            raise outcome
        self.verdicts.setdefault(index, outcome)  # one that comes after its time limit has its verdict already

    def _look(self) -> None:
        """Say which judgement takes long, and give up those that take too long."""
        now, name = time.monotonic(), _name(self._task)
        for index, start in list(self._started.items()):
            if index in self.verdicts or now - start < min(_NOTICE_S, self._limit_s):
                continue
            key = f"{self._problems[index].key!r:.80}"
            if now - start < self._limit_s:
                what = f"the judge of task {name} has worked on a response to problem {key} for {now - start:.0f} s"
                warn_once(f"slow judge {name}", f"{what}; its time limit is {self._limit_s:g} s (task.judge_timeout_s)")
                continue
            said = f"no verdict on a response to problem {key} within {self._limit_s:g} s (task.judge_timeout_s)"
            warn_once(f"judge timed out {name}", f"task {name}: {said}; such responses are left out")
            self.errors.append(TimeoutError(said))
            self.verdicts[index] = Verdict(0.0, False, JUDGE_TIMED_OUT, failed=True)
            self._give_up(self._threads[index], said)

    def _give_up(self, thread: threading.Thread, said: str) -> None:
        _hanging[:] = [other for other in [*_hanging, thread] if other.is_alive()]
        if len(_hanging) >= _MOST_HANGING:
            what = f"the judge hangs: {len(_hanging)} judgements have not ended, the last: {said}"
            raise EgpoError(what, where=f"task {_name(self._task)}", fix="give its `judge` a time limit of its own")
        self._start_thread()


class _BlockedProcessReport:
    """Writes where every thread is, to stderr, when this process could not look at the clock for `after_s`: a judge in
    a long call that holds the interpreter's lock (a regular expression that backtracks) stops everything."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s

    def __enter__(self) -> "_BlockedProcessReport":
        self.postpone()
        return self

    def postpone(self) -> None:
        try:
            faulthandler.dump_traceback_later(self._after_s)
        except (RuntimeError, UnsupportedOperation, AttributeError, ValueError, OSError):
            return  # no stderr, or no thread left

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()


def _name(task: Task) -> str:
    return f"{type(task).__module__}:{type(task).__qualname__}"


def _checked(verdict: Any) -> Verdict:
    """In Python's own types: the numbers of numpy and torch are no JSON. Beyond float32 a reward is infinite."""
    if not isinstance(verdict, Verdict):
        raise TypeError(f"`judge` returned {type(verdict).__name__}, not a Verdict")
    reward = float(verdict.reward)
    if not abs(reward) <= _LARGEST:
        raise ValueError(f"`judge` returned a reward of {reward}")
    return replace(verdict, reward=reward, correct=bool(verdict.correct), failed=bool(verdict.failed))


def _require_some(verdicts: tuple[Verdict, ...], errors: list[BaseException], name: str) -> None:
    if not verdicts or not all(verdict.failed for verdict in verdicts):
        return
    reason = verdicts[0].reason
    said = f" ({type(errors[0]).__name__}: {errors[0]})" if errors else ""
    raise EgpoError(
        f"the judge failed on all {len(verdicts)} responses: {reason}{said}",
        where=f"task {name}",
        fix="nothing can be learnt from this; mend the task's `judge`, or see `egpo doctor` for the sandbox",
    ) from (errors[0] if errors else None)
