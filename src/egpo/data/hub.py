"""Datasets by name from the hub, through `datasets` where it is installed."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from egpo.data.readers import Record
from egpo.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(:[\w.-]+)?")


def is_hub_name(source: str) -> bool:
    """`owner/name` or `owner/name:config`."""
    return _NAME.fullmatch(source) is not None


def hub_splits(source: str, default_config: str | None) -> list[str]:
    """The names of the splits that the hub has for it."""
    name, config = _name(source, default_config)
    datasets = _datasets(source)
    with _explained(source):
        return list(datasets.get_dataset_split_names(name, config))


def read_hub(source: str, split: str, default_config: str | None) -> Iterator[Record]:
    """The records of one split, streaming."""
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
            fix="pip install datasets, or give a local file",
        ) from error
    return datasets


@contextmanager
def _explained(source: str) -> Iterator[None]:
    """What the hub's client raises, as a sentence."""
    try:
        yield
    except Exception as error:  # the boundary to the client: its exceptions and its transport's share no ancestor
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        offline = any(word in f"{type(error).__name__} {error}".lower() for word in ("offline", "connect"))
        fix = "download the file elsewhere and give its path" if offline else "check the name: `owner/name:config`"
        raise InputError(
            f"{'the hub cannot be reached' if offline else 'the hub did not give it'} ({reason})",
            where=f"--source {source}",
            fix=fix,
        ) from error
