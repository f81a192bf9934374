"""Chat templates, rendered within limits: the one module that calls `apply_chat_template`.

A template is a program out of a model folder. Jinja's sandbox keeps it from files and from Python, but not from running
for ever or from taking all memory. The first rendering by a template is therefore tried in a child process with limits,
and every rendering has a time limit and a largest size.
"""

import ctypes
import os
import resource
import select
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from egpo.errors import InputError

TIME_LIMIT_S = 60.0
"""For one rendering; templates take less than a millisecond."""
CPU_LIMIT_S = 10
"""For the first rendering, in its child process."""
MEMORY_LIMIT = 1 << 30
"""Bytes that the child process may take beyond what it starts with."""
MOST_CHARS = 64 << 20
"""Of one rendered conversation."""

Messages = Sequence[Mapping[str, Any]]
Result = TypeVar("Result")

_MARK = " [egpo asks whether this is read]"
_OK, _IGNORED, _TOO_LONG, _NO_MEMORY = b"o", b"i", b"l", b"m"
_FAULTS = {
    _IGNORED: "it ignores the messages: two different questions give the same prompt",
    _TOO_LONG: f"it writes more than {MOST_CHARS:,} characters for one conversation",
    _NO_MEMORY: f"it takes more than {MEMORY_LIMIT >> 20:,} MiB of memory",
}
_UNFINISHED = "it has not finished within {:g} s"
_FIX = "use the template of the model's publisher: `chat_template.jinja`, or `chat_template` in tokenizer_config.json"


def render(
    tokenizer: Any,
    messages: Messages,
    *,
    tools: Sequence[Any] | None = None,
    prompt: bool = True,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """The conversation as the tokenizer's chat template writes it; with `prompt`, up to where the assistant begins.

    `variables` are the template's own. What a template raises comes through (`jinja2.TemplateError` and others). One
    that does not end, writes too much, takes too much memory or ignores the messages is an InputError.
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
    """Where the parts between `{% generation %}` and `{% endgeneration %}` lie, in characters of what `render` gives
    without a prompt. To be asked after `render`, which tries the template."""
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
        with _watch.limited(TIME_LIMIT_S):
            return work()
    except _OutOfTime:
        raise InputError(_UNFINISHED.format(TIME_LIMIT_S), where=where, fix=_FIX) from None


_tried: set[tuple[Any, ...]] = set()


def _fault(rendered: Callable[[Messages], str], messages: Messages) -> bytes:
    """Which limit the template breaks on these messages."""
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
    """`work` in a forked child, which can be ended in the middle of anything. An InputError where it breaks a limit;
    where it raises, nothing: it will raise here as well."""
    ours, theirs = os.pipe()
    with warnings.catch_warnings():
        # The child runs the template and ends: it waits for no lock of another thread.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            child = os.fork()
        except OSError:  # no memory or no process left for a copy: the time limit must do
            os.close(ours)
            os.close(theirs)
            return
    if child == 0:
        _answer(work, theirs)
    os.close(theirs)
    try:
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
        raise InputError(f"the process that tried it was ended (status {status})", where=where, fix=_FIX)
    if answer in _FAULTS:
        raise InputError(_FAULTS[answer], where=where, fix=_FIX)


def _answer(work: Callable[[], bytes], pipe: int) -> None:
    """The child: says what came of it and ends, without anything that a Python process does at its end."""
    answer = _OK
    try:
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU):
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
    except BaseException:  # it is raised again where somebody can say it
        answer = _OK
    finally:
        os.write(pipe, answer)
        os._exit(0)


def _limit_memory() -> None:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            size = int(file.read().split()[0]) * resource.getpagesize() + MEMORY_LIMIT
    except OSError:
        return  # a system without it
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (size if hard == resource.RLIM_INFINITY else min(size, hard), hard))


class _OutOfTime(BaseException):
    """Raised in the middle of a rendering. No `except Exception` on the way may swallow it."""


class _Watch:
    """A thread that raises `_OutOfTime` in those whose time is up. Started with the first rendering."""

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
            except RuntimeError:  # a machine without a thread to give: rendering goes without its limit
                self._thread = None

    def _look(self) -> None:
        while True:
            time.sleep(min(1.0, TIME_LIMIT_S / 4))
            with self._lock:
                late = [thread for thread, deadline in self._deadlines.items() if deadline < time.monotonic()]
                for thread in late:
                    del self._deadlines[thread]
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(_OutOfTime))


_watch = _Watch()
