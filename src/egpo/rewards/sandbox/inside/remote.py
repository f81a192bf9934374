"""The test code's side of the connection: stand-ins for the program's functions, classes and objects.

Test code runs in the supervisor, which never runs the program. What the program defines has a stand-in there. A call of
a stand-in sends the arguments and receives the value as plain data. So the expected values and the comparison stay
where the program cannot reach them. The stand-ins:

- a class: a class of its own (`RemoteType`), so that `isinstance`, `except` and `type(x) is C` work;
- an exception: an instance of such a class, which is a real exception here. Only exceptions of the program have such a
  class: if the program defines `Error = AssertionError`, `except Error` in a test does not catch its failed asserts;
- an object derived from an unchanging builtin value (named tuples, members of an IntEnum): that value, compared here,
  with the program's attributes;
- any other object: a `Remote`, which never equals plain data.
"""

from __future__ import annotations

import builtins
import sys

from egpo.rewards.sandbox.inside.server import CALLBACKS_FROM
from egpo.rewards.sandbox.inside.values import UNCHANGING, decode, encode, is_plain, reference
from egpo.rewards.sandbox.inside.wire import Closed, OversizedError, read_frame, write_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Raised in the middle of `map` or a comprehension of the test, these would end its loop early, and the test would pass.
_NEVER_RAISED_AGAIN = (StopIteration, StopAsyncIteration)
# Exceptions of the standard library that tests catch by its name. None of them means anything to a test runner.
_KNOWN_EXCEPTIONS = {
    "binascii.Error", "dataclasses.FrozenInstanceError", "decimal.DivisionByZero",
    "decimal.InvalidOperation", "decimal.Overflow", "json.decoder.JSONDecodeError", "queue.Empty",
    "queue.Full", "re.error", "statistics.StatisticsError", "struct.error",
}  # fmt: skip

LARGEST_VALUE = 16 << 20
"""Limit on the bytes of one value from the program."""


class ProgramError(Exception):
    """An exception of the program whose own class cannot be raised in the test code."""


class Unsupported(BaseException):
    """An error for a test that needs what cannot be done between two processes: a fault of the test."""


class Connection:
    """The connection to the program. It sends one request at a time, and meanwhile runs functions of the test code that
    the program calls."""

    def __init__(self, requests: int, answers: int) -> None:
        self.requests, self.answers = requests, answers
        self.functions: list[Any] = []
        self.raised: Exception | None = None
        self.stand_ins: dict[int, Any] = {}

    def ask(self, operation: str, *parts: object) -> Any:
        return self.ask_call(operation, *parts)[0]

    def ask_call(self, operation: str, *parts: object) -> tuple[Any, Any]:
        """Send a request; return its value, and the arguments of a call if the program has changed them, else None."""
        self.send((operation, *parts))
        return self.answer()

    def send(self, message: tuple[object, ...]) -> None:
        write_frame(self.requests, encode(message, self.hand_over, 0, _of_stand_in))

    def answer(self) -> tuple[Any, Any]:
        while True:
            kind, *parts = self.receive()
            if kind == "value" and len(parts) == 2:
                return parts[0], parts[1]
            if kind == "raise" and len(parts) == 5:
                self.raised = self.exception(*parts)
                raise self.raised
            if kind != "callback" or len(parts) != 3:
                raise Closed
            self.call_back(*parts)

    def receive(self) -> Any:
        """Return the next message, a tuple of at least three. An unreadable message is the program's failure."""
        try:
            message = decode(read_frame(self.answers, LARGEST_VALUE), self.stand_in, self.mirror)
        except (ValueError, RecursionError, OversizedError, MemoryError) as error:
            if error is self.raised:
                raise
            kind = MemoryError if isinstance(error, MemoryError) else ValueError
            self.raised = kind(f"the value cannot be read: {error}")
            raise self.raised from None
        if not isinstance(message, tuple) or len(message) < 3:
            raise Closed
        return message

    def call_back(self, number: Any, args: Any, kwargs: Any) -> None:
        function = self.functions[number - CALLBACKS_FROM]
        try:
            reply: tuple[object, ...] = ("return", function(*args, **kwargs))
        except Exception as error:  # boundary: the test's own function failed on what the program gave it
            own = error if _number(error) is not None else None
            reply = ("raise", own, type(error).__name__, str(error))
        self.send(reply)

    def hand_over(self, value: object) -> int:
        if not callable(value):
            raise Unsupported(f"a {type(value).__name__} cannot be handed to the program")
        self.functions.append(value)
        return CALLBACKS_FROM + len(self.functions) - 1

    def stand_in(self, number: int) -> Any:
        """Return the stand-in for object `number` of the program: always the same one, so that `is` works."""
        if number >= CALLBACKS_FROM:
            if number - CALLBACKS_FROM >= len(self.functions):
                raise ValueError("no such function")
            return self.functions[number - CALLBACKS_FROM]
        if number not in self.stand_ins:
            # None while the stand-in is being made, so that a description that refers to itself comes to an end.
            self.stand_ins[number] = None
            try:
                self.stand_ins[number] = self.made(number)
            finally:
                if self.stand_ins[number] is None:
                    del self.stand_ins[number]
        return self.stand_ins[number]

    def made(self, number: int) -> Any:
        self.send(("describe", _Numbered(number)))
        description = self.answer()[0]
        kind, *parts = description if isinstance(description, tuple) and description else ("",)
        if kind == "class" and len(parts) == 3:
            return self.class_(number, *parts)
        if kind == "exception" and len(parts) == 5:
            return self.exception(*parts)
        cls = parts[0] if kind == "object" and len(parts) == 2 else None
        if not isinstance(cls, RemoteType) or not issubclass(cls, Remote):
            cls = Remote
        elif parts[1] == "coroutine":
            cls = RemoteCoroutine
        return _with_number(object.__new__(cls), self, number)

    def class_(self, number: int, name: Any, own_name: Any, bases: Any) -> Any:
        """Return a stand-in for a class of the program, derived from the stand-ins of its bases."""
        known = [_python_class(own_name)] if own_name else [_python_class(base) for base in bases]
        kinds = tuple(kind for kind in known if kind is not None)
        if any(issubclass(kind, BaseException) for kind in kinds):
            kinds = tuple(kind for kind in kinds if issubclass(kind, BaseException))
            namespace = dict(_EXCEPTION_METHODS)
        elif any(issubclass(kind, UNCHANGING) for kind in kinds):
            kinds = tuple(kind for kind in kinds if issubclass(kind, UNCHANGING))
            namespace = dict(_MIRROR_METHODS)
        else:
            kinds = tuple(kind for kind in kinds if issubclass(kind, Remote)) or (Remote,)
            namespace = {"__slots__": (), "__doc__": Remote.__dict__["__doc__"]}
        namespace |= {"_egpo_class": (self, number), "__module__": "solution"}
        for some in (kinds, kinds[:1]):
            try:
                return RemoteType(name, some, namespace)
            except (TypeError, ValueError):  # bases that do not go together
                continue
        raise ValueError("the bases of a class cannot be combined")

    def mirror(self, number: int, plain: Any) -> Any:
        """Return a stand-in for object `number` of the program: the value `plain` with the object's attributes."""
        if number not in self.stand_ins:
            cls = self.ask("getattr", _Numbered(number), "__class__")
            base: Any = next((kind for kind in UNCHANGING if isinstance(plain, kind)), None)
            if base is None or not isinstance(cls, RemoteType) or not issubclass(cls, base):
                return plain
            self.stand_ins[number] = _with_number(base.__new__(cls, plain), self, number)
        known = self.stand_ins[number]
        # If the value has changed, the one just received is returned.
        return known if known == plain and not isinstance(known, Remote) else plain

    def exception(self, class_number: Any, name: Any, number: Any, message: Any, args: Any) -> Exception:
        """Return an exception that can be raised here, for one that the program raised or made."""
        if isinstance(number, int) and isinstance(known := self.stand_ins.get(number), Exception):
            return known
        cls = self.exception_class(class_number, str(name))
        args = args if isinstance(args, tuple) else ()
        is_own = isinstance(cls, RemoteType)
        if cls is None:
            return ProgramError(f"{str(name).removeprefix('builtins.')}: {message}")
        try:
            error: Exception = cls.__new__(cls, *args) if is_own else cls(*args)
        except Exception:  # boundary: arguments that this class does not take
            error = cls.__new__(cls)
        error.args = args
        if is_own:
            error.__dict__["_egpo_message"] = str(message)
        if isinstance(number, int) and 0 <= number < CALLBACKS_FROM:
            _with_number(error, self, number)
            self.stand_ins[number] = error
        return error

    def exception_class(self, number: Any, name: str) -> Any:
        """Return the class of an exception of the program; None if it cannot be raised here.

        For a builtin exception, this is Python's own class. But if a test has used the class by a name of the program,
        such as `Error` after `Error = ValueError`, it is the stand-in for that name.
        """
        module, _, short = name.rpartition(".")
        known = self.stand_ins.get(number)
        if known is None and (module == "builtins" or name in _KNOWN_EXCEPTIONS):
            known = getattr(sys.modules.get(module), short, None)
            if isinstance(known, type) and issubclass(known, Exception):
                return None if issubclass(known, _NEVER_RAISED_AGAIN) else known
        if module == "builtins" and not isinstance(known, RemoteType):
            return None
        found = self.stand_in(number) if isinstance(number, int) else None
        return found if isinstance(found, RemoteType) and issubclass(found, Exception) else None


class _Numbered:
    """An object of the program of which only the number is known."""

    def __init__(self, number: int) -> None:
        self._egpo = (None, number)


def _python_class(base: Any) -> type | None:
    """Return the base class of a stand-in for a class of the program; None if it needs no such base.

    `base` is a stand-in, which is returned unchanged, or the name of a builtin class, of which only exceptions and
    immutable types are needed. `Exception` replaces exceptions that `except Exception` does not catch, and
    StopIteration and StopAsyncIteration, which would end loops of the test.
    """
    if isinstance(base, RemoteType):
        return base
    kind = getattr(builtins, base, None) if isinstance(base, str) else None
    if not isinstance(kind, type):
        return None
    if issubclass(kind, BaseException):
        return kind if issubclass(kind, Exception) and not issubclass(kind, _NEVER_RAISED_AGAIN) else Exception
    return kind if kind in UNCHANGING else None


def _with_number(stand_in: Any, connection: Connection, number: int) -> Any:
    object.__setattr__(stand_in, "_egpo", (connection, number))
    return stand_in


def _number(value: object) -> int | None:
    """Return the number of the program's object that `value` stands for, if any."""
    try:
        if isinstance(value, RemoteType):
            return value.__dict__["_egpo_class"][1]  # type: ignore[no-any-return]
        return object.__getattribute__(value, "_egpo")[1]  # type: ignore[no-any-return]
    except (AttributeError, KeyError, TypeError):
        return None


def _of_stand_in(value: object) -> bytes:
    number = _number(value)
    return b"" if number is None else reference(number)


def _refuse_hidden(name: str) -> None:
    if name.startswith("_egpo") or (name.startswith("__") and name not in ("__name__", "__qualname__")):
        raise AttributeError(name)


class RemoteType(type):
    """A stand-in for a class of the program."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "_egpo_class" in cls.__dict__:
            return _call(cls, cls.__dict__["_egpo_class"][0], args, kwargs)
        if issubclass(cls, BaseException):
            return super().__call__(*args, **kwargs)
        raise Unsupported(f"{cls.__name__}, a class of the test, is derived from a class of the program")

    def __getattr__(cls, name: str) -> Any:
        _refuse_hidden(name)
        return cls._egpo_class[0].ask("getattr", cls, name)

    def __setattr__(cls, name: str, value: Any) -> None:
        if name.startswith("__"):  # what abc and typing store on a class of the test
            super().__setattr__(name, value)
        else:
            cls._egpo_class[0].ask("setattr", cls, name, value)

    def __getitem__(cls, key: Any) -> Any:
        return cls._egpo_class[0].ask("getitem", cls, key)

    def __len__(cls) -> int:
        return int(cls._egpo_class[0].ask("len", cls))

    def __bool__(cls) -> bool:
        return True

    def __iter__(cls) -> Any:
        return iter_remote(cls._egpo_class[0], cls)

    def __instancecheck__(cls, value: Any) -> bool:
        if super().__instancecheck__(value):
            return True
        # The program is asked, because a class may accept other objects (`register`, protocols); but not about plain
        # data and exceptions.
        asked = isinstance(type(value), RemoteType) and issubclass(type(value), Remote)
        return asked and "_egpo_class" in cls.__dict__ and cls._egpo_class[0].ask("isinstance", value, cls) is True

    def __subclasscheck__(cls, other: Any) -> bool:
        if super().__subclasscheck__(other):
            return True
        asked = isinstance(other, RemoteType) and "_egpo_class" in other.__dict__ and "_egpo_class" in cls.__dict__
        asked = asked and not issubclass(other.__mro__[-2], BaseException)
        return asked and cls._egpo_class[0].ask("issubclass", other, cls) is True


def _call(target: Any, connection: Connection, args: Any, kwargs: Any) -> Any:
    """Call an object of the program and return the value. If it is None, the call may have worked in place: lists,
    dicts and sets that the program changed are changed here too.

    After a call that returns another value, the arguments stay unchanged: in `assert f(data) == sorted(data)`, the
    test must sort its original data, even if f has changed its copy.
    """
    value, changed = connection.ask_call("call", target, args, kwargs)
    if value is None and isinstance(changed, tuple) and len(changed) == 2:
        _update(list(args), changed[0])
        _update(list(kwargs.values()), list(changed[1].values()) if isinstance(changed[1], dict) else [])
    return value


def _asks(operation: str) -> Any:
    def method(self: Any, *parts: Any) -> Any:
        return self._egpo[0].ask(operation, self, *parts)

    return method


def _attribute(self: Any, name: str) -> Any:
    """Return the program's attribute, for a name that is not defined on this side."""
    _refuse_hidden(name)
    return self._egpo[0].ask("getattr", self, name)


def _text(operation: str) -> Any:
    def method(self: Any, *parts: str) -> str:
        return str(self._egpo[0].ask(operation, self, *parts))

    return method


def _exception_text(self: Any) -> str:
    stored = self.__dict__.get("_egpo_message")
    return stored if isinstance(stored, str) else Exception.__str__(self)


_EXCEPTION_METHODS: dict[str, Any] = {"__getattr__": _attribute, "__str__": _exception_text}
# Comparison, arithmetic, length and elements are those of the plain value.
_MIRROR_METHODS: dict[str, Any] = {
    "__getattr__": _attribute, "__str__": _text("str"), "__repr__": _text("repr"), "__format__": _text("format"),
}  # fmt: skip


def _operator(name: str, ordering: bool = False) -> Any:
    def method(self: Any, *other: Any) -> Any:
        # A plain value is not sent: it may be the expected value, and the program could answer as it likes.
        if not all(isinstance(one, Remote) for one in other):
            return NotImplemented
        value = self._egpo[0].ask("operator", name, self, *other)
        return value is True if ordering else value

    return method


class Remote:
    """A stand-in for an object of the program.

    It never equals plain data, whatever its own `__eq__` returns, unless it is derived from a list, dict or set:
    then its content is compared here. Two of them are compared by the program. There is no `__contains__`: `x in
    remote` iterates and compares on this side.
    """

    __slots__ = ("__weakref__", "_egpo")

    _egpo: tuple[Connection, int]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _call(self, self._egpo[0], args, kwargs)

    __getattr__ = _attribute
    __setattr__ = _asks("setattr")
    __delattr__ = _asks("delattr")
    __getitem__ = _asks("getitem")
    __setitem__ = _asks("setitem")
    __delitem__ = _asks("delitem")
    __str__ = _text("str")
    __repr__ = _text("repr")
    __format__ = _text("format")
    __doc__ = property(lambda self: self._egpo[0].ask("getattr", self, "__doc__"))

    def __len__(self) -> int:
        return int(self._egpo[0].ask("len", self))

    def __int__(self) -> int:
        return int(self._egpo[0].ask("int", self))

    def __float__(self) -> float:
        return float(self._egpo[0].ask("float", self))

    def __hash__(self) -> int:
        return hash(self._egpo[0].ask("hash", self))

    def __bool__(self) -> bool:
        return self._egpo[0].ask("bool", self) is True

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Remote):
            return self._egpo[0].ask("eq", self, other) is True
        if not is_plain(other):
            # Neither side can decide: an object of the test's own against one of the program's.
            raise Unsupported(f"a {type(other).__name__} cannot be compared with what the program gave")
        try:
            content = self._egpo[0].ask("content", self)
        except Exception:  # boundary: an exception that the test catches would be as good as an answer
            return False
        return is_plain(content) and content is not None and bool(content == other)

    def __iter__(self) -> Any:
        return iter_remote(self._egpo[0], self)

    def __next__(self) -> Any:
        return _next(self._egpo[0], "next", self, StopIteration)

    def __enter__(self) -> Any:
        return self._egpo[0].ask("enter", self)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        """Leave the program's context, and never suppress an exception: it may be the one with which the test fails."""
        self._egpo[0].ask("exit", self, error if _number(error) is not None else None)

    def __await__(self) -> Any:
        return self._egpo[0].ask("await", self)
        yield  # awaiting takes an iterator, and this one is at its end at once

    async def __aenter__(self) -> Any:
        return self._egpo[0].ask("aenter", self)

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._egpo[0].ask("aexit", self, error if _number(error) is not None else None)

    def __aiter__(self) -> Any:
        return self._egpo[0].ask("aiter", self)

    async def __anext__(self) -> Any:
        return _next(self._egpo[0], "anext", self, StopAsyncIteration)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift"):
    setattr(Remote, f"__{_name}__", _operator(_name))
for _name in ("and", "or"):
    setattr(Remote, f"__{_name}__", _operator(_name + "_"))
for _name in ("xor", "neg", "pos", "invert", "abs"):
    setattr(Remote, f"__{_name}__", _operator(_name))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Remote, f"__{_name}__", _operator(_name, ordering=True))


class RemoteCoroutine(Remote):
    """A stand-in for a coroutine of the program, for `asyncio`: it runs to its end at the first step."""

    __slots__ = ()

    def send(self, value: Any) -> Any:
        raise StopIteration(self._egpo[0].ask("await", self))

    def __next__(self) -> Any:
        return self.send(None)

    def throw(self, kind: Any, error: Any = None, trace: Any = None) -> Any:
        raise error or kind

    def close(self) -> None:
        pass


def _next(connection: Connection, operation: str, iterator: Any, end: type[Exception]) -> Any:
    got = connection.ask(operation, iterator)
    if not isinstance(got, tuple) or len(got) != 2:
        raise Closed
    if got[0] is not True:
        raise end
    return got[1]


def iter_remote(connection: Connection, target: Any) -> Any:
    """Yield the elements of the program's object, one request per element."""
    iterator = connection.ask("iter", target)
    if not isinstance(iterator, Remote):
        raise TypeError("not an iterator")
    while True:
        try:
            element = _next(connection, "next", iterator, StopIteration)
        except StopIteration:
            return
        yield element


def _update(arguments: list[Any], changed: Any) -> None:
    """Give lists, dicts and sets that were arguments the content that the program has given them."""
    if not isinstance(changed, (list, tuple)) or len(changed) != len(arguments):
        return
    for argument, now in zip(arguments, changed, strict=True):
        if isinstance(argument, list) and isinstance(now, list):
            argument[:] = now
        elif isinstance(argument, (dict, set)) and type(now) is type(argument):
            argument.clear()
            argument.update(now)
