"""The program's side of the wire. Runs in the process that also runs the program: nothing here is trusted.

A program that rewrites these functions changes the answers it gives, which it could do anyway by computing
something else. What it is measured against never enters this process.
"""

from __future__ import annotations

from egpo.rewards.sandbox.inside.execute import execute_as_module
from egpo.rewards.sandbox.inside.values import decode, encode
from egpo.rewards.sandbox.inside.wire import read_frame, write_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

CALLBACKS_FROM = 1 << 31
"""References from here on belong to the test code; below, to the program."""


class Server:
    """Answers the test code: names, attributes, calls, of a program that was loaded once."""

    def __init__(self, requests: int, answers: int) -> None:
        self.requests, self.answers = requests, answers
        self.objects: list[object] = []
        self.numbers: dict[int, int] = {}
        self.module: ModuleType | None = None

    def serve(self, source: str) -> None:
        """Load the program, say how that went, and answer until the test code is done."""
        self.answer(lambda: self.load(source))
        while True:
            request = read_frame(self.requests)
            self.answer(lambda request=request: self.obey(request))  # type: ignore[misc]

    def load(self, source: str) -> tuple[object, object]:
        self.module = execute_as_module(source, "solution")
        return None, None

    def answer(self, work: Callable[[], tuple[object, object]]) -> None:
        """Do the work and send what it gave, or what it raised."""
        try:
            value, changed = work()
            content = self.encode(("value", value, changed))
        except BaseException as error:  # boundary: whatever a program raises is an answer
            content = self.encode(("raise", type(error).__name__, str(error)[:1000]))
        write_frame(self.answers, content)

    def obey(self, request: bytes) -> tuple[object, object]:
        operation, *parts = decode(request, self.resolve)
        if operation == "call":
            return self.call(*parts)
        work: Callable[..., object] = getattr(self, "on_" + operation)
        return work(*parts), None

    def call(self, function: Callable[..., object], args: list[Any], kwargs: dict[str, Any]) -> tuple[object, object]:
        """The value, and the arguments afterwards where the call has changed them (a sort in place)."""
        before = self.encode((args, kwargs))
        value = function(*args, **kwargs)
        return value, ((args, kwargs) if self.encode((args, kwargs)) != before else None)

    def on_name(self, name: str) -> object:
        """A global of the program, or a method of its `Solution` class, as the practice sites have it."""
        if hasattr(self.module, name):
            return getattr(self.module, name)
        solution = getattr(self.module, "Solution", None)
        if isinstance(solution, type) and hasattr(solution, name):
            return getattr(solution(), name)
        raise NameError(f"name {name!r} is not defined by the program")

    on_getattr = staticmethod(getattr)
    on_setattr = staticmethod(setattr)
    on_len = staticmethod(len)
    on_iter = staticmethod(iter)
    on_next = staticmethod(next)
    on_str = staticmethod(str)
    on_repr = staticmethod(repr)
    on_bool = staticmethod(bool)

    def on_getitem(self, target: Any, key: Any) -> object:
        return target[key]

    def on_setitem(self, target: Any, key: Any, value: Any) -> None:
        target[key] = value

    def on_eq(self, left: object, right: object) -> bool:
        return bool(left == right)

    def encode(self, value: object) -> bytes:
        return encode(value, self.hand_over)

    def hand_over(self, value: object) -> int:
        if isinstance(value, Callback):
            return value.number
        if id(value) not in self.numbers:
            self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        return self.numbers[id(value)]

    def resolve(self, number: int) -> object:
        return self.objects[number] if number < CALLBACKS_FROM else Callback(self, number)


class Callback:
    """A function of the test code, as the program sees it: it can be called, and nothing else."""

    def __init__(self, server: Server, number: int) -> None:
        self.server, self.number = server, number

    def __call__(self, *args: object, **kwargs: object) -> object:
        write_frame(self.server.answers, self.server.encode(("callback", self.number, args, kwargs)))
        outcome, value = decode(read_frame(self.server.requests), self.server.resolve)
        if outcome == "raise":
            raise RuntimeError(value)
        return value
