"""Data inside a page, where a model's text must stay text."""

import json
from typing import Any

# `<` and `>` end or open markup, `&` starts a reference where a parser takes the block for one; inside JSON they can
# only stand in strings, where an escape means the same.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def as_json(value: Any) -> str:
    """Strict JSON, without spaces, that can stand in a <script> block whatever it holds."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def num_bytes(value: Any) -> int:
    """What it takes in the page."""
    return len(as_json(value).encode("utf-8", "backslashreplace"))
