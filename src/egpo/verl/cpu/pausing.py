"""How verl's asynchronous trainers stop generation, in the vLLM of a CPU."""

import functools
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from egpo.verl.cpu.replacements import replace


def pause_as_verl_asks(async_llm: ModuleType) -> None:
    """For vllm/v1/engine/async_llm.py:952: verl 0.9.1 passes `wait_for_inflight_requests`, which has become `mode`."""
    replace(async_llm.AsyncLLM, "pause_generation", _taking_the_older_keyword)


def _taking_the_older_keyword(pause: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(pause)
    async def pause_generation(self: Any, *, wait_for_inflight_requests: bool = False, **settings: Any) -> None:
        await pause(self, **{"mode": "wait" if wait_for_inflight_requests else "abort", **settings})

    return pause_generation
