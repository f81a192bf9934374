"""Values as Hydra's command line reads them back."""

import re
from collections.abc import Mapping
from typing import Any

from egpo.verl.launch.resources import Setting
from egpo.verl.launch.schema.known import schema

_PLAIN = re.compile(r"[A-Za-z_/][\w./:-]*", re.ASCII)
_WORDS = {"null", "true", "false", "inf", "nan"}


def word(setting: Setting) -> str:
    """`key=value`, with a `+` where verl's files do not have the key."""
    plus = "" if schema().declares(setting.key) or setting.key.startswith("hydra.") else "+"
    return f"{plus}{setting.key}={spelt(setting.value)}"


def spelt(value: Any) -> str:
    """
    >>> spelt(["<think>", 3, None, True, 1e-06, "vllm"])
    "['<think>',3,null,true,1e-06,vllm]"
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{spelt(str(key))}:{spelt(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(spelt, value))}]"
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _WORDS else _quoted(value)
    return repr(value)


def _quoted(text: str) -> str:
    """In single quotes. Backslashes are themselves, but for those that stand before a quote. A `${name}` of verl's is
    replaced by Hydra, as it is in verl's own files."""
    escaped = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", text)
    return "'" + re.sub(r"(\\+)$", lambda found: found[1] * 2, escaped) + "'"
