"""Finding a tag in token ids, whatever the tokenizer made of it.

A tag may be one token or several, and its ends may be glued to its neighbours (`>\\n\\n` is one token of Qwen2.5), so
neither an id nor a fixed run of ids will do. Two tables over the vocabulary answer, without decoding a response:
in which tokens can the tag end, and how much of it is still to match before a token.
B rows, T tokens, V vocabulary, K candidates.
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from egpo.errors import InputError
from egpo.segments.spelling import UNSPELLABLE, token_spellings

NO_MATCH = -1
ROUND_UP = 1024  # table sizes, so that the largest id of a batch does not ask for tables of its own


@dataclass(frozen=True)
class TagTables:
    """`ends_V`: the tag can end here. `endings_VE`: by what number of its bytes it then begins before this token (0: it
    lies inside), `NO_MATCH` for none. `before_VR[v, r]`: with r bytes to match up to the end of v, how many remain.
    """

    ends_V: Tensor
    endings_VE: Tensor
    before_VR: Tensor

    def to(self, device: torch.device) -> "TagTables":
        return TagTables(self.ends_V.to(device), self.endings_VE.to(device), self.before_VR.to(device))


def first_tag_end(tables: TagTables, response_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """The position of the token in which the first whole tag ends, T where there is none.

    Masked tokens (padding, tool results) neither hold a tag nor bridge one.
    """
    num_rows, num_tokens = response_BT.shape
    candidate_BT = tables.ends_V.take(response_BT).logical_and_(mask_BT)
    row_K, position_K = candidate_BT.nonzero(as_tuple=True)
    endings_KE = tables.endings_VE[response_BT[row_K, position_K]].long()
    first_B = response_BT.new_full((num_rows,), num_tokens)
    for remaining_K in endings_KE.unbind(1):
        whole_K = _matches_backwards(tables, response_BT, mask_BT, row_K, position_K, remaining_K)
        first_B.scatter_reduce_(0, row_K[whole_K], position_K[whole_K], "amin")
    return first_B


def _matches_backwards(
    tables: TagTables, response_BT: Tensor, mask_BT: Tensor, row_K: Tensor, position_K: Tensor, remaining_K: Tensor
) -> Tensor:
    """Whether the remaining bytes stand right before each candidate: one step to the left per pass."""
    remaining_K = remaining_K.clone()
    open_K = (remaining_K > 0).nonzero().squeeze(1)
    steps = 0
    while len(open_K):
        steps += 1
        row, before = row_K[open_K], position_K[open_K] - steps
        inside = before >= 0
        before = before.clamp(min=0)
        left = tables.before_VR[response_BT[row, before], remaining_K[open_K]].long()
        remaining_K[open_K] = left.where(inside & mask_BT[row, before], NO_MATCH)
        open_K = open_K[remaining_K[open_K] > 0]
    return remaining_K == 0


_tables: WeakKeyDictionary[Any, dict[tuple[int, str], TagTables]] = WeakKeyDictionary()


def tag_tables(tokenizer: Any, tag: str, num_ids: int) -> TagTables:
    """The tables of this tokenizer and tag, made once. `num_ids`: model vocabularies reach past their tokenizer's."""
    size = -(-max(num_ids, len(tokenizer)) // ROUND_UP) * ROUND_UP
    cache = _tables.setdefault(tokenizer, {})
    if (size, tag) not in cache:
        spellings = token_spellings(tokenizer)
        _check_can_spell(tokenizer, spellings, tag)
        spellings += [UNSPELLABLE] * (size - len(spellings))
        cache[size, tag] = _build(spellings, tag.encode())
    return cache[size, tag]


def _check_can_spell(tokenizer: Any, spellings: list[bytes], tag: str) -> None:
    """A tag that becomes `unk` would never be found, and every segment would be empty in silence."""
    ids = tokenizer.encode(tag, add_special_tokens=False) if tag else []
    if not tag or tag.encode() not in b"".join(spellings[i] for i in ids):
        raise InputError(
            f"the tokenizer cannot spell the tag `{tag}`",
            where="segments",
            fix="choose the tag pair of the model's own chat template, or add the tags to the tokenizer",
        )


def _build(spellings: list[bytes], tag: bytes) -> TagTables:
    endings = [_endings(spelling, tag) for spelling in spellings]
    widest = max(1, *map(len, endings))
    endings_VE = torch.tensor([e + [NO_MATCH] * (widest - len(e)) for e in endings], dtype=torch.int16)
    before_VR = torch.tensor([_before(spelling, tag) for spelling in spellings], dtype=torch.int16)
    return TagTables((endings_VE >= 0).any(1), endings_VE, before_VR)


def _endings(spelling: bytes, tag: bytes) -> list[int]:
    if tag in spelling:
        return [0]
    return [start for start in range(1, len(tag)) if spelling.startswith(tag[start:])]


def _before(spelling: bytes, tag: bytes) -> list[int]:
    return [_remaining(spelling, tag[:r]) for r in range(len(tag))]


def _remaining(spelling: bytes, wanted: bytes) -> int:
    if spelling.endswith(wanted):
        return 0
    return len(wanted) - len(spelling) if wanted.endswith(spelling) else NO_MATCH
