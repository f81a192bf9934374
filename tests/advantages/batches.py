"""Random batches for the laws: ragged groups, rows in any order, float32 rewards, entropies that may be missing."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

REWARDS = st.one_of(
    st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.9, 1.0, 1.1, -1.0]),
    st.floats(-5, 5, width=32).map(lambda r: float(np.float32(round(r, 3)))),
)
ENTROPIES = st.one_of(st.floats(0, 12, width=32), st.sampled_from([0.0, float("nan"), float("inf")]))


@dataclass(frozen=True)
class Batch:
    rewards: list[float]
    groups: list[int]
    entropies: list[float]
    correct: list[bool]


@st.composite
def batches(draw, min_group=1, rewards=REWARDS, entropies=ENTROPIES):
    sizes = draw(st.lists(st.integers(min_group, 9), min_size=1, max_size=6))
    ids = draw(st.lists(st.integers(-(10**12), 10**12), min_size=len(sizes), max_size=len(sizes), unique=True))
    groups = draw(st.permutations([i for i, size in zip(ids, sizes, strict=True) for _ in range(size)]))
    n = len(groups)
    rows = [draw(st.lists(s, min_size=n, max_size=n)) for s in (rewards, entropies, st.booleans())]
    return Batch(_float32(rows[0]), list(groups), _float32(rows[1]), rows[2])


def _float32(values):
    """What the estimators will see, so that a reference in Python floats starts from the same numbers."""
    return [float(np.float32(v)) for v in values]
