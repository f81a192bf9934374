"""The test code's side of the wire: the program's functions and objects, without the program.

Test code runs in the supervisor, which never runs the program. A name that the program defines is a `Remote` there:
calling it sends the arguments out and brings the value back as plain data. So the expected values and the comparison
stay where the program cannot reach them.
"""

from __future__ import annotations

import builtins

from egpo.rewards.sandbox.inside.server import CALLBACKS_FROM
from egpo.rewards.sandbox.inside.values import decode, encode, is_plain
from egpo.rewards.sandbox.inside.wire import Closed, OversizedError, read_frame, write_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Raised in the middle of `map` or a comprehension of the test, these would end its loop early and pass it.
_NEVER_RAISED_AGAIN = (StopIteration, StopAsyncIteration)

LARGEST_VALUE = 16 << 20
"""Bytes of one value from the program."""


class ProgramError(Exception):
    """The program raised something that is no builtin exception."""


class Unsupported(BaseException):
    """The test hands the program something that cannot travel: the test's fault, not the program's."""


class Connection:
    """Asks the program, one question at a time, and serves its calls back into the test code meanwhile."""

    def __init__(self, requests: int, answers: int) -> None:
        self.requests, self.answers = requests, answers
        self.functions: list[Any] = []
        self.raised: Exception | None = None

    def ask(self, operation: str, *parts: object) -> Any:
        return self.ask_call(operation, *parts)[0]

    def ask_call(self, operation: str, *parts: object) -> tuple[Any, Any]:
        """The value, and the arguments as the call left them (None where it changed nothing)."""
        write_frame(self.requests, encode((operation, *parts), self.hand_over))
        return self.answer()

    def answer(self) -> tuple[Any, Any]:
        while True:
            kind, first, second, *more = self.receive()
            if kind == "value":
                return first, second
            if kind == "raise":
                raise self.rebuilt(str(first), str(second))
            self.call_back(first, second, *more)

    def receive(self) -> Any:
        """The next message, as a tuple of at least three. What cannot be read is the program's failure."""
        try:
            message = decode(read_frame(self.answers, LARGEST_VALUE), lambda number: Remote(self, number))
        except (ValueError, RecursionError, OversizedError) as error:
            raise self.rebuilt("ValueError", f"the value cannot be read: {error}") from None
        if not isinstance(message, tuple) or len(message) < 3:
            raise Closed
        return message

    def call_back(self, number: Any, args: Any, kwargs: Any = None) -> None:
        function = self.functions[number - CALLBACKS_FROM]
        try:
            reply = ("value", function(*args, **(kwargs or {})))
        except Exception as error:  # boundary: the test's own function failed on what the program gave it
            reply = ("raise", str(error))
        write_frame(self.requests, encode(reply, self.hand_over))

    def rebuilt(self, name: str, message: str) -> Exception:
        """The exception that the program raised, as the builtin of that name where there is one."""
        self.raised = self.builtin_or_own(name, message)
        return self.raised

    def builtin_or_own(self, name: str, message: str) -> Exception:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, _NEVER_RAISED_AGAIN):
            try:
                return kind(message)
            except TypeError:
                pass
        return ProgramError(f"{name}: {message}")

    def hand_over(self, value: object) -> int:
        if isinstance(value, Remote):
            return object.__getattribute__(value, "_number")  # type: ignore[no-any-return]
        if not callable(value):
            raise Unsupported(f"a {type(value).__name__} cannot be handed to the program")
        self.functions.append(value)
        return CALLBACKS_FROM + len(self.functions) - 1


class Remote:
    """An object that lives in the program.

    It never equals plain data, whatever its own `__eq__` would say; two of them are compared by the program. There is
    no `__contains__`: `x in remote` iterates and compares on this side.
    """

    __slots__ = ("_connection", "_number")

    def __init__(self, connection: Connection, number: int) -> None:
        object.__setattr__(self, "_connection", connection)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The value of the call. One that returns None works in place: its arguments are changed here too.

        No other does: `assert f(data) == sorted(data)` has to sort what the test had, and not what f made of it.
        """
        value, changed = self._connection.ask_call("call", self, args, kwargs)
        if value is None and isinstance(changed, tuple) and len(changed) == 2:
            _update(list(args), changed[0])
            _update(list(kwargs.values()), list(changed[1].values()) if isinstance(changed[1], dict) else [])
        return value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__name__":
            raise AttributeError(name)
        return self._connection.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._connection.ask("setattr", self, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._connection.ask("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._connection.ask("setitem", self, key, value)

    def __len__(self) -> int:
        return int(self._connection.ask("len", self))

    def __iter__(self) -> Any:
        return iter_remote(self)

    def __next__(self) -> Any:
        try:
            return self._connection.ask("next", self)
        except ProgramError as error:
            if str(error).startswith("StopIteration"):
                raise StopIteration from None
            raise

    def __str__(self) -> str:
        return str(self._connection.ask("str", self))

    def __repr__(self) -> str:
        return str(self._connection.ask("repr", self))

    def __bool__(self) -> bool:
        return self._connection.ask("bool", self) is True

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Remote):
            return self._connection.ask("eq", self, other) is True
        if not is_plain(other):
            # Neither side can decide: an object of the test's own against one of the program's.
            raise Unsupported(f"a {type(other).__name__} cannot be compared with what the program gave")
        return False

    def __hash__(self) -> int:
        return hash(object.__getattribute__(self, "_number"))


def iter_remote(remote: Remote) -> Any:
    """An iterator over what the program's object yields, one element a question."""
    iterator = remote._connection.ask("iter", remote)
    if not isinstance(iterator, Remote):
        raise TypeError("not an iterator")
    while True:
        try:
            element = iterator.__next__()
        except StopIteration:
            return
        yield element


def _update(arguments: list[Any], changed: Any) -> None:
    """Let lists, dicts and sets that were handed over look as the program left them."""
    if not isinstance(changed, (list, tuple)) or len(changed) != len(arguments):
        return
    for argument, now in zip(arguments, changed, strict=True):
        if isinstance(argument, list) and isinstance(now, list):
            argument[:] = now
        elif isinstance(argument, (dict, set)) and type(now) is type(argument):
            argument.clear()
            argument.update(now)
