"""A file of conversations, tokenised once, before anything is trained; what cannot be learned is counted."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

from egpo.data import Dropped
from egpo.errors import InputError, warn_once
from egpo.local.policies.policy import Policy
from egpo.local.sft.conversations import Conversation, read_conversations
from egpo.local.sft.encoding import Encoded, Encoder
from egpo.local.sft.examples import Examples, ExampleTable
from egpo.local.sft.rendering import Rendering, Template, renderings

REASONS = {
    "no_assistant_turn": "no turn in which the assistant answers something, or no answer in the row",
    "unknown_role": "a message without a role",
    "not_text": "a message's content is neither text nor text parts",
    "bad_tools": "its tools are not strict JSON, or one has no name",
    "bad_calls": "a tool call without a name, or whose arguments are no object",
    "template_refused": "the chat template raises an error on it",
    "calls_not_written": "the chat template does not write its tool calls",
    "not_a_continuation": "the template opens the assistant's turn with words that it does not keep",
    "lone_surrogate": "text that is not Unicode",
    "too_long": "more tokens than data.max_tokens, or than the model's context",
}
_AT_ONCE = 1024
"""Conversations that are tokenised together."""

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Reading:
    """What a file gave: examples in its order, and how many rows (or single answers of them) gave none, and why."""

    examples: Examples
    num_rows: int
    dropped: Counter[str]


def read_examples(path: Path, policy: Policy, max_tokens: int | None = None) -> Reading:
    """Every conversation of the file. A file none of whose rows can be learned is an error that says why."""
    reader = _Reader(policy, min(max_tokens or policy.context, policy.context))
    for rows in _batches(read_conversations(path), _AT_ONCE):
        reader.add(rows)
    if not len(reader.table):
        reasons = "; ".join(f"{count:,} times: {REASONS[reason]}" for reason, count in reader.dropped.most_common())
        raise InputError(f"none of its rows can be learned ({reasons})", where=str(path), fix=_fix(reader.dropped))
    if reader.num_endless:
        warn_once(
            f"endless {path}",
            f"{path}: {reader.num_endless:,} examples do not end with a stop token of the model, which will not learn "
            "to stop from them; is the token at the end of the chat template's turns the tokenizer's eos_token?",
        )
    return Reading(reader.table.examples(), reader.num_rows, reader.dropped)


class _Reader:
    """Rows in, a growing table of examples and counts out."""

    def __init__(self, policy: Policy, longest: int) -> None:
        self._template = Template(policy.tokenizer, policy.template)
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
    return {"too_long": "raise data.max_tokens, or take a model of a longer context"}.get(most, "see docs/sft.md")


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    stream = iter(items)
    while batch := list(islice(stream, size)):
        yield batch
