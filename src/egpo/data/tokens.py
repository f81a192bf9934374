"""Statistics of prompt and answer lengths in tokens, with which to choose the length limits of a recipe."""

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from egpo.chat_templates import render
from egpo.data.rows import Row
from egpo.errors import InputError
from egpo.model_sources import local_folder


@dataclass(frozen=True)
class Lengths:
    """Statistics of the number of tokens per row in one split."""

    mean: float
    median: float
    p95: float
    max: int
    total: int


@dataclass(frozen=True)
class TokenStatistics:
    """Statistics of the lengths of the prompts, as rendered by the chat template, and of the answers."""

    prompt: Lengths
    answer: Lengths


@dataclass
class TokenCounter:
    """A counter of tokens: `watch` yields rows unchanged and counts their tokens, `statistics` summarizes them."""

    tokenizer: Any
    _prompt: "array[int]" = field(default_factory=lambda: array("q"))
    _answer: "array[int]" = field(default_factory=lambda: array("q"))

    def watch(self, rows: Iterable[Row]) -> Iterator[Row]:
        for row in rows:
            self._prompt.append(len(self._encode(self._rendered(row))))
            self._answer.append(len(self._encode(str(row.extra.get("answer") or row.ground_truth))))
            yield row

    def statistics(self) -> TokenStatistics:
        return TokenStatistics(_lengths(self._prompt), _lengths(self._answer))

    def _rendered(self, row: Row) -> str:
        if not self.tokenizer.chat_template:
            return "\n".join(message["content"] for message in row.prompt)
        return render(self.tokenizer, row.prompt)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids


def load_tokenizer(name: str) -> Any:
    """Load a tokenizer from a folder or from the hub, or the tokenizer of a model that is part of egpo."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(local_folder(name), trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"the tokenizer cannot be loaded ({reason})",
            where=f"--tokenizer {name}",
            fix="give a folder that contains tokenizer.json",
        ) from error


def _lengths(counts: "array[int]") -> Lengths:
    values = np.frombuffer(counts, dtype=np.int64)
    return Lengths(
        mean=round(float(values.mean()), 1),
        median=float(np.median(values)),
        p95=float(np.percentile(values, 95)),
        max=int(values.max()),
        total=int(values.sum()),
    )
