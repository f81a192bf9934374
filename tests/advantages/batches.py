"""Random batches for the laws: ragged groups, rows in any order, float32 rewards, entropies that may be missing."""

from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import strategies as st

from egpo.advantages import ESTIMATORS, Signals

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

    def signals(self, dtype=torch.float64, **changes):
        """The inputs of an estimator; in float64, which keeps 1e-9 apart from the rounding of float32."""
        return Signals(
            **{
                "reward_B": torch.tensor(self.rewards, dtype=dtype),
                "group_B": torch.tensor(self.groups),
                "entropy_B": torch.tensor(self.entropies, dtype=torch.float64),
                "correct_B": torch.tensor(self.correct),
                **changes,
            }
        )


@dataclass(frozen=True)
class Tokens:
    """Entropy of each token of each row; the rows have different lengths, and some have none."""

    entropy_BT: torch.Tensor
    mask_BT: torch.Tensor

    def rows(self):
        """The entropies of each row's tokens, as lists."""
        return [e[m].tolist() for e, m in zip(self.entropy_BT, self.mask_BT, strict=True)]


def tokens_for(rows, seed, missing=True):
    """Return entropies of tokens, some of them 0 and, with `missing`, some of them not numbers; padding holds noise."""
    generator = torch.Generator().manual_seed(seed)
    mask_BT = torch.arange(6) < torch.randint(0 if missing else 1, 7, (rows, 1), generator=generator)
    entropy_BT = 3 * torch.rand(rows, 6, generator=generator, dtype=torch.float64)
    kind_BT = torch.rand(rows, 6, generator=generator)
    entropy_BT = entropy_BT.masked_fill(kind_BT < 0.1, 0.0)
    if missing:
        entropy_BT = entropy_BT.masked_fill((kind_BT > 0.9) | ~mask_BT, float("nan"))
    return Tokens(entropy_BT, mask_BT)


def called(name, signals, seed=0, order=None, **settings):
    """Call any estimator of the table; one of tokens gets the tables of `seed`, in the order of the rows."""
    if ESTIMATORS[name].level == "response":
        return ESTIMATORS[name](signals, **settings)
    tokens = tokens_for(len(signals.reward_B), seed)
    order = slice(None) if order is None else order
    entropy_BT = tokens.entropy_BT[order].requires_grad_()
    return ESTIMATORS[name](signals, entropy_BT, tokens.mask_BT[order], **settings)


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
