"""One row of a verl parquet file: what every preparation writes and every task reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from egpo.errors import InputError

Message = dict[str, str]
Extra = Mapping[str, str | int]

RESERVED = ("split", "index")
"""Keys of `extra_info` that the writer sets itself."""


@dataclass(frozen=True)
class Row:
    """A prompt, what its answer is judged by, and what else is known of it.

    `ground_truth` is always text: JSON where it has parts, so that every source has one schema.
    `extra` goes into `extra_info` beside `split` and `index`; every row of a file has the same keys in it.
    """

    data_source: str
    prompt: tuple[Message, ...]
    ability: str
    ground_truth: str
    extra: Extra = field(default_factory=dict)

    def named(self, split: str, index: int) -> dict[str, Any]:
        """The row as verl reads it, at its place in a split."""
        return {
            "data_source": self.data_source,
            "prompt": list(self.prompt),
            "ability": self.ability,
            "reward_model": {"style": "rule", "ground_truth": self.ground_truth},
            "extra_info": {"split": split, "index": index, **self.extra},
        }


@dataclass(frozen=True)
class Dropped:
    """A record that does not become a row, and why: counted, never silent."""

    reason: str


def schema_of(row: Row) -> pa.Schema:
    """The arrow schema that this row, and so its whole file, has."""
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    extra = [(key, pa.int64() if isinstance(value, int) else pa.string()) for key, value in row.extra.items()]
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(message)),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
            ("extra_info", pa.struct([("split", pa.string()), ("index", pa.int64()), *extra])),
        ]
    )


def parse_row(value: Mapping[str, Any], where: str) -> Row:
    """A row of any verl parquet file, ours or not: nested ground truths and extras become JSON text."""
    reward_model = value.get("reward_model")
    if not isinstance(reward_model, Mapping) or reward_model.get("ground_truth") is None:
        raise InputError(
            "the row has no `reward_model.ground_truth`", where=where, fix="prepare the file again, or drop the row"
        )
    extra = {k: _scalar(v) for k, v in (value.get("extra_info") or {}).items() if k not in RESERVED and v is not None}
    return Row(
        data_source=str(value.get("data_source") or ""),
        prompt=parse_messages(value.get("prompt"), where),
        ability=str(value.get("ability") or ""),
        ground_truth=as_text(reward_model["ground_truth"]),
        extra=extra,
    )


def parse_messages(value: object, where: str) -> tuple[Message, ...]:
    """A list of {role, content} with text in both, or an error that names the row."""
    fine = isinstance(value, list) and value and all(_is_message(message) for message in value)
    if not fine:
        raise InputError(
            "`prompt` is not a list of {role, content} messages", where=where, fix="see docs/data.md for the row format"
        )
    assert isinstance(value, list)
    return tuple({"role": message["role"], "content": message["content"]} for message in value)


def as_text(value: object) -> str:
    """Text as it is; anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _scalar(value: object) -> str | int:
    # bool is an int to Python and not to arrow: JSON says `true`.
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return as_text(value)


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)
