"""Which token wrote which part of a text."""

import codecs
from collections.abc import Sequence
from typing import Any

from egpo.segments.spelling import token_spellings


class TokenTexts:
    """The text of a response, cut into the parts that its tokens added. The parts always join to the text.

    A character that several tokens spell belongs to the last of them. Special tokens add nothing: the text has none.
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

    def _spelling(self, token: int) -> bytes:
        """A model's ids may reach past its tokenizer's: those decode to nothing."""
        return self._spellings[token] if token < len(self._spellings) else b""

    def _parts_by_decoding(self, ids: Sequence[int], text: str) -> list[str]:
        """For tokenizers that change what stands before (a leading space dropped, spaces cleaned up): by how much of
        the text each beginning of the response decodes to. Slow, with the square of the length."""
        beginnings = [list(ids[: end + 1]) for end in range(len(ids))]
        decoded = self._tokenizer.batch_decode(beginnings, skip_special_tokens=True)
        cuts = [0]
        for beginning in decoded[:-1]:
            cuts.append(max(cuts[-1], _num_shared(beginning, text)))
        ends = [*cuts[1:], len(text)]
        return [text[start:end] for start, end in zip(cuts, ends, strict=True)] if ids else []


def _num_shared(one: str, other: str) -> int:
    """How many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
