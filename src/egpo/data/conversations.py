"""Code that the conversation formats share: parsing assistant turns, the style of prompts, and making the row."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from egpo.call_bounds import MAX_CALLS_CHARS
from egpo.data.calls import OPEN, Call, hermes_parts, hermes_text, parse_python_list
from egpo.data.rows import Dropped, Message, Row
from egpo.data.tool_prompt import SystemText, Tool, has_readable_schema, qwen3_system_text, wrap

INSTRUCTION = (
    "Think inside <think> and </think> first. Then answer: with tool calls where the request needs them, "
    "in plain words where it does not."
)

DROP_REASONS = {
    "no_call": "no assistant turn of the conversation calls a tool",
    "no_tools": "the conversation lists no tools",
    "bad_tools": "the tools are not strict JSON, or a tool has no name or no readable schema",
    "bad_calls": "an assistant turn looks like tool calls but cannot be parsed, or exceeds the limits of the rewards",
    "turn_twice": "two keys are the same turn number, such as `2` and `02`",
    "unknown_role": "a turn has a role other than system, user, assistant and tool",
    "no_prompt": "there is no turn before the answer",
    "last_not_assistant": "the last message is not from the assistant",
    "not_text": "the content of a message is neither text nor a list of text parts",
    "lone_surrogate": "the text contains a lone surrogate, which is not valid Unicode and cannot be written",
    "duplicate": "an earlier row has the same prompt",
    "in_other_split": "the same problem is in the other split",
    "no_answer": "the row contains no answer, and none can be written from its ground truth",
    "no_solution": "the row is a Countdown problem that has no solution",
    "search_too_long": "the row is a Countdown problem of more than four numbers, for which no solution is searched",
    "bad_ground_truth": "the reward cannot read the ground truth",
    "answer_not_accepted": "the reward does not accept the answer that was written from the ground truth",
    "prompt_too_long": "the prompt has more tokens than `max_prompt_tokens`",
    "answer_too_long": "the gold answer has more tokens than `max_answer_tokens`",
    "unknown_data_source": "no reward is registered for the data source or for the `ability`",
}
"""Reasons for which a record is not converted, with their meaning. Manifests and outputs count records by reason."""


@dataclass(frozen=True)
class ToolStyle:
    """How the system message of a prompt is written.

    `instruction`: its text before the tools. None: that of the record, or `INSTRUCTION` if the record has none.
    `system_text`: the function that writes instruction and tools. `wrap_tools`: write each tool in OpenAI's form
    {"type": "function", "function": ...}.
    """

    instruction: str | None = None
    system_text: SystemText = qwen3_system_text
    wrap_tools: bool = False

    @property
    def tools_text(self) -> str:
        """The chat template that the text of the tools follows: "qwen3", or "tokenizer" (the tokenizer's own)."""
        return "qwen3" if self.system_text is qwen3_system_text else "tokenizer"

    def system(self, own: str, tools: list[Tool]) -> str:
        shown = [wrap(tool) for tool in tools] if self.wrap_tools else tools
        return self.system_text(own if self.instruction is None else self.instruction, shown)


class UnfitError(Exception):
    """A turn of a conversation cannot be converted. `reason` is a key of `DROP_REASONS`."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def content_text(content: Any) -> str:
    """Return the content of a turn as text. A list of text parts is joined, and null becomes "".

    Raise UnfitError if the content is of any other kind.
    """
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content):
        return "".join(part["text"] for part in content)
    raise UnfitError("not_text")


@dataclass(frozen=True)
class Reply:
    """An assistant turn: its thinking, then text and tool calls in their original order."""

    thinking: str
    parts: Sequence[str | Call]

    @property
    def calls(self) -> list[Call]:
        return [part for part in self.parts if isinstance(part, Call)]

    @property
    def visible_text(self) -> str:
        """The turn as it appears in the prompt of later turns: text and calls, without the thinking."""
        return "\n".join(part.hermes() if isinstance(part, Call) else part for part in self.parts)

    @property
    def full_text(self) -> str:
        """The turn as a model should generate it: thinking, text and calls."""
        return f"<think>\n{self.thinking}\n</think>\n\n{self.visible_text}" if self.thinking else self.visible_text


def read_reply(text: str) -> Reply:
    """Parse the text of an assistant turn.

    Everything up to the last `</think>` is thinking. The rest is a list of calls if it has the form `[...]`, text and
    calls if it contains `<tool_call>` blocks, and plain text otherwise. Raise CallsError if the rest has the form of
    calls but cannot be parsed.
    """
    before, _, after = text.rpartition("</think>")
    thinking, visible = before.replace("<think>", "").strip(), after.strip()
    if visible.startswith("[") and visible.endswith("]"):
        return Reply(thinking, parse_python_list(visible))
    if OPEN in visible:
        return Reply(thinking, hermes_parts(visible))
    return Reply(thinking, [visible] if visible else [])


def row_of(source: str, prompt: Sequence[Message], reply: Reply, tools: list[Tool], source_row: int) -> Row | Dropped:
    """Return the row of a conversation that ends with `reply`, or the reason to drop it.

    The ground truth of the row is the calls of the reply; "" if it has none.
    """
    truth = hermes_text(reply.calls)
    if len(truth) > MAX_CALLS_CHARS:
        return Dropped("bad_calls")
    if not all(map(has_readable_schema, tools)):
        return Dropped("bad_tools")
    extra: dict[str, str | int] = {
        "tools": json.dumps(tools, ensure_ascii=False),
        "answer": reply.full_text,
        "source_row": source_row,
    }
    return Row(source, tuple(prompt), "function_calling", truth, extra)
