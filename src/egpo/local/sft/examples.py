"""Read a file of conversations into tokenised examples, in flat integer tables without a Python object per token.

An answer starts where its prompt ends, and ends with a stop token. Rows that cannot be learned are counted by reason.
Tensor suffixes: E examples, S tokens of all of them.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from egpo.data import Dropped
from egpo.errors import InputError, warn_once
from egpo.local.models.policy import Policy
from egpo.local.sft.rendering import (
    Answer,
    Conversation,
    ConversationTemplate,
    Rendering,
    read_conversations,
    renderings,
)

REASONS = {
    "no_assistant_turn": "no assistant turn after another message, or no answer in the row",
    "unknown_role": "a message without a role",
    "not_text": "a message's content is neither text nor text parts",
    "bad_tools": "the tools are not strict JSON, or a tool has no name",
    "bad_calls": "a tool call has no name, or its arguments are not an object",
    "template_refused": "the chat template raises an error on the conversation",
    "calls_not_written": "the chat template does not write tool calls",
    "not_a_continuation": "the generation prompt ends with text that the rendered answer lacks",
    "lone_surrogate": "text that is not valid Unicode",
    "too_long": "more tokens than data.max_tokens, or than the model's context",
}
_AT_ONCE = 1024
"""Number of conversations that are tokenised in one call."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Examples:
    """Tokenised examples. Example e has the tokens `start[e]` to `start[e + 1] - 1`, from row `row_E[e]` of the file.

    `learned_S` marks the tokens that the loss covers: never the first of an example, which nothing predicts.
    """

    token_S: Tensor
    learned_S: Tensor
    start: Tensor
    row_E: Tensor

    def __len__(self) -> int:
        return len(self.row_E)

    @cached_property
    def length_E(self) -> Tensor:
        return self.start.diff()

    @cached_property
    def num_learned_E(self) -> Tensor:
        return _starts(self.learned_S.long())[self.start].diff()

    def tokens_of(self, example: int) -> slice:
        """Return the slice of `token_S` and `learned_S` that belongs to an example."""
        return slice(int(self.start[example]), int(self.start[example + 1]))

    def take(self, chosen: Tensor) -> "Examples":
        """Return new tables with these examples, in this order."""
        length = self.length_E[chosen]
        start = _starts(length)
        index = torch.arange(int(start[-1])) + (self.start[chosen] - start[:-1]).repeat_interleave(length)
        return Examples(self.token_S[index], self.learned_S[index], start, self.row_E[chosen])


@dataclass(frozen=True)
class Encoded:
    """The tokens of one example up to the last learned one, and the `spans` (start, end) of learned tokens."""

    tokens: list[int]
    spans: tuple[tuple[int, int], ...]

    @property
    def num_learned(self) -> int:
        """The number of learned tokens. The first token is never learned: nothing predicts it."""
        return sum(end - max(start, 1) for start, end in self.spans)


@dataclass(frozen=True, eq=False)
class TokenizedFile:
    """The examples of a file in its order, and how many rows or single answers were left out, by reason."""

    examples: Examples
    num_rows: int
    dropped: Counter[str]


def read_examples(path: Path, policy: Policy, max_tokens: int | None = None) -> TokenizedFile:
    """Read and tokenise every conversation of a file. Raise InputError with the reasons if no row can be learned."""
    reader = _Reader(policy, min(max_tokens or policy.context, policy.context))
    for rows in _batches(read_conversations(path), _AT_ONCE):
        reader.add(rows)
    if not len(reader.table):
        reasons = "; ".join(f"{count:,} times: {REASONS[reason]}" for reason, count in reader.dropped.most_common())
        raise InputError(f"no row of the file can be learned ({reasons})", where=str(path), fix=_fix(reader.dropped))
    if reader.num_endless:
        warn_once(
            f"endless {path}",
            f"{path}: {reader.num_endless:,} examples do not end with a stop token of the model, so that it will not "
            "learn to stop from them; is the token at the end of the chat template's turns the tokenizer's eos_token?",
        )
    return TokenizedFile(reader.table.examples(), reader.num_rows, reader.dropped)


class _Reader:
    """A reader that renders and tokenises rows, and collects the examples and the counts of rows left out."""

    def __init__(self, policy: Policy, longest: int) -> None:
        self._template = ConversationTemplate(policy.tokenizer, policy.template)
        self._encoder = Encoder(policy.tokenizer, policy.stop_ids)
        self._longest = longest
        self.table, self.dropped = ExampleTable(), Counter[str]()
        self.num_rows = self.num_endless = 0

    def add(self, rows: list[Conversation | Dropped]) -> None:
        found = [(self.num_rows + i, one) for i, row in enumerate(rows) for one in self._rendered(row)]
        self.num_rows += len(rows)
        self.dropped.update(one.reason for _, one in found if isinstance(one, Dropped))
        kept = [(row, one) for row, one in found if isinstance(one, Rendering)]
        encoded = self._encoder.encode([rendering for _, rendering in kept])
        for (row, _), examples in zip(kept, encoded, strict=True):
            for example in examples:
                self._keep(example, row)

    def _rendered(self, row: Conversation | Dropped) -> Iterable[Rendering | Dropped]:
        return [row] if isinstance(row, Dropped) else renderings(row, self._template)

    def _keep(self, example: Encoded, row: int) -> None:
        if len(example.tokens) > self._longest:
            self.dropped["too_long"] += 1
            return
        if not example.num_learned:
            self.dropped["no_assistant_turn"] += 1
            return
        self.num_endless += not self._encoder.ends(example)
        self.table.add(example, row)


def _fix(dropped: Counter[str]) -> str:
    most = dropped.most_common(1)[0][0]
    return {"too_long": "raise data.max_tokens, or use a model with a longer context"}.get(most, "see docs/sft.md")


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    stream = iter(items)
    while batch := list(islice(stream, size)):
        yield batch


class ExampleTable:
    """A growing table of examples, from which `Examples` are made."""

    def __init__(self) -> None:
        self._tokens, self._learned = array("i"), bytearray()
        self._lengths, self._rows = array("q"), array("q")

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, encoded: Encoded, row: int) -> None:
        learned = bytearray(len(encoded.tokens))
        for start, end in encoded.spans:
            learned[start:end] = b"\1" * (end - start)
        learned[0] = 0
        self._tokens.extend(encoded.tokens)
        self._learned += learned
        self._lengths.append(len(encoded.tokens))
        self._rows.append(row)

    def examples(self) -> Examples:
        return Examples(
            token_S=torch.frombuffer(self._tokens, dtype=torch.int32),
            learned_S=torch.frombuffer(self._learned, dtype=torch.bool),
            start=_starts(torch.frombuffer(self._lengths, dtype=torch.long)),
            row_E=torch.frombuffer(self._rows, dtype=torch.long),
        )


def _starts(length: Tensor) -> Tensor:
    """Return the start of each item of the given lengths in a flat table, followed by the end of the last item."""
    return torch.cat([length.new_zeros(1), length.cumsum(0)])


@dataclass(frozen=True)
class Encoder:
    """A tokenizer of rendered conversations. The last stop token in an answer is its last learned token."""

    tokenizer: PreTrainedTokenizerBase
    stop_ids: frozenset[int]

    def encode(self, renderings: Sequence[Rendering]) -> Iterator[list[Encoded]]:
        """Yield the examples of each rendering: one, or one per answer if a token spans the end of a turn.

        In that case the tokens of an answer would depend on the turns that follow it.
        """
        answers = iter(self._answers([answer for rendering in renderings for answer in rendering.answers]))
        for rendering in renderings:
            own = [next(answers) for _ in rendering.answers]
            joined = _joined(own)
            yield [joined] if joined else own

    def ends(self, encoded: Encoded) -> bool:
        """Return whether the last answer ends with a stop token. If not, the model does not learn to stop from it."""
        return encoded.tokens[-1] in self.stop_ids

    def _answers(self, answers: Sequence[Answer]) -> list[Encoded]:
        prompts = self._tokens([answer.prompt for answer in answers])
        texts = self._tokens([answer.text for answer in answers])
        return [self._answer(*three) for three in zip(answers, prompts, texts, strict=True)]

    def _answer(self, answer: Answer, prompt: list[int], text: list[int]) -> Encoded:
        start = len(prompt)
        if text[:start] != prompt:
            # A token of the whole text spans the end of the prompt, which cannot happen at inference.
            text = prompt + self._tokens([answer.text[len(answer.prompt) :]])[0]
        end = next((i + 1 for i in range(len(text) - 1, start - 1, -1) if text[i] in self.stop_ids), len(text))
        return Encoded(text[:end], ((start, end),))

    def _tokens(self, texts: list[str]) -> list[list[int]]:
        # The template has already written the special tokens.
        if not texts:
            return []
        tokens: list[list[int]] = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
        return tokens


def _joined(own: list[Encoded]) -> Encoded | None:
    """Join the examples of one conversation, one per answer, into a single example that trains on all answers.

    Return None if the tokens of an example are not the beginning of the last example's tokens.
    """
    last = own[-1]
    if any(last.tokens[: len(one.tokens)] != one.tokens for one in own):
        return None
    return Encoded(last.tokens, tuple(span for one in own for span in one.spans))
