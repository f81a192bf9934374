"""The state of every global random generator, as JSON.

The engine itself draws from functions of seed, step and row. A task from outside may use any of these.
"""

import base64
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor


def seed_everything(seed: int) -> None:
    """Where a run starts."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def random_states() -> dict[str, Any]:
    version, words, gauss = random.getstate()
    name, key, *rest = np.random.get_state(legacy=True)
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {
        "python": [version, list(words), gauss],
        "numpy": [name, _to_text(torch.from_numpy(np.asarray(key).view(np.uint8).copy())), *rest],
        "torch": _to_text(torch.get_rng_state()),
        "cuda": [_to_text(state) for state in cuda],
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """GPUs of another number keep the states they have."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, key, *rest = states["numpy"]
    np.random.set_state((name, np.frombuffer(base64.b64decode(key), dtype=np.uint32), *rest))
    torch.set_rng_state(_to_bytes(states["torch"]))
    if states["cuda"] and torch.cuda.is_available() and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all([_to_bytes(state) for state in states["cuda"]])


def _to_text(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode("ascii")


def _to_bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
