"""Damaged copies of a file, and what a reader makes of each.

    python -m tests.faults.flips [--most N] [--only NAME]    the table of docs/reliability.md

Damage is one flipped bit of one byte (each place with two bits: the lowest, which makes another digit of a digit, and
one that walks through the byte), the file cut at a place, and one byte more at its end. Every byte of a file of up to
`most` bytes is tried; of a larger one the first and last 64 bytes, those at structural boundaries, and an even sample.
"""

import hashlib
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from egpo.errors import EgpoError, forget_warnings

EDGE = 64
LIMIT_S = 20
"""A read that takes longer has hung."""


@dataclass(frozen=True)
class Damage:
    name: str
    content: bytes


@dataclass(frozen=True)
class Reading:
    """A file, and the verb that reads it. `read` returns what the verb computes, in a form that can be compared, or
    raises as the verb does. `remakes`: a damaged file is replaced by the reader, which then returns the same."""

    file: Path
    verb: str
    read: Callable[[], Any]
    remakes: bool = False
    slow: bool = False
    kind: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind or self.file.name}: {self.verb}"


@dataclass
class Outcomes:
    """How many damaged copies were refused, gave the same result, or gave another one without a word (`silent`).

    `broken`: an exception that is not one clear line that names the file. `hung`: no end within `LIMIT_S`.
    """

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, outcome: str, example: str) -> None:
        self.counts[outcome] += 1
        self.examples.setdefault(
            f"{outcome} {example.partition('|')[2][:60]}" if outcome == "broken" else outcome, example
        )

    @property
    def num_tried(self) -> int:
        return sum(self.counts.values())


def places(size: int, most: int, boundaries: Iterable[int] = ()) -> list[int]:
    """Return the places of a file of `size` bytes that are damaged, in order."""
    if size <= most:
        return list(range(size))
    edges = {*range(EDGE), *range(size - EDGE, size)} if most >= 4 * EDGE else set()
    inner = {round(part * (size - 1) / max(1, most - 1)) for part in range(most)}
    return sorted(edges | inner | {place for place in boundaries if 0 <= place < size})


def damages(content: bytes, most: int) -> Iterator[Damage]:
    """Yield damaged copies of a file's content."""
    chosen = places(len(content), most, _boundaries(content) if most >= 4 * EDGE else ())
    for place in chosen:
        for bit in dict.fromkeys((1, 1 << (place % 7 + 1))):
            changed = bytearray(content)
            changed[place] ^= bit
            yield Damage(f"byte {place} ^ {bit:#04x}", bytes(changed))
    for place in chosen[:: max(1, len(chosen) // 64)]:
        yield Damage(f"cut to {place} bytes", content[:place])
    for more in (b"\0", b"\n", b"0", b"x", b"}"):
        yield Damage(f"{more!r} more", content + more)


def _boundaries(content: bytes) -> Iterator[int]:
    """Yield the places around the end of a safetensors header."""
    length = int.from_bytes(content[:8], "little")
    if 0 < length < len(content) - 8:
        yield from range(8 + length - 8, 8 + length + 8)


class Hung(BaseException):
    pass


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def put(path: Path, content: bytes) -> None:
    """Replace a file by another one: writing into a loaded library or a mapped tensor would end this process."""
    other = path.with_name(f"{path.name}.new")
    other.write_bytes(content)
    other.replace(path)


def outcome_of(reading: Reading, damage: Damage, whole: bytes, expected: Any) -> tuple[str, str]:
    """Write the damaged copy in place of the file, read it, restore the file, and return the outcome and its reason."""
    put(reading.file, damage.content)
    forget_warnings()
    try:
        with time_limit(LIMIT_S):
            found = reading.read()
        return ("same" if found == expected else "silent"), ""
    except Hung:
        return "hung", ""
    except EgpoError as error:
        text = str(error)
        named = reading.file.name in text or str(reading.file.parent) in text
        return ("refused" if error.exit_code == 2 and named else "broken"), f"{type(error).__name__}: {text[:300]}"
    except Exception as error:  # a traceback for the user
        return "broken", f"{type(error).__name__}: {error!s:.200}"
    finally:
        reading.file.parent.mkdir(parents=True, exist_ok=True)
        put(reading.file, whole)


def try_all(reading: Reading, most: int, limit: int | None = None) -> Outcomes:
    """Try every damage of a file with one reader; an even sample of `limit` of them, if it is given."""
    whole = reading.file.read_bytes()
    expected = reading.read()
    assert reading.read() == expected, f"{reading.name}: two readings of the same file differ"
    found = Outcomes()
    tried = list(damages(whole, most))
    chosen = places(len(tried), limit) if limit else range(len(tried))
    for damage in (tried[place] for place in chosen):
        outcome, reason = outcome_of(reading, damage, whole, expected)
        found.add(outcome, f"{damage.name}| {reason}")
    return found


def digest(value: Any) -> str:
    """Return a short form of a value for comparison."""
    return hashlib.sha256(repr(value).encode("utf-8", "backslashreplace")).hexdigest()


def main() -> None:
    import argparse
    import tempfile
    import warnings

    from tests.faults.scene import NOT_DETECTED, Scene, groups

    arguments = argparse.ArgumentParser()
    arguments.add_argument("--most", type=int, default=4096)
    arguments.add_argument("--limit", type=int, help="most damages of a file that a slow verb reads", default=300)
    arguments.add_argument("--only", default="", help="part of the name of a file and its verb")
    chosen = arguments.parse_args()
    warnings.simplefilter("ignore")
    print("| file: read by | bytes | tried | refused | same result | not detected |\n|---|---|---|---|---|---|")
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        scene = Scene(Path(place))
        for reading in (one for group in groups for one in group(scene) if chosen.only in one.name):
            size, start = reading.file.stat().st_size, time.monotonic()
            found = try_all(reading, chosen.most, chosen.limit if reading.slow else None)
            total += found.counts
            cells = [found.num_tried, *(found.counts[name] for name in ("refused", "same", "silent"))]
            print(f"| {reading.name} | {size:,} | " + " | ".join(f"{cell:,}" for cell in cells) + " |", flush=True)
            print(f"    {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
            for kind, example in found.examples.items():
                bad = kind.split()[0] in ("broken", "hung") or (kind == "silent" and reading.name not in NOT_DETECTED)
                if bad:
                    print(f"    FAULT {kind.split()[0]}: {example}", flush=True)
    print(f"total: {total}")


if __name__ == "__main__":
    main()
