"""The rendering of chat templates, with limits on time, memory and size. No other module calls `apply_chat_template`,
but BFCL's handler, which runs without egpo.

A template is a program from a model folder. Jinja's sandbox denies it access to files and to Python, but it can still
run forever or use all memory. So the first rendering of a template is tested in a child process with limits, and every
rendering has a time limit and a maximum size.
"""

import ctypes
import os
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from egpo.errors import NOTICES, USER_STOPS, InputError
from egpo.waits import waiting

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

TIME_LIMIT_S = 60.0
"""Time limit of one rendering in seconds. Usual templates take less than a millisecond."""
CPU_LIMIT_S = 10
"""Limit of the CPU time of the first rendering, in its child process, in seconds."""
MEMORY_LIMIT = 1 << 30
"""Bytes that the child process may allocate beyond its size at the start."""
MOST_CHARS = 64 << 20
"""Maximum length of one rendered conversation, in characters."""

Messages = Sequence[Mapping[str, Any]]
Result = TypeVar("Result")

_MARK = " [egpo tests whether this is read]"
_OK, _IGNORED, _TOO_LONG, _NO_MEMORY = b"o", b"i", b"l", b"m"
_FAULTS = {
    _IGNORED: "the template ignores the messages: two different questions give the same prompt",
    _TOO_LONG: f"the template writes more than {MOST_CHARS:,} characters for one conversation",
    _NO_MEMORY: f"the template takes more than {MEMORY_LIMIT >> 20:,} MiB of memory",
}
_UNFINISHED = "the template has not finished within {:g} s"
_FIX = "use the template of the model's publisher: `chat_template.jinja`, or `chat_template` in tokenizer_config.json"


def render(
    tokenizer: Any,
    messages: Messages,
    *,
    tools: Sequence[Any] | None = None,
    prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Return a conversation rendered with the tokenizer's chat template.

    With `prompt`, the text ends with the start of the assistant's turn. `variables` are passed to the template.
    Exceptions that the template raises (`jinja2.TemplateError` and others) are not caught. Raise InputError if the
    template exceeds a limit or ignores the messages.
    """

    def rendered(shown: Messages) -> str:
        text = tokenizer.apply_chat_template(
            list(shown),
            tools=list(tools) if tools else None,
            add_generation_prompt=prompt,
            tokenize=False,
            **(variables or {}),
        )
        return str(text)

    where = f"chat template of {getattr(tokenizer, 'name_or_path', '') or 'the tokenizer'}"
    key = (str(getattr(tokenizer, "chat_template", "")), bool(tools), prompt, repr(sorted(variables or {})))
    if key not in _tried:
        _try_out(lambda: _fault(rendered, messages), where)
        _tried.add(key)
    text = _in_time(lambda: rendered(messages), where)
    if len(text) > MOST_CHARS:
        raise InputError(_FAULTS[_TOO_LONG], where=where, fix=_FIX)
    return text


def marked_spans(
    tokenizer: Any, messages: Messages, *, tools: Sequence[Any] | None, variables: Mapping[str, Any]
) -> list[tuple[int, int]]:
    """Return the spans between `{% generation %}` and `{% endgeneration %}`, as character positions in the text that
    `render` returns with `prompt=False`. Call `render` first, because it tests the template."""
    from transformers.utils.chat_template_utils import render_jinja_template

    def spans() -> list[tuple[int, int]]:
        _, found = render_jinja_template(
            conversations=[list(messages)],
            tools=list(tools) if tools else None,
            chat_template=str(tokenizer.get_chat_template(tools=list(tools) if tools else None)),
            return_assistant_tokens_mask=True,
            **{**tokenizer.special_tokens_map, **variables},
        )
        return list(found[0])

    return _in_time(spans, f"chat template of {tokenizer.name_or_path}")


def _in_time(work: Callable[[], Result], where: str) -> Result:
    try:
        with waiting("chat template", f"the {where}", limit_s=TIME_LIMIT_S), _deadlines.limited(TIME_LIMIT_S):
            return work()
    except _OutOfTime:
        raise InputError(_UNFINISHED.format(TIME_LIMIT_S), where=where, fix=_FIX) from None


_tried: set[tuple[Any, ...]] = set()


def _fault(rendered: Callable[[Messages], str], messages: Messages) -> bytes:
    """Return `_TOO_LONG` if the rendered text is too long, `_IGNORED` if the template ignores the last message of the
    user, else `_OK`."""
    text = rendered(messages)
    if len(text) > MOST_CHARS:
        return _TOO_LONG
    asked = [at for at, message in enumerate(messages) if isinstance(message, dict) and message.get("role") == "user"]
    if not asked or not isinstance(messages[asked[-1]].get("content"), str):
        return _OK
    other = [dict(message) for message in messages]
    other[asked[-1]] |= {"content": messages[asked[-1]]["content"] + _MARK}
    return _OK if rendered(other) != text else _IGNORED


def _try_out(work: Callable[[], bytes], where: str) -> None:
    """Run `work` in a forked child process with limits, and raise InputError if it exceeds one.

    An exception in the child is ignored, because the same call raises it again in this process.
    """
    if resource is None or not hasattr(os, "fork"):  # Windows: only the time limit applies
        return
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        # Safe with threads: the child renders the template and exits, and needs no lock of another thread.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            child = os.fork()
        except OSError:  # no memory or process left for a child: only the time limit applies
            os.close(ours)
            os.close(theirs)
            return
    if child == 0:
        _answer(work, theirs)
    os.close(theirs)
    try:
        with waiting("chat template", f"a test of the {where}", limit_s=TIME_LIMIT_S):
            ready, _, _ = select.select([ours], [], [], TIME_LIMIT_S)
        answer = os.read(ours, 1) if ready else b""
    finally:
        os.close(ours)
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    if not ready or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        limit_s = CPU_LIMIT_S if ready else TIME_LIMIT_S
        raise InputError(_UNFINISHED.format(limit_s), where=where, fix=_FIX)
    if not answer:
        raise InputError(f"the process that tested the template was killed (status {status})", where=where, fix=_FIX)
    if answer in _FAULTS:
        raise InputError(_FAULTS[answer], where=where, fix=_FIX)


def _answer(work: Callable[[], bytes], pipe: int) -> None:
    """Run `work` in the child process with limits, write its result to the pipe, and exit without exit handlers."""
    answer = _OK
    try:
        for signum in (*USER_STOPS, *NOTICES):
            signal.signal(signum, signal.SIG_DFL)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 5))
        _limit_memory()
        answer = work()
    except MemoryError:
        answer = _NO_MEMORY
    except BaseException:  # the parent process raises it again
        answer = _OK
    finally:
        os.write(pipe, answer)
        os._exit(0)


def _limit_memory() -> None:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            size = int(file.read().split()[0]) * resource.getpagesize() + MEMORY_LIMIT
    except OSError:
        return  # a system without /proc
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


class _OutOfTime(BaseException):
    """The exception that is raised in a thread whose rendering takes too long. `except Exception` does not catch it."""


class _Deadlines:
    """The deadlines of all renderings, and a thread that raises `_OutOfTime` in threads whose deadline has passed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deadlines: dict[int, float] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        own = threading.get_ident()
        with self._lock:
            self._deadlines[own] = time.monotonic() + seconds
            self._start()
        try:
            yield
        finally:
            with self._lock:
                self._deadlines.pop(own, None)

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._look, daemon=True, name="chat template time limit")
            try:
                self._thread.start()
            except RuntimeError:  # no thread can be started: rendering then has no time limit
                self._thread = None

    def _look(self) -> None:
        while True:
            time.sleep(min(1.0, TIME_LIMIT_S / 4))
            with self._lock:
                late = [thread for thread, deadline in self._deadlines.items() if deadline < time.monotonic()]
                for thread in late:
                    del self._deadlines[thread]
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_OutOfTime))


_deadlines = _Deadlines()
