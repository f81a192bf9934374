"""The choice of rows and the train/test split, which depend only on the number of rows, the options and the seed.

`Spool` holds converted rows in a temporary file until they are split; only their offsets are in memory.
"""

import hashlib
import json
import math
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from egpo.data.rows import Row
from egpo.errors import InputError

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """The row numbers of the training and the test split, in the order in which they are written."""

    train: Indices
    test: Indices


def choose_rows(num_rows: int, max_samples: int | None, *, shuffle: bool, seed: int) -> Indices:
    """Return the numbers of `max_samples` rows: random ones if `shuffle` is true, otherwise the first of the file.

    If all rows are taken, they stay in the order of the file.
    """
    if max_samples is None or max_samples >= num_rows:
        return np.arange(num_rows)
    require_max_samples(max_samples)
    order = _permutation(num_rows, seed) if shuffle else np.arange(num_rows)
    return order[:max_samples]


def split_rows(rows: Indices, test_size: float, seed: int) -> Split:
    """Split n rows at random into test and training rows, by a permutation that depends on the seed:

        p = default_rng(seed).permutation(n); test = p[:ceil(test_size * n)]; train = the rest of p

    For example, 1000 rows with a test size of 0.05 and the seed 42 are split into 950 training rows and 50 test rows,
    of which the first are 978, 933, 859, 916, 127. Raise InputError if no row would be left for training.
    """
    require_test_size(test_size)
    num_test = math.ceil(test_size * len(rows))
    if num_test >= len(rows):
        raise InputError(
            f"a test size of {test_size} leaves none of {len(rows)} rows for training",
            where="--test-size",
            fix="give a smaller fraction, or more rows",
        )
    order = _permutation(len(rows), seed)
    return Split(train=rows[order[num_test:]], test=rows[order[:num_test]])


def require_max_samples(max_samples: int) -> None:
    if max_samples < 1:
        raise InputError(f"max_samples={max_samples} is too small", where="--max-samples", fix="give 1 or more")


def require_test_size(test_size: float) -> None:
    if not 0 < test_size < 1:
        what = f"a test size of {test_size} is not allowed"
        raise InputError(what, where="--test-size", fix="give a fraction between 0 and 1")


def require_seed(seed: int) -> None:
    if seed < 0:
        raise InputError(f"the seed {seed} is negative", where="--seed", fix="give 0 or more")


def _permutation(num_rows: int, seed: int) -> Indices:
    require_seed(seed)
    return np.random.default_rng(seed).permutation(num_rows)


class Spool:
    """A list of rows in a temporary file in `directory`, which uses 24 bytes of memory per row.

    The file has no name, and is deleted when it is closed or the process ends.
    """

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  closed by __exit__
        self._ends = array("q", [0])
        self._keys = array("Q")

    def __enter__(self) -> "Spool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._keys)

    def append(self, row: Row) -> None:
        """Append a row. Raise UnicodeEncodeError if it contains a lone surrogate, which UTF-8 cannot encode."""
        fields = [row.data_source, row.prompt, row.ability, row.ground_truth, dict(row.extra)]
        line = json.dumps(fields, ensure_ascii=False).encode("utf-8")
        self._file.write(line)
        self._ends.append(self._ends[-1] + len(line))
        self._keys.append(prompt_key(row))

    def unique_rows(self) -> Indices:
        """Return the numbers of the rows without those whose prompt occurs in an earlier row."""
        _, first = np.unique(np.frombuffer(self._keys, dtype=np.uint64), return_index=True)
        return np.sort(first)

    def pick(self, indices: Iterable[int]) -> Iterator[Row]:
        for i in indices:
            self._file.seek(self._ends[i])
            source, prompt, ability, truth, extra = json.loads(self._file.read(self._ends[i + 1] - self._ends[i]))
            yield Row(source, tuple(prompt), ability, truth, extra)


def prompt_key(row: Row) -> int:
    """Return a 64-bit digest of the row's prompt.

    Rows with the same prompt count as the same problem, even if their answers differ.
    """
    text = json.dumps(row.prompt, ensure_ascii=True).encode("ascii")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
