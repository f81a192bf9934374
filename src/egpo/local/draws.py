"""Random numbers that are a function of their purpose, not of what was drawn before.

The random numbers of a row depend on the seed, the step, the problem and the index of the sample. They do not depend on
other rows, nor on a generator state that a resumed run would have to restore.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Draws:
    """The random numbers of one step. Those for different purposes (training, validation, refills) are independent."""

    seed: int
    step: int = 0
    purpose: str = "train"

    def uniforms(self, keys: Sequence[str], n: int, num_tokens: int) -> Tensor:
        """Return uniform random numbers in [0, 1) of shape (len(keys) * n, num_tokens), float64: `n` rows per key.

        A key that occurs twice gets different numbers each time.
        """
        rows = [self._row(key, sample, num_tokens) for key in occurrences(keys) for sample in range(n)]
        return torch.from_numpy(np.stack(rows))

    def of_turn(self, key: str, sample: int, turn: int, num_tokens: int) -> Tensor:
        """Return the random numbers of one turn of an episode (float64). `key` is a result of `occurrences`.

        Those of turn 0 are the numbers that `uniforms` returns for a single response.
        """
        return torch.from_numpy(self._row(f"{key}\nturn {turn}" if turn else key, sample, num_tokens))

    def permutation(self, count: int, what: str) -> list[int]:
        """Return the integers below `count` in random order. `what` names the purpose of this permutation."""
        return [int(index) for index in self._generator(what, 0).permutation(count)]

    def _row(self, key: str, sample: int, num_tokens: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return self._generator(key, sample).random(num_tokens)

    def _generator(self, key: str, sample: int) -> np.random.Generator:
        name = f"{self.seed}\n{self.step}\n{self.purpose}\n{sample}\n{key}"
        digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=16).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def occurrences(keys: Sequence[str]) -> list[str]:
    """Return a name for each key that differs if a key occurs several times."""
    seen: Counter[str] = Counter()
    names = []
    for key in keys:
        names.append(f"{key}\n{seen[key]}")
        seen[key] += 1
    return names
