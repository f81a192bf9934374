"""verl names a backend for the CPU and one for its device; here the two are one."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from egpo.verl.cpu.replacements import replace


def drop_repeated_backends(distributed: ModuleType) -> None:
    """For verl/utils/distributed.py:63 and :89, "cpu:gloo,cpu:gloo": torch refuses a device that is named twice."""
    replace(distributed, "init_process_group", _once_per_device)


def _once_per_device(init_process_group: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init_process_group)
    def init(backend: Any = None, *args: Any, **kwargs: Any) -> None:
        return init_process_group(distinct(backend) if isinstance(backend, str) else backend, *args, **kwargs)

    return init


def distinct(backend: str) -> str:
    """`cpu:gloo,cpu:gloo` → `cpu:gloo`; the order stays."""
    return ",".join(dict.fromkeys(backend.split(",")))
