"""The spelling of tokens: the bytes of each token, the text of each token of a response, and tags in token ids.

A spelling is bytes, because a tag such as `◁think▷` can be split in mid-character. It is what a token adds *in
context*, because the leading space of a SentencePiece token vanishes when the token is decoded alone.

A tag may be one token or several, and its ends may be joined to its neighbours (`>\\n\\n` is one token of Qwen2.5), so
searching for ids is not enough. Two tables over the vocabulary find it without decoding a response: in which tokens the
tag can end, and how many of its bytes remain to be matched before a token.
B rows, T tokens, V vocabulary, K candidates.
"""

import codecs
import json
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from egpo.errors import InputError

UNSPELLABLE = b"\xff"  # a byte that occurs in no UTF-8 text, so in no tag
_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_spellings(tokenizer: Any) -> list[bytes]:
    """Return the bytes of each token, by id, up to the highest id. Special tokens are included: a tag may be one."""
    piece_of = {i: piece for piece, i in tokenizer.get_vocab().items()}
    pieces = [piece_of.get(i) for i in range(max(piece_of) + 1)]
    if not _is_byte_level(tokenizer):
        return _spell_in_context(tokenizer, pieces)
    added = {int(i): str(token).encode() for i, token in tokenizer.added_tokens_decoder.items()}
    return [added.get(i) or _spell_byte_level(piece) for i, piece in enumerate(pieces)]


def _is_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or backend.decoder is None:
        return False
    decoder = json.loads(backend.decoder.__getstate__())
    return any(part["type"] == "ByteLevel" for part in decoder.get("decoders", [decoder]))


def _printable_bytes() -> dict[str, int]:
    """Return the byte of each character in GPT-2's alphabet: printable Latin-1 characters stand for themselves,
    characters from 256 on for the other bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _printable_bytes()


def _spell_byte_level(piece: str | None) -> bytes:
    if piece is None:
        return UNSPELLABLE
    return bytes(_BYTE_OF[c] for c in piece) if all(c in _BYTE_OF for c in piece) else piece.encode()


def _spell_in_context(tokenizer: Any, pieces: list[str | None]) -> list[bytes]:
    """Return the bytes that each token adds to the text when it is decoded after an ordinary token."""
    anchor = tokenizer.encode("a", add_special_tokens=False)
    lead = tokenizer.decode(anchor, clean_up_tokenization_spaces=False)
    # An unused id is not decoded: the tokenizer may reject it.
    rows = [anchor if piece is None else [*anchor, i] for i, piece in enumerate(pieces)]
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # the same texts, faster
        texts = backend.decode_batch(rows, skip_special_tokens=False)
    else:
        texts = tokenizer.batch_decode(rows, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return [_spell_one(piece, text, lead) for piece, text in zip(pieces, texts, strict=True)]


def _spell_one(piece: str | None, text: str, lead: str) -> bytes:
    if piece is None:
        return UNSPELLABLE
    fallback = _BYTE_FALLBACK.fullmatch(piece)
    return bytes([int(fallback[1], 16)]) if fallback else text.removeprefix(lead).encode()


class TokenTexts:
    """A splitter of a response's text into the parts that its tokens added. The parts, joined, are always the text.

    A character that several tokens spell belongs to the last of them. Special tokens are not in the text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        special = set(tokenizer.all_special_ids)
        self._spellings = [b"" if i in special else spelt for i, spelt in enumerate(token_spellings(tokenizer))]

    def parts(self, ids: Sequence[int], text: str) -> list[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        parts = [decoder.decode(self._spelling(i)) for i in ids]
        if parts:
            parts[-1] += decoder.decode(b"", final=True)
        return parts if "".join(parts) == text else self._parts_by_decoding(ids, text)

    def text_of(self, token: int) -> str:
        """Return one token by itself: its name if it is special, and U+FFFD for a part of a character."""
        return str(self._tokenizer.decode([token]))

    def _spelling(self, token: int) -> bytes:
        """Return the bytes of a token; b"" for an id that the tokenizer does not have."""
        return self._spellings[token] if token < len(self._spellings) else b""

    def _parts_by_decoding(self, ids: Sequence[int], text: str) -> list[str]:
        """Split by decoding every prefix of the response, for tokenizers that change earlier text (a dropped leading
        space, cleaned-up spaces). Slow: quadratic in the length."""
        beginnings = [list(ids[: end + 1]) for end in range(len(ids))]
        decoded = self._tokenizer.batch_decode(beginnings, skip_special_tokens=True)
        cuts = [0]
        for beginning in decoded[:-1]:
            cuts.append(max(cuts[-1], _num_shared(beginning, text)))
        ends = [*cuts[1:], len(text)]
        return [text[start:end] for start, end in zip(cuts, ends, strict=True)] if ids else []


def _num_shared(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


NO_MATCH = -1
ROUND_UP = 1024  # table sizes are rounded up, so that batches with different largest ids use the same tables


@dataclass(frozen=True)
class TagTables:
    """Tables of the ways in which one tag can be spread over tokens.

    `endings_VE[v]`: the ways in which the tag can end in token v, each as the number of the tag's bytes before v (0:
    the tag is inside v), filled up with `NO_MATCH`. `before_VR[v, r]`: if the first r bytes of the tag have to end at
    the end of token v, how many of them are before v, or `NO_MATCH`.
    """

    endings_VE: Tensor
    before_VR: Tensor


@dataclass(frozen=True)
class PairTables:
    """The lookup tables of the opening and the closing tag, and the mask `ends_V` of tokens in which a tag can end."""

    ends_V: Tensor
    opening: TagTables
    closing: TagTables


@dataclass(frozen=True)
class TagEnds:
    """The positions, per row, of the tokens in which the first complete opening and closing tag end; T without one."""

    opening_B: Tensor
    closing_B: Tensor


def first_tag_ends(tables: PairTables, response_BT: Tensor, mask_BT: Tensor) -> TagEnds:
    """Find the first opening and closing tag of each row. A tag with masked tokens (padding, tool results) in it does
    not count."""
    candidate_BT = tables.ends_V.take(response_BT).logical_and_(mask_BT)
    row_K, position_K = candidate_BT.nonzero(as_tuple=True)
    opening_B, closing_B = (
        _first_end(tag, response_BT, mask_BT, row_K, position_K) for tag in (tables.opening, tables.closing)
    )
    return TagEnds(opening_B, closing_B)


def _first_end(tag: TagTables, response_BT: Tensor, mask_BT: Tensor, row_K: Tensor, position_K: Tensor) -> Tensor:
    num_rows, num_tokens = response_BT.shape
    first_B = response_BT.new_full((num_rows,), num_tokens)
    endings_KE = tag.endings_VE[response_BT[row_K, position_K]].long()
    for remaining_K in endings_KE.unbind(1):
        whole_K = _matches_backwards(tag, response_BT, mask_BT, row_K, position_K, remaining_K)
        first_B.scatter_reduce_(0, row_K[whole_K], position_K[whole_K], "amin")
    return first_B


def _matches_backwards(
    tag: TagTables, response_BT: Tensor, mask_BT: Tensor, row_K: Tensor, position_K: Tensor, remaining_K: Tensor
) -> Tensor:
    """Return whether the remaining bytes of the tag are directly before each candidate token.

    Each iteration moves one token to the left.
    """
    remaining_K = remaining_K.clone()
    open_K = (remaining_K > 0).nonzero().squeeze(1)
    steps = 0
    while len(open_K):
        steps += 1
        row, before = row_K[open_K], position_K[open_K] - steps
        inside = before >= 0
        before = before.clamp(min=0)
        left = tag.before_VR[response_BT[row, before], remaining_K[open_K]].long()
        remaining_K[open_K] = left.where(inside & mask_BT[row, before], NO_MATCH)
        open_K = open_K[remaining_K[open_K] > 0]
    return remaining_K == 0


_made: WeakKeyDictionary[Any, dict[Hashable, PairTables]] = WeakKeyDictionary()


def pair_tables(tokenizer: Any, tags: tuple[str, str], size: int, num_ids: int, device: torch.device) -> PairTables:
    """Return the tables of a tokenizer with `size` tokens and a pair of tags, for ids below `num_ids`. Cached."""
    # The ids of a model may exceed those of its tokenizer.
    num_rows = -(-max(num_ids, size) // ROUND_UP) * ROUND_UP
    cache = _made.setdefault(tokenizer, {})
    # The key contains the size, which changes when tags are added to the tokenizer as tokens of their own.
    key = (tags, num_rows, size, device)
    if key not in cache:
        spellings = token_spellings(tokenizer)
        for tag in tags:
            _check_can_spell(tokenizer, spellings, tag)
        spellings += [UNSPELLABLE] * (num_rows - len(spellings))
        opening, closing = (_build(spellings, tag.encode(), device) for tag in tags)
        ends_V = (opening.endings_VE >= 0).any(1) | (closing.endings_VE >= 0).any(1)
        cache[key] = PairTables(ends_V, opening, closing)
    return cache[key]


def _check_can_spell(tokenizer: Any, spellings: list[bytes], tag: str) -> None:
    """Raise InputError if no tokens of the tokenizer spell the tag: the tag would never be found, and every segment
    would be empty without a warning."""
    ids = tokenizer.encode(tag, add_special_tokens=False) if tag else []
    if not tag or tag.encode() not in b"".join(spellings[i] for i in ids):
        raise InputError(
            f"the tokenizer cannot spell the tag `{tag}`",
            where="segments",
            fix="choose the tag pair of the model's own chat template, or add the tags to the tokenizer",
        )


def _build(spellings: list[bytes], tag: bytes, device: torch.device) -> TagTables:
    """Build the tables of one tag. Only tokens that start or end with one of its bytes need a row."""
    endings = {v: _endings(spelling, tag) for v, spelling in enumerate(spellings) if _may_end(spelling, tag)}
    endings_VE = np.full((len(spellings), max(map(len, endings.values()), default=1) or 1), NO_MATCH, dtype=np.int16)
    before_VR = np.full((len(spellings), len(tag)), NO_MATCH, dtype=np.int16)
    for v, ways in endings.items():
        endings_VE[v, : len(ways)] = ways
    for v, spelling in enumerate(spellings):
        if spelling[-1:] in tag:
            before_VR[v] = [_remaining(spelling, tag[:r]) for r in range(len(tag))]
    return TagTables(torch.from_numpy(endings_VE).to(device), torch.from_numpy(before_VR).to(device))


def _may_end(spelling: bytes, tag: bytes) -> bool:
    return spelling[:1] in tag or tag in spelling


def _endings(spelling: bytes, tag: bytes) -> list[int]:
    if tag in spelling:
        return [0]
    return [start for start in range(1, len(tag)) if spelling.startswith(tag[start:])]


def _remaining(spelling: bytes, wanted: bytes) -> int:
    if spelling.endswith(wanted):
        return 0
    return len(wanted) - len(spelling) if wanted.endswith(spelling) else NO_MATCH
