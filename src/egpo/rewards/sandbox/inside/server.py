"""The program's side of the connection. Runs in the process that also runs the program: nothing here is trusted.

A program that rewrites these functions changes its answers, which it could do anyway by computing something else. The
expected values never enter this process.
"""

from __future__ import annotations

import builtins

from egpo.rewards.sandbox.inside.execute import execute_as_module, show_source
from egpo.rewards.sandbox.inside.values import CHANGING, UNCHANGING, decode, encode, reference
from egpo.rewards.sandbox.inside.wire import read_frame, write_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

CALLBACKS_FROM = 1 << 31
"""The first number of references to objects of the test code; smaller numbers refer to objects of the program."""
LONGEST_MESSAGE = 1000


class Server:
    """The server that answers requests of the test code for names, attributes and calls of a loaded program."""

    def __init__(self, requests: int, answers: int) -> None:
        self.requests, self.answers = requests, answers
        self.objects: list[object] = []
        self.numbers: dict[int, int] = {}
        self.module: ModuleType | None = None
        self.source = ""
        self.loop: Any = None

    def serve(self, source: str) -> None:
        """Load the program, report the result, and answer requests until the test code is done."""
        self.source = source
        self.answer(self.load)
        while True:
            request = decode(read_frame(self.requests), self.resolve)
            self.answer(lambda request=request: self.obey(*request))  # type: ignore[misc]

    def load(self) -> tuple[object, object]:
        self.module = execute_as_module(self.source, "solution")
        return None, None

    def answer(self, work: Callable[[], tuple[object, object]]) -> None:
        """Call `work` and send its value, or its exception."""
        try:
            value, changed = work()
            content = self.encode(("value", value, changed))
        except BaseException as error:  # boundary: whatever a program raises is an answer
            content = self.encode(("raise", *self.on_describe(error)[1:]))
        write_frame(self.answers, content)

    def obey(self, operation: str, *parts: Any) -> tuple[object, object]:
        if operation == "call":
            return self.call(*parts)
        work: Callable[..., object] = getattr(self, "on_" + operation)
        return work(*parts), None

    def call(self, function: Callable[..., object], args: list[Any], kwargs: dict[str, Any]) -> tuple[object, object]:
        """Call a function; return its value and, if the call has changed them (a sort in place), the arguments."""
        before = self.encode((args, kwargs))
        value = function(*args, **kwargs)
        return value, ((args, kwargs) if self.encode((args, kwargs)) != before else None)

    def on_call_for_data(self, function: Callable[..., object], args: list[Any], kwargs: dict[str, Any]) -> object:
        """Call a function; return its value with every object of a derived class as its builtin base."""
        return decode(encode(function(*args, **kwargs), self.hand_over), self.resolve)

    def on_name(self, name: str) -> object:
        """Return a global of the program, or a method of its class `Solution`, which some coding sites ask for."""
        if hasattr(self.module, name):
            return getattr(self.module, name)
        solution = getattr(self.module, "Solution", None)
        if isinstance(solution, type) and hasattr(solution, name):
            return getattr(solution(), name)
        raise NameError(f"name {name!r} is not defined by the program")

    def on_describe(self, target: Any) -> tuple[object, ...]:
        """Return the description from which the test code makes a stand-in for `target`."""
        if isinstance(target, type):
            bases = tuple(_builtin_name(base) or base for base in target.__bases__)
            return "class", target.__name__, _builtin_name(target), bases
        kind = type(target)
        if isinstance(target, BaseException):
            try:
                args = decode(encode(target.args, self.hand_over), self.resolve)
            except Exception:  # boundary: arguments that cannot be sent
                args = ()
            name = f"{kind.__module__}.{kind.__qualname__}"
            # The class is sent as a number, so that no stand-in for it is made unless the test reaches it by a name.
            return "exception", self.hand_over(kind), name, self.hand_over(target), _message(target), args
        return "object", kind, "coroutine" if hasattr(kind, "__await__") and hasattr(kind, "send") else ""

    on_getattr = staticmethod(getattr)
    on_setattr = staticmethod(setattr)
    on_delattr = staticmethod(delattr)
    on_len = staticmethod(len)
    on_iter = staticmethod(iter)
    on_str = staticmethod(str)
    on_repr = staticmethod(repr)
    on_bool = staticmethod(bool)
    on_int = staticmethod(int)
    on_float = staticmethod(float)
    on_hash = staticmethod(hash)
    on_format = staticmethod(format)
    on_isinstance = staticmethod(isinstance)
    on_issubclass = staticmethod(issubclass)

    def on_next(self, iterator: Any) -> tuple[bool, object]:
        try:
            return True, next(iterator)
        except StopIteration:
            return False, None

    def on_getitem(self, target: Any, key: Any) -> object:
        return target[key]

    def on_setitem(self, target: Any, key: Any, value: Any) -> None:
        target[key] = value

    def on_delitem(self, target: Any, key: Any) -> None:
        del target[key]

    def on_eq(self, left: object, right: object) -> bool:
        return bool(left == right)

    def on_operator(self, name: str, *operands: Any) -> object:
        import _operator

        return getattr(_operator, name)(*operands)

    def on_content(self, target: Any) -> object:
        """Return the content of an object derived from a list, dict, set or bytearray; None for any other object."""
        return decode(encode(target, self.hand_over), self.resolve) if isinstance(target, CHANGING) else None

    def on_source(self, target: Any) -> str:
        import inspect

        show_source(self.source)
        return inspect.getsource(target)

    def on_enter(self, target: Any) -> object:
        return type(target).__enter__(target)

    def on_exit(self, target: Any, error: BaseException | None) -> None:
        type(target).__exit__(target, None if error is None else type(error), error, None)

    def on_aenter(self, target: Any) -> object:
        return self.on_await(type(target).__aenter__(target))

    def on_aexit(self, target: Any, error: BaseException | None) -> None:
        self.on_await(type(target).__aexit__(target, None if error is None else type(error), error, None))

    def on_aiter(self, target: Any) -> object:
        return type(target).__aiter__(target)

    def on_anext(self, iterator: Any) -> tuple[bool, object]:
        try:
            return True, self.on_await(type(iterator).__anext__(iterator))
        except StopAsyncIteration:
            return False, None

    def on_await(self, awaitable: Any) -> object:
        """Run a coroutine to its end and return its result. One event loop is used for the life of the program."""
        import asyncio

        async def result() -> object:
            return await awaitable

        if self.loop is None:
            self.loop = asyncio.new_event_loop()
        return self.loop.run_until_complete(result())

    def encode(self, value: object) -> bytes:
        return encode(value, self.hand_over, 0, self.of_subclass)

    def of_subclass(self, value: object) -> bytes:
        """Return the prefix with its number for an object derived from an immutable builtin type, a reference for one
        derived from a mutable builtin type, and b"" for any other object (see `values.encode`)."""
        if isinstance(value, UNCHANGING):
            return b"m" + self.hand_over(value).to_bytes(4, "big")
        return reference(self.hand_over(value)) if isinstance(value, CHANGING) else b""

    def hand_over(self, value: object) -> int:
        if isinstance(value, Callback):
            return value.number
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.numbers[id(value)]

    def resolve(self, number: int) -> object:
        return self.objects[number] if number < CALLBACKS_FROM else Callback(self, number)


def _message(error: BaseException) -> str:
    try:
        return str(error)[:LONGEST_MESSAGE]
    except Exception:  # boundary: the program's own `__str__`
        return ""


def _builtin_name(kind: type) -> str:
    """Return the name of a class that is Python's own; "" for any other."""
    return kind.__name__ if getattr(builtins, kind.__name__, None) is kind else ""


class Callback:
    """The program's stand-in for a function of the test code: it can be called, and nothing else."""

    def __init__(self, server: Server, number: int) -> None:
        self.server, self.number = server, number

    def __call__(self, *args: object, **kwargs: object) -> object:
        write_frame(self.server.answers, self.server.encode(("callback", self.number, args, kwargs)))
        while True:
            operation, *parts = decode(read_frame(self.server.requests), self.server.resolve)
            if operation == "return":
                return parts[0]
            if operation == "raise":
                raise _rebuilt(*parts)
            # Meanwhile the test's function may ask about its arguments.
            self.server.answer(lambda operation=operation, parts=parts: self.server.obey(operation, *parts))  # type: ignore[misc]


def _rebuilt(error: object, name: str, message: str) -> BaseException:
    """Return the exception that the test's function raised: one of the program, a builtin one, or a RuntimeError."""
    if isinstance(error, BaseException):
        return error
    kind = getattr(builtins, name, None)
    return kind(message) if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError(message)
