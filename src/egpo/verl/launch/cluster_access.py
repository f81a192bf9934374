"""A Ray cluster that is joined may ask for a token: `ray start` turns that on by itself, and `ray.init` does not."""

import os
from collections.abc import Mapping
from pathlib import Path

_MODE = "RAY_AUTH_MODE"
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def cluster_access(address: str | None) -> Mapping[str, str]:
    """What joining adds to the environment: the token's mode, where there is a token and nobody chose the mode."""
    if address is None or _MODE in os.environ:
        return {}
    has_token = any(name in os.environ for name in _TOKENS) or (Path.home() / ".ray" / "auth_token").is_file()
    return {_MODE: "token"} if has_token else {}
