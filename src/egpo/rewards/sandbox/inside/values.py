"""The encoding of plain values as bytes. A received value is built from builtin types, whatever the sender used.

One tag byte, then the content; sizes are four bytes, big-endian. A value that is not plain data is sent as a reference:
a number that its owner can look up. A subclass is sent as its builtin base, so that an `int` whose `__eq__` is always
true arrives as an `int`; the number of the object may be sent with it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Value = Any
    HandOver = Callable[[object], int]
    Resolve = Callable[[int], object]
    OfSubclass = Callable[[object], bytes]
    Mirror = Callable[[int, Any], object]


DEEPEST = 200

_SIMPLE: dict[bytes, object] = {b"N": None, b"T": True, b"F": False}
_FACTORIES = {kind.__name__: kind for kind in (int, float, complex, bool, str, list, tuple, dict, set)}


def _text(value: Any) -> tuple[object, ...]:
    return (str(value),)


def _zone(value: Any) -> object:
    """Return the time zone of a datetime as a fixed offset, or None."""
    offset = value.utcoffset()
    return offset if offset is None else __import__("datetime").timezone(offset, value.tzname())


def _factory(value: Any) -> object:
    name = getattr(value.default_factory, "__name__", "")
    return name if _FACTORIES.get(name) is value.default_factory else None


# Classes of the standard library that are plain data too, and what to build them from.
_NAMED: dict[str, Callable[[Any], tuple[object, ...]]] = {
    "builtins.range": lambda value: (value.start, value.stop, value.step),
    "array.array": lambda value: (value.typecode, list(value)),
    "collections.Counter": lambda value: (dict(value),),
    "collections.OrderedDict": lambda value: (list(value.items()),),
    "collections.defaultdict": lambda value: (_factory(value), dict(value)),
    "collections.deque": lambda value: (list(value), value.maxlen),
    "datetime.date": lambda value: (value.year, value.month, value.day),
    "datetime.datetime": lambda value: (
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, _zone(value),
    ),
    "datetime.time": lambda value: (value.hour, value.minute, value.second, value.microsecond, _zone(value)),
    "datetime.timedelta": lambda value: (value.days, value.seconds, value.microseconds),
    "datetime.timezone": lambda value: (value.utcoffset(None), value.tzname(None)),
    "decimal.Decimal": _text,
    "fractions.Fraction": lambda value: (value.numerator, value.denominator),
    "ipaddress.IPv4Address": _text,
    "ipaddress.IPv4Network": _text,
    "ipaddress.IPv6Address": _text,
    "ipaddress.IPv6Network": _text,
    "pathlib.PosixPath": _text,
    "pathlib.PurePosixPath": _text,
    "pathlib.PureWindowsPath": _text,
    "uuid.UUID": _text,
}  # fmt: skip
_MANY: dict[bytes, Any] = {b"l": list, b"t": tuple, b"S": set, b"Z": frozenset}
UNCHANGING = (int, float, complex, str, bytes, tuple, frozenset)
CHANGING = (bytearray, list, dict, set)
_EXACT = {type(None), bool, *UNCHANGING, *CHANGING}


def encode(value: Value, hand_over: HandOver, depth: int = 0, of_subclass: OfSubclass | None = None) -> bytes:
    """Return the bytes of `value`. `hand_over` returns the number by which an object that is not plain data is sent.

    `of_subclass` is called for an object whose class is not one of those that are sent as plain data. It returns `m`
    and a number, which are sent before the plain value; `r` and a number, which are sent in place of it; or b"": an
    object derived from a builtin type is then sent as that type, and any other object by its number.
    """
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    for tag, simple in _SIMPLE.items():
        if value is simple:
            return tag
    start = b""
    if of_subclass is not None and type(value) not in _EXACT and class_name(value) not in _NAMED:
        start = of_subclass(value)
        if start[:1] == b"r":
            return start
    if isinstance(value, int):
        return start + _sized(b"i", int.to_bytes(value, int.bit_length(value) // 8 + 1, "big", signed=True))
    if isinstance(value, float):
        return start + _sized(b"f", float.hex(value).encode())
    if isinstance(value, complex):
        parts = (value.real, value.imag)
        return start + b"c" + b"".join(encode(part, hand_over, depth + 1) for part in parts)
    if isinstance(value, str):
        return start + _sized(b"s", str.encode(value, "utf-8", "surrogatepass"))
    if isinstance(value, bytearray):
        return _sized(b"B", bytes(value))
    if isinstance(value, bytes):
        return start + _sized(b"b", bytes(value))
    return start + _encode_many(value, hand_over, depth + 1, of_subclass)


def _encode_many(value: Value, hand_over: HandOver, depth: int, of_subclass: OfSubclass | None) -> bytes:
    name = class_name(value)
    if name in _NAMED:
        return b"o" + encode((name, *_NAMED[name](value)), hand_over, depth, of_subclass)
    if isinstance(value, dict):
        flat = [part for pair in dict.items(value) for part in pair]
        return _counted(b"d", [encode(part, hand_over, depth, of_subclass) for part in flat])
    for tag, kind in _MANY.items():
        if isinstance(value, kind):
            return _counted(tag, [encode(part, hand_over, depth, of_subclass) for part in kind.__iter__(value)])
    return reference(hand_over(value))


def reference(number: int) -> bytes:
    return b"r" + number.to_bytes(4, "big")


def class_name(value: object) -> str:
    """Return the full name of the class of `value`. Classes of `pathlib`, which Python 3.13 defines in a submodule, get
    the name by which programs import them."""
    return f"{type(value).__module__}.{type(value).__qualname__}".replace("pathlib._local.", "pathlib.")


def is_plain(value: object) -> bool:
    """Return whether `value` is sent as itself, and not as a reference."""
    plain = (type(None), int, float, complex, str, bytes, bytearray, dict, list, tuple, set, frozenset)
    return isinstance(value, plain) or class_name(value) in _NAMED


def _sized(tag: bytes, content: bytes) -> bytes:
    return tag + len(content).to_bytes(4, "big") + content


def _counted(tag: bytes, parts: list[bytes]) -> bytes:
    return tag + len(parts).to_bytes(4, "big") + b"".join(parts)


def decode(data: bytes, resolve: Resolve, mirror: Mirror | None = None) -> Value:
    """Return the value of `data`, with references turned into objects by `resolve`; ValueError if it is not a value.

    `mirror` makes a stand-in from a number and a plain value, for an object that is derived from such a value.
    """
    value, end = _decode(data, 0, resolve, 0, mirror)
    if end != len(data):
        raise ValueError("bytes after the value")
    return value


def _decode(data: bytes, at: int, resolve: Resolve, depth: int, mirror: Mirror | None) -> tuple[Value, int]:
    if depth > DEEPEST + 2:
        raise ValueError("nested too deeply")
    tag, at = data[at : at + 1], at + 1
    if tag in _SIMPLE:
        return _SIMPLE[tag], at
    if tag == b"c":
        real, at = _decode(data, at, resolve, depth + 1, mirror)
        imag, at = _decode(data, at, resolve, depth + 1, mirror)
        if type(real) is float and type(imag) is float:
            return complex(real, imag), at
        raise ValueError("a complex number without its two parts")
    if tag == b"o":
        parts, at = _decode(data, at, resolve, depth + 1, mirror)
        return _rebuilt(parts), at
    size, at = int.from_bytes(data[at : at + 4], "big"), at + 4
    if at > len(data):
        raise ValueError("cut off")
    if tag == b"r":
        return resolve(size), at
    if tag == b"m":
        plain, at = _decode(data, at, resolve, depth + 1, mirror)
        return (mirror(size, plain) if mirror else plain), at
    if tag == b"d" or tag in _MANY:
        return _decode_many(data, at, tag, size, resolve, depth + 1, mirror)
    content = data[at : at + size]
    if len(content) != size:
        raise ValueError("cut off")
    return _decode_scalar(tag, content), at + size


def _decode_scalar(tag: bytes, content: bytes) -> Value:
    if tag == b"i":
        return int.from_bytes(content, "big", signed=True)
    if tag == b"f":
        return _float(content.decode("ascii"))
    if tag == b"s":
        return content.decode("utf-8", "surrogatepass")
    if tag == b"b":
        return content
    if tag == b"B":
        return bytearray(content)
    raise ValueError(f"unknown tag {tag!r}")


def _rebuilt(parts: Value) -> Value:
    """Return an instance of a known class, from its name and its constructor's arguments."""
    if not isinstance(parts, tuple) or not parts or not isinstance(parts[0], str) or parts[0] not in _NAMED:
        raise ValueError("an unknown class")
    if parts[0] == "collections.defaultdict" and len(parts) == 3:
        parts = (parts[0], _FACTORIES.get(parts[1]), parts[2])
    module, _, name = parts[0].rpartition(".")
    try:
        return getattr(__import__(module), name)(*parts[1:])
    except Exception as error:  # boundary: these classes may raise anything on wrong arguments
        raise ValueError(f"{parts[0]} cannot be built: {error}") from error


def _float(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError as error:
        raise ValueError("a float out of range") from error


def _decode_many(
    data: bytes, at: int, tag: bytes, size: int, resolve: Resolve, depth: int, mirror: Mirror | None
) -> tuple[Value, int]:
    parts: list[Any] = []
    for _ in range(size):
        part, at = _decode(data, at, resolve, depth, mirror)
        parts.append(part)
    try:
        if tag == b"d":
            return dict(zip(parts[::2], parts[1::2], strict=True)), at
        return _MANY[tag](parts), at
    except TypeError as error:
        raise ValueError("an unhashable key") from error
