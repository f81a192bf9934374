"""What the three conversions of conversations share: turns in, one row or a reason for dropping out."""

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
    "no_tools": "the conversation names no tool",
    "bad_tools": "its tools are not strict JSON, or one has no name or no readable schema",
    "bad_calls": "an assistant turn has the form of calls and cannot be read as such, or holds what no reward reads",
    "turn_twice": "two keys are the number of one turn, as `2` and `02` are",
    "unknown_role": "a turn's role is none of system, user, assistant, tool",
    "no_prompt": "nothing comes before the answer",
    "last_not_assistant": "the last message is not the assistant's",
    "not_text": "a message's content is neither text nor text parts",
    "lone_surrogate": "text that is not Unicode: no file can hold it",
    "duplicate": "the same prompt came before",
    "in_other_split": "the same problem is in the other split",
    "no_answer": "the row holds no answer, and none can be written from its ground truth",
    "no_solution": "a Countdown puzzle that no expression solves",
    "search_too_long": "a Countdown puzzle of more than four numbers, for which no solution is searched",
    "bad_ground_truth": "the reward cannot read the ground truth",
    "answer_not_accepted": "the reward does not accept the answer that was written from the ground truth",
    "unknown_data_source": "no reward is known for the data source, nor for its `ability`",
}


@dataclass(frozen=True)
class ToolStyle:
    """How prompts are written: the instruction (None: the record's own, else ours), the text of the tools, and
    whether bare tools are wrapped in OpenAI's form."""

    instruction: str | None = None
    system_text: SystemText = qwen3_system_text
    wrap_tools: bool = False

    @property
    def tools_text(self) -> str:
        """Whose words show the tools."""
        return "qwen3" if self.system_text is qwen3_system_text else "tokenizer"

    def system(self, own: str, tools: list[Tool]) -> str:
        shown = [wrap(tool) for tool in tools] if self.wrap_tools else tools
        return self.system_text(own if self.instruction is None else self.instruction, shown)


class UnfitError(Exception):
    """A turn that has no place in a row."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def content_text(content: Any) -> str:
    """A turn's text: text as it is, text parts joined, "" for null. Anything else is `not_text`."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(p, Mapping) and isinstance(p.get("text"), str) for p in content):
        return "".join(part["text"] for part in content)
    raise UnfitError("not_text")


@dataclass(frozen=True)
class Reply:
    """An assistant turn: its thought, then words and calls in the order in which it says them."""

    thinking: str
    parts: Sequence[str | Call]

    @property
    def calls(self) -> list[Call]:
        return [part for part in self.parts if isinstance(part, Call)]

    @property
    def spoken(self) -> str:
        """What later turns see of it: words and calls, no thought."""
        return "\n".join(part.hermes() if isinstance(part, Call) else part for part in self.parts)

    @property
    def whole(self) -> str:
        """What a model would learn to say: the thought too."""
        return f"<think>\n{self.thinking}\n</think>\n\n{self.spoken}" if self.thinking else self.spoken


def read_reply(text: str) -> Reply:
    """Everything up to the last `</think>` is thought. What remains is calls if it has the form `[...]`, and words
    and calls if it holds `<tool_call>` blocks. Raises `CallsError` where it has the form and is none."""
    before, _, after = text.rpartition("</think>")
    thinking, spoken = before.replace("<think>", "").strip(), after.strip()
    if spoken.startswith("[") and spoken.endswith("]"):
        return Reply(thinking, parse_python_list(spoken))
    if OPEN in spoken:
        return Reply(thinking, hermes_parts(spoken))
    return Reply(thinking, [spoken] if spoken else [])


def row_of(source: str, prompt: Sequence[Message], reply: Reply, tools: list[Tool], source_row: int) -> Row | Dropped:
    """The row of a conversation that ends in `reply`: judged by its calls, "" where it rightly has none."""
    truth = hermes_text(reply.calls)
    if len(truth) > MAX_CALLS_CHARS:
        return Dropped("bad_calls")
    if not all(map(has_readable_schema, tools)):
        return Dropped("bad_tools")
    extra: dict[str, str | int] = {
        "tools": json.dumps(tools, ensure_ascii=False),
        "answer": reply.whole,
        "source_row": source_row,
    }
    return Row(source, tuple(prompt), "function_calling", truth, extra)
