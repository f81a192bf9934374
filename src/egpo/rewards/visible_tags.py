"""Are the tags that a reward looks for still there when it sees the text?

Engines decode with `skip_special_tokens=True` before they call a reward (verl does, and so does ours). A tag that is a
*special* token of the tokenizer has vanished by then, and every answer would look as if it had none. (Qwen's tags are
added tokens and not special.)
"""

from collections.abc import Sequence
from typing import Any

from egpo.errors import InputError
from egpo.rewards.scoring import kind_of


def vanishing_tags(tokenizer: Any, tags: Sequence[str]) -> list[str]:
    """Those that are lost between a model's tokens and the text that an engine hands to a reward."""
    return [tag for tag in tags if tag not in _as_engines_decode(tokenizer, tag)]


def require_visible_tags(tokenizer: Any, data_source: str, tags: Sequence[str] = ()) -> None:
    """An error before the run starts, where a tag that the reward of `data_source` needs would vanish.

    `tags` are the thinking tags where the rows set their own.
    """
    needed = kind_of(data_source).tags
    lost = vanishing_tags(tokenizer, (*tags, *needed[2:]) if tags else needed)
    if lost:
        raise InputError(
            f"{', '.join(f'`{tag}`' for tag in lost)} is a special token, and those are dropped before the reward",
            where=f"tokenizer, data source {data_source}",
            fix="add it as an ordinary token (special=False in added_tokens_decoder), or use other tags",
        )


def _as_engines_decode(tokenizer: Any, tag: str) -> str:
    ids = tokenizer.encode(f"a {tag} b", add_special_tokens=False)
    return str(tokenizer.decode(ids, skip_special_tokens=True))
