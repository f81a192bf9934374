"""What the three conversions of conversations share: turns in, one row or a reason for dropping out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from egpo.data.calls import Call, hermes_text, parse_hermes, parse_python_list
from egpo.data.rows import Message, Row
from egpo.data.tool_prompt import SystemText, Tool, qwen3_system_text, wrap

INSTRUCTION = (
    "Think inside <think> and </think> first. Then answer: with tool calls where the request needs them, "
    "in plain words where it does not."
)

DROP_REASONS = {
    "no_call": "no assistant turn of the conversation calls a tool",
    "no_tools": "the conversation names no tool",
    "bad_tools": "its tools are not JSON, or one has no name",
    "bad_calls": "an assistant turn has the form of a list of calls and cannot be read as one",
    "unknown_role": "a turn's role is none of system, user, assistant, tool",
    "no_prompt": "nothing comes before the answer",
    "last_not_assistant": "the last message is not the assistant's",
    "not_text": "a message's content is neither text nor text parts",
    "lone_surrogate": "text that is not Unicode: no file can hold it",
    "duplicate": "the same prompt came before",
    "in_other_split": "the same problem is in the other split",
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


@dataclass(frozen=True)
class Reply:
    """An assistant turn: its thought, the words beside its calls, and the calls."""

    thinking: str
    words: str
    calls: Sequence[Call]

    @property
    def spoken(self) -> str:
        """What later turns see of it: words and calls, no thought."""
        return "\n".join(part for part in (self.words, hermes_text(self.calls)) if part)

    @property
    def whole(self) -> str:
        """What a model would learn to say: the thought too."""
        return f"<think>\n{self.thinking}\n</think>\n\n{self.spoken}" if self.thinking else self.spoken


def read_reply(text: str) -> Reply:
    """Everything up to the last `</think>` is thought. What remains is calls if it has the form `[...]` or holds
    `<tool_call>` blocks, and words otherwise. Raises `CallsError` where it has the form and is none."""
    before, _, after = text.rpartition("</think>")
    thinking, spoken = before.replace("<think>", "").strip(), after.strip()
    if spoken.startswith("[") and spoken.endswith("]"):
        return Reply(thinking, "", parse_python_list(spoken))
    if "<tool_call>" in spoken:
        return Reply(thinking, spoken.partition("<tool_call>")[0].strip(), parse_hermes(spoken))
    return Reply(thinking, spoken, [])


def row_of(source: str, prompt: Sequence[Message], reply: Reply, tools: list[Tool], source_row: int) -> Row:
    """The row of a conversation that ends in `reply`: judged by its calls, "" where it rightly has none."""
    extra: dict[str, str | int] = {
        "tools": json.dumps(tools, ensure_ascii=False),
        "answer": reply.whole,
        "source_row": source_row,
    }
    return Row(source, tuple(prompt), "function_calling", hermes_text(reply.calls), extra)
