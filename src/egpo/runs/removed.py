"""The file `removed.json` of a run: which parts of its checkpoints were removed on purpose after it was evaluated.

`keep: weights` removes what only a continued training needs, `keep: results` the whole checkpoints. The file is written
before the first file is deleted, so that an interrupted removal can be finished, and keeps the digests of what is gone.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

from egpo.errors import InputError
from egpo.files import write_atomically
from egpo.fingerprints import sealed, unsealed

Keep = Literal["all", "weights", "results"]
KEEPS: tuple[Keep, ...] = get_args(Keep)
WHAT = {"weights": "the optimizer state", "results": "the checkpoints"}
FORMAT = 1


@dataclass(frozen=True)
class Removed:
    """What was removed. `files`: paths relative to the run folder. `model` and `shards`: digests of the trained model
    and of verl's shards while they were there, which are inputs of the evaluation and of the merge."""

    keep: Keep
    files: Sequence[str]
    num_bytes: int
    model: str
    shards: str

    @property
    def has_model(self) -> bool:
        """Whether the trained model is still there."""
        return self.keep != "results"

    def __str__(self) -> str:
        size = f"{self.num_bytes / 1e9:.2f} GB" if self.num_bytes >= 1e8 else f"{self.num_bytes / 1e6:.1f} MB"
        return f"{WHAT[self.keep]} ({len(self.files)} files, {size}) after the evaluation, by keep: {self.keep}"


def read_removed(path: Path) -> Removed | None:
    """Return the content of `removed.json`; None if there is no such file, as nothing was removed."""
    if not path.is_file():
        return None
    try:
        value = unsealed(json.loads(path.read_text(encoding="utf-8")))
        if value.pop("format") != FORMAT or value["keep"] not in WHAT:
            raise ValueError("unknown format")
        return Removed(**value)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        fix = "restore the file; without it the missing files look like damage"
        raise InputError(f"the file cannot be read ({error!r:.80})", where=str(path), fix=fix) from error


def write_removed(path: Path, removed: Removed) -> None:
    write_atomically(path, json.dumps(sealed({"format": FORMAT, **asdict(removed)}), indent=1) + "\n")
