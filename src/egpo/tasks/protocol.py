"""The interface of a task, the check of its gold answers, and the judging of many responses within a time limit.

`Task` is the interface: problems, a prompt for each, a judge, and a gold answer (a response that earns the full
reward). `check_gold` verifies the gold answers. `judge_texts` calls the judge in threads, and returns a failed verdict
where the judge fails. A task may also have `judge_many(problems, texts)`, which judges many responses in one call.
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
from egpo.errors import EgpoError, Fault, InputError, warn_once
from egpo.rewards.named import FOREIGN_REASONS
from egpo.rewards.user_functions import REWARD_RAISED, RewardError
from egpo.rewards.verdict import Verdict

METHODS = ("problems", "prompt", "judge", "gold")


@dataclass(frozen=True)
class Problem:
    """One problem of a task.

    `key`: problems with equal keys are the same problem, and are never in both splits. `messages`: the prompt.
    `ground_truth`: the text that responses are judged by; JSON if it has several parts. `extra`: further values (text
    or whole numbers), which are written to the column `extra_info`.
    """

    key: str
    messages: tuple[Message, ...]
    ground_truth: str
    ability: str = ""
    extra: Mapping[str, str | int] = field(default_factory=dict)


@runtime_checkable
class Task(Protocol):
    """A task: data, prompts and reward. Any class with these four methods is a task; no base class is needed.

    A task may have a fifth, `judge_many(problems, texts) -> list[Verdict]`: `judge_texts` then calls it in place of
    `judge`, with at most `MOST_AT_ONCE` responses, never twice at the same time. It may be None, as if it were missing.

    A task of several turns has an attribute `environment`: a name in `egpo.environments.ENVIRONMENTS`, `module:Class`,
    or a mapping of such names, of which the problem's `extra["environment"]` chooses one. Its rows are
    `environment_row(problem)`. It may have `environment_settings` (arguments of the environment's class),
    `environment_reward` (a reward function in TRL's form) and `gold_turns(problem)`, the assistant's texts of an
    episode that earns the full reward.
    """

    def problems(self, split: str) -> Sequence[Problem]:
        """Return the problems of the split "train" or "test". Every call must return the same problems."""
        ...

    def prompt(self, problem: Problem) -> list[Message]:
        """Return the prompt as chat messages {role, content}, the input of `apply_chat_template`."""
        ...

    def judge(self, problem: Problem, text: str) -> Verdict:
        """Judge a response to a problem. No text that a model may write must raise an exception."""
        ...

    def gold(self, problem: Problem) -> str:
        """Return a response to the problem that earns the full reward."""
        ...


def user_message(text: str) -> tuple[Message, ...]:
    """Return a prompt of one user message."""
    return ({"role": "user", "content": text},)


def problems_digest(problems: Iterable[Problem]) -> str:
    """Return the SHA-256 of the problems' keys, prompts and ground truths. Equal digests mean equal problems."""
    digest = hashlib.sha256()
    for problem in problems:
        shown = [problem.key, [dict(message) for message in problem.messages], problem.ground_truth]
        digest.update(json.dumps(shown, default=str).encode("utf-8", "backslashreplace"))
    return digest.hexdigest()


def check_gold(task: Task, split: str = "train", count: int = 16) -> list[Fault]:
    """Judge the gold answers of the first `count` problems of a split.

    Return a fault for each gold answer that is not judged correct.
    """
    faults = []
    for problem in islice(task.problems(split), count):
        verdict = task.judge(problem, task.gold(problem))
        if not verdict.correct:
            what = f"the gold answer is judged not correct: `{verdict.reason}` (reward {verdict.reward})"
            faults.append(Fault(what, where=f"problem {problem.key}", fix="correct the task's `gold` or `judge`"))
    return faults


JUDGE_RAISED = "judge_raised"
"""Reason in the failed verdict if the judge raised an exception or returned an invalid verdict."""
JUDGE_TIMED_OUT = "judge_timed_out"
"""Reason in the failed verdict if the judge exceeded its time limit."""

MOST_AT_ONCE = 1024
"""Largest number of responses in one call of a task's `judge_many`."""
TIMEOUT_S = 300.0
"""Default time limit for one call of a judge, in seconds."""
_NOTICE_S = 18.0
"""Time in seconds after which a judge is slow. One warning is printed for each task with a slow judge."""
_MOST_HANGING = 3
"""Number of hanging judge threads at which the run stops. Such threads cannot be ended, and use processor time."""
_LARGEST = 3e38
"""Largest absolute value of a reward, about the largest float32: a larger reward would become infinite."""

_hanging: list[threading.Thread] = []


def judge_texts(
    task: Task, problems: Sequence[Problem], texts: Sequence[str], *, timeout_s: float | None = None
) -> tuple[Verdict, ...]:
    """Judge each text as a response to the problem at the same index, in parallel threads, or with `judge_many`.

    A text gets a failed verdict if the judge raises an exception, does not return a verdict with a finite reward, or
    takes longer than `timeout_s` seconds (None: the task's `judge_timeout_s`, or `TIMEOUT_S`). With `judge_many` the
    limit is for one call. Raise EgpoError if the judge fails on every text, or if too many judge threads hang, and
    InputError if a user's reward function fails on every text.
    """
    limit_s = timeout_s or float(getattr(task, "judge_timeout_s", None) or TIMEOUT_S)
    batch = _JudgedBatch(task, problems, texts, limit_s)
    try:
        batch.judge()
    finally:
        # After an interrupt, do not wait for a judge that hangs, so that the run can save its state.
        batch.is_over = True
    verdicts = tuple(batch.verdicts[index] for index in range(len(texts)))
    _require_some(verdicts, batch.errors, _name(task))
    return verdicts


class _JudgedBatch:
    """A batch of texts that are being judged in threads, one text per call, or `MOST_AT_ONCE` with `judge_many`.

    `_calls` holds the indices of the texts of each call. The threads are daemons, so that a thread that hangs does not
    keep the process alive.
    """

    def __init__(self, task: Task, problems: Sequence[Problem], texts: Sequence[str], limit_s: float) -> None:
        self._task, self._problems, self._texts, self._limit_s = task, problems, texts, limit_s
        self._judge_many = getattr(task, "judge_many", None)
        size = 1 if self._judge_many is None else MOST_AT_ONCE
        self._calls = [range(start, min(start + size, len(texts))) for start in range(0, len(texts), size)]
        self._left = iter(range(len(self._calls)))
        self._started: dict[int, float] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._done: SimpleQueue[tuple[int, list[Verdict] | EgpoError]] = SimpleQueue()
        self.verdicts: dict[int, Verdict] = {}
        self.errors: list[BaseException] = []
        self.is_over = False

    def judge(self) -> None:
        interval_s, last_check = min(1.0, self._limit_s / 4), time.monotonic()
        num_threads = (os.cpu_count() or 1) if self._judge_many is None else 1
        with _BlockedProcessReport(self._limit_s + _NOTICE_S) as report:
            started = [self._start_thread() for _ in range(min(len(self._calls), num_threads))]
            if not any(started):
                self._work()  # no thread can be started: judge in the current thread, without a time limit
            while len(self.verdicts) < len(self._texts):
                self._take(interval_s)
                if time.monotonic() - last_check >= interval_s:
                    last_check = time.monotonic()
                    report.postpone()
                    self._check_times()

    def _start_thread(self) -> bool:
        try:
            threading.Thread(target=self._work, daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _work(self) -> None:
        while not self.is_over and (call := next(self._left, None)) is not None:
            self._started[call], self._threads[call] = time.monotonic(), threading.current_thread()
            self._done.put((call, self._verdicts_of(self._calls[call])))

    def _verdicts_of(self, indices: range) -> list[Verdict] | EgpoError:
        try:
            if self._judge_many is None:
                return [_checked(self._task.judge(self._problems[i], self._texts[i])) for i in indices]
            return self._verdicts_of_many(indices)
        except EgpoError as error:
            return error
        except BaseException as error:  # boundary: a user's task may raise anything, including SystemExit
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            return [self._failed(error)] * len(indices)

    def _verdicts_of_many(self, indices: range) -> list[Verdict]:
        assert self._judge_many is not None
        found = list(self._judge_many([self._problems[i] for i in indices], [self._texts[i] for i in indices]))
        if len(found) != len(indices):
            raise ValueError(f"`judge_many` returned {len(found)} verdicts for {len(indices)} texts")
        return [self._checked_or_failed(verdict) for verdict in found]

    def _checked_or_failed(self, verdict: Any) -> Verdict:
        try:
            return _checked(verdict)
        except (TypeError, ValueError) as error:
            return self._failed(error)

    def _failed(self, error: BaseException) -> Verdict:
        self.errors.append(error)
        reason = REWARD_RAISED if isinstance(error, RewardError) else JUDGE_RAISED
        return Verdict(0.0, False, reason, failed=True)

    def _take(self, wait_s: float) -> None:
        try:
            call, outcome = self._done.get(timeout=wait_s)
        except Empty:
            return
        if isinstance(outcome, EgpoError):
            raise outcome
        for index, verdict in zip(self._calls[call], outcome, strict=True):
            self.verdicts.setdefault(index, verdict)  # a text that timed out keeps its failed verdict

    def _check_times(self) -> None:
        """Warn about a slow judge, and give a failed verdict to each text whose time limit has passed."""
        now, name = time.monotonic(), _name(self._task)
        for call, start in list(self._started.items()):
            indices = self._calls[call]
            if indices[0] in self.verdicts or now - start < min(_NOTICE_S, self._limit_s):
                continue
            shown = self._shown(indices)
            if now - start < self._limit_s:
                what = f"the judge of task {name} has taken {now - start:.0f} s for {shown} so far"
                warn_once(f"slow judge {name}", f"{what}; its time limit is {self._limit_s:g} s (task.judge_timeout_s)")
                continue
            late = f"no verdict on {shown} within {self._limit_s:g} s (task.judge_timeout_s)"
            warn_once(f"judge timed out {name}", f"task {name}: {late}; responses without a verdict are left out")
            self.errors.append(TimeoutError(late))
            self.verdicts |= dict.fromkeys(indices, Verdict(0.0, False, JUDGE_TIMED_OUT, failed=True))
            self._abandon(self._threads[call], late)

    def _shown(self, indices: range) -> str:
        if len(indices) > 1:
            return f"{len(indices)} responses in one call"
        return f"a response to problem {self._problems[indices[0]].key!r:.80}"

    def _abandon(self, thread: threading.Thread, late: str) -> None:
        """Count a judge thread that timed out as hanging, and start a new thread in its place.

        Raise EgpoError if too many threads hang.
        """
        _hanging[:] = [other for other in [*_hanging, thread] if other.is_alive()]
        if len(_hanging) >= _MOST_HANGING:
            what = f"the judge hangs in {len(_hanging)} threads; the last: {late}"
            raise EgpoError(what, where=f"task {_name(self._task)}", fix="add a time limit to the task's `judge`")
        self._start_thread()


class _BlockedProcessReport:
    """A timer that writes the stack of every thread to stderr if `postpone` is not called for `after_s` seconds.

    This shows where a judge blocks the whole process: in a long call that holds the interpreter's lock, such as the
    match of a regular expression.
    """

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s

    def __enter__(self) -> "_BlockedProcessReport":
        self.postpone()
        return self

    def postpone(self) -> None:
        try:
            faulthandler.dump_traceback_later(self._after_s)
        except (RuntimeError, UnsupportedOperation, AttributeError, ValueError, OSError):
            return  # there is no stderr, or no thread can be started

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()


def _name(task: Task) -> str:
    return f"{type(task).__module__}:{type(task).__qualname__}"


def _checked(verdict: Any) -> Verdict:
    """Return the verdict with Python's own number types, because those of numpy and torch cannot be written as JSON.

    Raise TypeError if it is not a verdict, and ValueError if its reward is not finite in float32.
    """
    if not isinstance(verdict, Verdict):
        raise TypeError(f"`judge` returned {type(verdict).__name__}, not a Verdict")
    reward = float(verdict.reward)
    if not abs(reward) <= _LARGEST:
        raise ValueError(f"`judge` returned a reward of {reward}, which is not finite in float32")
    return replace(verdict, reward=reward, correct=bool(verdict.correct), failed=bool(verdict.failed))


def _require_some(verdicts: tuple[Verdict, ...], errors: list[BaseException], name: str) -> None:
    if not verdicts or not all(verdict.failed for verdict in verdicts):
        return
    reason = verdicts[0].reason
    detail = f" ({type(errors[0]).__name__}: {errors[0]})" if errors else ""
    if reason in FOREIGN_REASONS:
        what = f"the reward function failed on all {len(verdicts)} responses: {reason}{detail}"
        raise InputError(what, where=f"task {name}", fix="correct the function") from (errors[0] if errors else None)
    raise EgpoError(
        f"the judge failed on all {len(verdicts)} responses: {reason}{detail}",
        where=f"task {name}",
        fix="correct the task's `judge`, or run `egpo doctor` to check the sandbox",
    ) from (errors[0] if errors else None)
