"""Rows kept on disk and picked in any order: only their places are in memory."""

import hashlib
import json
import tempfile
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import numpy as np

from egpo.data.rows import Row
from egpo.data.splits import Indices


class Spool:
    """A nameless file in `directory`, gone when closed or when the process dies; 24 bytes of memory a row."""

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
        """Raises UnicodeEncodeError on text that no file can hold (a lone surrogate)."""
        fields = [row.data_source, row.prompt, row.ability, row.ground_truth, dict(row.extra)]
        line = json.dumps(fields, ensure_ascii=False).encode("utf-8")
        self._file.write(line)
        self._ends.append(self._ends[-1] + len(line))
        self._keys.append(prompt_key(row))

    def firsts(self) -> Indices:
        """The rows whose prompt did not come before, in order."""
        _, first = np.unique(np.frombuffer(self._keys, dtype=np.uint64), return_index=True)
        return np.sort(first)

    def pick(self, indices: Iterable[int]) -> Iterator[Row]:
        for i in indices:
            self._file.seek(self._ends[i])
            source, prompt, ability, truth, extra = json.loads(self._file.read(self._ends[i + 1] - self._ends[i]))
            yield Row(source, tuple(prompt), ability, truth, extra)


def prompt_key(row: Row) -> int:
    """64 bits that tell prompts apart: two rows with one prompt are one problem, whatever their answers say."""
    text = json.dumps(row.prompt, ensure_ascii=True).encode("ascii")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
