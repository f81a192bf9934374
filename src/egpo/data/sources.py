"""Opens the source of `egpo prepare`: a file, a folder with one file per split, or a dataset on the hub.

Hub datasets are read through the `datasets` package, which is optional.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from egpo.data.manifest import file_digest
from egpo.data.readers import SUFFIXES, Record, read_records
from egpo.data.rows import SPLITS
from egpo.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(:[\w.-]+)?")


def is_hub_name(source: str) -> bool:
    """Return whether the text has the form of a dataset name on the hub: `owner/name` or `owner/name:config`."""
    return _NAME.fullmatch(source) is not None


def hub_splits(source: str, default_config: str | None) -> list[str]:
    """Return the names of the splits of a dataset on the hub."""
    name, config = _name(source, default_config)
    datasets = _datasets(source)
    with _explained(source):
        return list(datasets.get_dataset_split_names(name, config))


def read_hub(source: str, split: str, default_config: str | None) -> Iterator[Record]:
    """Yield the records of one split of a dataset on the hub, as they are downloaded."""
    name, config = _name(source, default_config)
    datasets = _datasets(source)
    with _explained(source):
        for row, value in enumerate(datasets.load_dataset(name, config, split=split, streaming=True)):
            yield Record(dict(value), f"{source} ({split}), row {row}")


def _name(source: str, default_config: str | None) -> tuple[str, str | None]:
    name, _, config = source.partition(":")
    return name, config or default_config


def _datasets(source: str) -> Any:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise InputError(
            "reading from the hub needs the `datasets` package",
            where=f"--source {source}",
            fix="run `pip install datasets`, or give a local file",
        ) from error
    return datasets


@contextmanager
def _explained(source: str) -> Iterator[None]:
    """Convert any exception of the hub's client to an InputError."""
    try:
        yield
    except Exception as error:  # boundary: the exceptions of the client and of its transport have no common base class
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        offline = any(word in f"{type(error).__name__} {error}".lower() for word in ("offline", "connect"))
        fix = (
            "download the file on another machine, and give its path"
            if offline
            else "check the name, which has the form `owner/name:config`"
        )
        raise InputError(
            f"{'the hub cannot be reached' if offline else 'the hub refused the request'} ({reason})",
            where=f"--source {source}",
            fix=fix,
        ) from error


Reader = Callable[[], Iterator[Record]]


@dataclass(frozen=True)
class Source:
    """The source of prepared data.

    `name` is written to the manifest. `readers` holds a function for each split that iterates over its records; for a
    source that is not split, a single one under "all". `digest` is the SHA-256 of a file's bytes, or of the digests of
    a folder's files; "" for the hub.
    """

    name: str
    digest: str
    readers: dict[str, Reader]


def open_source(source: str, hub_config: str | None = None) -> Source:
    """Open a file or folder if there is one at this path, otherwise the dataset of this name on the hub."""
    path = Path(source)
    if path.is_dir():
        return _directory(path)
    if not path.exists() and path.suffix not in SUFFIXES and is_hub_name(source):
        return _hub(source, hub_config)
    read_records(path)  # raises an error for an unreadable file before anything is written
    return Source(path.name, file_digest(path), {"all": partial(read_records, path)})


def _directory(path: Path) -> Source:
    files = {split: _split_file(path, split) for split in SPLITS}
    digests = "".join(file_digest(file) for file in files.values())
    readers: dict[str, Reader] = {split: partial(read_records, file) for split, file in files.items()}
    return Source(path.resolve().name, hashlib.sha256(digests.encode()).hexdigest(), readers)


def _split_file(path: Path, split: str) -> Path:
    found = [path / f"{split}{suffix}" for suffix in SUFFIXES if (path / f"{split}{suffix}").is_file()]
    if len(found) != 1:
        what = f"the folder has {'more than one' if found else 'no'} `{split}` file"
        names = ", ".join(f"{split}{suffix}" for suffix in SUFFIXES)
        raise InputError(what, where=str(path), fix=f"give a folder with exactly one of {names}")
    return found[0]


def _hub(source: str, config: str | None) -> Source:
    splits = hub_splits(source, config)
    if set(SPLITS) <= set(splits):
        return Source(source, "", {split: partial(read_hub, source, split, config) for split in SPLITS})
    return Source(source, "", {"all": partial(read_hub, source, splits[0], config)})
