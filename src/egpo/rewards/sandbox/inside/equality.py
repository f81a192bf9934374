"""The comparison of a returned value with the expected one."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


REL_TOL, ABS_TOL = 1e-9, 1e-12


def same(got: Any, expected: Any) -> bool:
    """Return whether two values are equal by Python's `==`, with three additions for values that came through JSON.

    A tuple equals a list of the same elements; floats within 1e-9 of each other (relative; 1e-12 absolute) are
    equal, and NaN equals NaN; a bool equals only a bool. Both are plain data from `values.decode`.
    """
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    if isinstance(got, float) or isinstance(expected, float):
        return _close(got, expected)
    if isinstance(got, (list, tuple)) and isinstance(expected, (list, tuple)):
        return len(got) == len(expected) and all(map(same, got, expected))
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(same(got[key], expected[key]) for key in expected)
    return type(got) is type(expected) and bool(got == expected)


def _close(got: Any, expected: Any) -> bool:
    if not all(isinstance(side, (int, float)) for side in (got, expected)):
        return False
    if got == expected or (got != got and expected != expected):
        return True
    try:
        gap, size = abs(float(got) - float(expected)), max(abs(float(got)), abs(float(expected)))
    except OverflowError:
        return False
    return gap <= max(REL_TOL * size, ABS_TOL) and size != float("inf")
