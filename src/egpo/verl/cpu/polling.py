"""How often the trainer asks whether its responses are there."""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from egpo.verl.cpu.replacements import replace

POLL_S = 0.1


def poll_often(replay_buffer: ModuleType) -> None:
    """For verl/trainer/ppo/v1/replay_buffer.py:144: two seconds between polls, most of a step of a tiny model."""
    replace(replay_buffer.ReplayBuffer, "__init__", _with_interval)


def _with_interval(construct: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(construct)
    def init(self: Any, *args: Any, poll_interval: float = POLL_S, **kwargs: Any) -> None:
        construct(self, *args, poll_interval=poll_interval, **kwargs)

    return init
