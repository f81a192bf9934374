"""How a tokenizer spells: the bytes that each token id adds to a text.

Bytes, because a tag such as `◁think▷` can be cut in mid-character; and what a token adds *in context*, because a
SentencePiece token's leading space vanishes when it is decoded alone.
"""

import json
import re
from typing import Any

UNSPELLABLE = b"\xff"  # in no UTF-8 text, so in no tag
_BYTE_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_spellings(tokenizer: Any) -> list[bytes]:
    """One spelling per id, up to the highest. Special tokens are spelt out: a tag may be one."""
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
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for characters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _printable_bytes()


def _spell_byte_level(piece: str | None) -> bytes:
    if piece is None:
        return UNSPELLABLE
    return bytes(_BYTE_OF[c] for c in piece) if all(c in _BYTE_OF for c in piece) else piece.encode()


def _spell_in_context(tokenizer: Any, pieces: list[str | None]) -> list[bytes]:
    """What decoding adds after an ordinary token."""
    anchor = tokenizer.encode("a", add_special_tokens=False)
    lead = tokenizer.decode(anchor, clean_up_tokenization_spaces=False)
    # An id that stands for nothing is not shown to the tokenizer, which may refuse it.
    rows = [anchor if piece is None else [*anchor, i] for i, piece in enumerate(pieces)]
    texts = tokenizer.batch_decode(rows, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return [_spell_one(piece, text, lead) for piece, text in zip(pieces, texts, strict=True)]


def _spell_one(piece: str | None, text: str, lead: str) -> bytes:
    if piece is None:
        return UNSPELLABLE
    fallback = _BYTE_FALLBACK.fullmatch(piece)
    return bytes([int(fallback[1], 16)]) if fallback else text.removeprefix(lead).encode()
