"""Where a preparation's records come from: a file, a directory with a file per split, or the hub."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from egpo.data.hub import hub_splits, is_hub_name, read_hub
from egpo.data.manifest import file_digest
from egpo.data.parquet import SPLITS
from egpo.data.readers import SUFFIXES, Record, read_records
from egpo.errors import InputError

Reader = Callable[[], Iterator[Record]]


@dataclass(frozen=True)
class Source:
    """`name` is what the manifest says of it. `readers` has one stream per split, or a single one under "all".
    `digest` is the sha256 of the file's bytes (of a directory: of its files' digests; of the hub: not known)."""

    name: str
    digest: str
    readers: dict[str, Reader]


def open_source(source: str, hub_config: str | None = None) -> Source:
    """A path if there is one of that name; else a name on the hub if it looks like one."""
    path = Path(source)
    if path.is_dir():
        return _directory(path)
    if not path.exists() and path.suffix not in SUFFIXES and is_hub_name(source):
        return _hub(source, hub_config)
    read_records(path)  # the clear errors come before anything is written
    return Source(path.name, file_digest(path), {"all": partial(read_records, path)})


def _directory(path: Path) -> Source:
    files = {split: _split_file(path, split) for split in SPLITS}
    digests = "".join(file_digest(file) for file in files.values())
    readers: dict[str, Reader] = {split: partial(read_records, file) for split, file in files.items()}
    return Source(path.resolve().name, hashlib.sha256(digests.encode()).hexdigest(), readers)


def _split_file(path: Path, split: str) -> Path:
    found = [path / f"{split}{suffix}" for suffix in SUFFIXES if (path / f"{split}{suffix}").is_file()]
    if len(found) != 1:
        what = f"more than one `{split}` file" if found else f"no `{split}` file"
        raise InputError(what, where=str(path), fix=f"give a directory with one {split} file ({', '.join(SUFFIXES)})")
    return found[0]


def _hub(source: str, config: str | None) -> Source:
    splits = hub_splits(source, config)
    if set(SPLITS) <= set(splits):
        return Source(source, "", {split: partial(read_hub, source, split, config) for split in SPLITS})
    return Source(source, "", {"all": partial(read_hub, source, splits[0], config)})
