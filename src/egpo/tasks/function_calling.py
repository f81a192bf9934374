"""The function-calling task: make the correct calls with the correct arguments, or no call if none is needed.

The module also holds a generator of multi-turn conversations in the format of the HardGen dataset, which is not public.
They have several tools, some of which are not needed, parallel calls, turns without a call, tool results and thinking.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

from egpo.data import CONVERTERS, Dropped, Record, Row, ToolStyle
from egpo.data.conversations import INSTRUCTION
from egpo.data.hardgen import convert_hardgen
from egpo.data.splits import prompt_key
from egpo.errors import InputError, shortened
from egpo.rewards.answers import split_thinking
from egpo.rewards.tool_calls import judge_tool_calls
from egpo.rewards.verdict import Verdict
from egpo.tasks.protocol import Problem
from egpo.tasks.sourced import RecordReader, Sizes, SourcedTask, require_at_least, require_choice
from egpo.tasks.tool_catalogue import TOOLS, Tool

REFUSAL = "None of the tools is needed for that."

Mode = Literal["strict_think", "plain", "shaped"]


class FunctionCalling(SourcedTask):
    """A task of tool-calling conversations. The model must write the next assistant message.

    The records of a source are HardGen conversations, OpenAI messages or xlam rows; the format is detected. Generated
    conversations have at most `max_turns` requests, `max_calls` calls per request and `max_tools` tools; if
    `describe_tools` is false, the tools have no descriptions. `instruction` is the text before the tools in the system
    message. None: that of the record, or if it has none, one that asks for thinking; "": no text. `mode` of the reward
    is "strict_think", "plain" or "shaped".
    """

    data_source: ClassVar[str] = "function_calling"
    generated_data_source: ClassVar[str] = "hardgen"
    ability: ClassVar[str] = "function_calling"
    generated_sizes: ClassVar[Sizes] = Sizes(train=950, test=50)
    version: ClassVar[int] = 2

    def __init__(
        self,
        *,
        mode: Mode = "strict_think",
        max_turns: int = 4,
        max_calls: int = 3,
        max_tools: int = 8,
        describe_tools: bool = True,
        instruction: str | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        require_choice("function_calling", "mode", mode, get_args(Mode))
        require_at_least("function_calling", 1, max_turns=max_turns, max_calls=max_calls)
        require_at_least("function_calling", 2, max_tools=max_tools)
        if not isinstance(instruction, str | None):
            raise InputError(
                f"instruction={instruction!r:.60} is not text", where="task function_calling", fix="give text, or null"
            )
        self.mode, self._style = mode, ToolStyle(instruction)
        self._conversation = ConversationLimits(max_turns, max_calls, min(max_tools, len(TOOLS)), describe_tools)

    def problems(self, split: str) -> Sequence[Problem]:
        found = super().problems(split)
        if self.source is not None and self._style.instruction is not None and len(found):
            self._require_instruction(found[0])
        return found

    def _require_instruction(self, problem: Problem) -> None:
        """Raise InputError if the prepared prompts do not contain the setting `instruction`.

        The setting would then have no effect, because the prompts of prepared data are used unchanged.
        """
        instruction, first = self._style.instruction or "", problem.messages[0]
        system = first["content"] if first["role"] == "system" else ""
        if instruction not in system or (not instruction and INSTRUCTION in system):
            what = f"the prompts in {self.source} do not have the `instruction` {shortened(instruction)}"
            fix = "prepare the data with this instruction (task.settings.instruction, or --instruction), or remove it"
            raise InputError(what, where="task function_calling", fix=fix)

    def draw(self, rng: random.Random) -> Problem:
        while True:
            record = Record(draw_conversation(rng, self._conversation), "a generated conversation")
            row = convert_hardgen(record, 0, self._style)
            if isinstance(row, Row):
                extra = {key: row.extra[key] for key in ("tools", "answer")}
                return self.problem_of(replace(row, extra=extra))

    def read(self, record: Record, index: int) -> Problem | Dropped:
        row = CONVERTERS[_kind(record)](record, index, self._style)
        return row if isinstance(row, Dropped) else self.problem_of(row)

    def reader(self) -> RecordReader:
        """Return a function that reads records, and raises InputError if their formats differ."""
        first = ""

        def read(record: Record, index: int) -> Problem | Dropped:
            nonlocal first
            kind = _kind(record)
            first = first or kind
            if kind != first:
                what = f"this record has the format {kind}, but earlier ones have the format {first}"
                raise InputError(what, where=record.where, fix="split the file into one file per format")
            return self.read(record, index)

        return read

    def key(self, row: Row) -> str:
        """Return the key that identifies a row's problem.

        For a converted row, it is a digest of the whole prompt. For a generated row, it is a digest of the last request
        and its calls, so that the same request after other turns or with other tools counts as the same problem.
        """
        if "source_row" in row.extra:
            return f"{prompt_key(row):016x}"
        asked = (
            {"role": "user", "content": row.prompt[-1]["content"]},
            {"role": "assistant", "content": row.ground_truth},
        )
        return f"{prompt_key(replace(row, prompt=asked)):016x}"

    def judge(self, problem: Problem, text: str) -> Verdict:
        tools = json.loads(str(problem.extra.get("tools") or "[]"))
        return judge_tool_calls(text, problem.ground_truth, mode=self.mode, tools=tools or None)

    def gold(self, problem: Problem) -> str:
        """Return the answer of the conversation. If the reward mode requires thinking, it is added where missing."""
        answer = str(problem.extra.get("answer") or "") or problem.ground_truth or REFUSAL
        thought = split_thinking(answer)
        if self.mode == "plain":
            return thought.answer.strip() if thought.closed else answer
        return answer if thought.closed else f"<think>\nThe request decides which tools to call.\n</think>\n\n{answer}"


def _kind(record: Record) -> str:
    if "messages" in record.value:
        return "messages"
    if "query" in record.value or "answers" in record.value:
        return "xlam"
    return "hardgen"


CHAT = (
    ("Thanks, that is all I wanted to know.", "You are welcome."),
    ("What can you help me with?", "With anything that my tools can do; just ask."),
    ("Are you sure about that?", "Yes, that is what the tool said."),
    ("Hm, let me think for a moment.", "Take your time."),
)
NO_CALL_SHARE = 0.04
"""Fraction of generated conversations without any call. Converters must drop and count these."""


@dataclass(frozen=True)
class ConversationLimits:
    """Limits of a generated conversation: its requests, calls per request, and tools.

    `max_tools` must be at least 2; at most half of the tools are needed for the requests. `described`: whether the
    tools have descriptions.
    """

    max_turns: int = 4
    max_calls: int = 3
    max_tools: int = 8
    described: bool = True


FULL = ConversationLimits()


@dataclass(frozen=True)
class RequestedCall:
    """A tool call that the user of a generated conversation requests."""

    tool: Tool
    arguments: dict[str, Any]

    def request(self) -> str:
        given = ", ".join(f"{name}: {json.dumps(v, ensure_ascii=False)}" for name, v in self.arguments.items())
        return f"{self.tool.wish} ({given})" if given else self.tool.wish

    def python(self) -> str:
        return f"{self.tool.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


def draw_conversation(rng: random.Random, limits: ConversationLimits = FULL) -> dict[str, Any]:
    """Draw a random conversation in the HardGen format.

    It maps turn numbers to turns: "0" is the system turn with `tools` as a JSON string, the others are {role, content}.
    """
    num_useful = limits.max_tools // 2
    used = rng.sample(TOOLS, rng.randint(1, num_useful))
    others = [tool for tool in TOOLS if tool not in used]
    offered = [*used, *rng.sample(others, rng.randint(1, limits.max_tools - num_useful))]
    rng.shuffle(offered)
    tools = json.dumps([tool.schema(described=limits.described) for tool in offered], ensure_ascii=False)
    turns: list[dict[str, Any]] = [{"role": "system", "tools": tools}]
    chats_only = rng.random() < NO_CALL_SHARE
    for _ in range(rng.randint(1, limits.max_turns)):
        turns += _chat(rng) if chats_only or rng.random() < 0.2 else _calls(rng, used, limits.max_calls)
    return {str(number): turn for number, turn in enumerate(turns)}


def _chat(rng: random.Random) -> list[dict[str, Any]]:
    question, answer = rng.choice(CHAT)
    thought = "<think>\nNo tool is needed here.\n</think>\n\n" if rng.random() < 0.5 else ""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": thought + answer}]


def _calls(rng: random.Random, tools: list[Tool], max_calls: int) -> list[dict[str, Any]]:
    """Return the turns of one random request: the user's message, the calls, their results, and a closing message.

    One request in ten also has an empty turn, because the real data has such turns.
    """
    wanted = [_draw_call(rng, rng.choice(tools)) for _ in range(min(max_calls, rng.choice((1, 1, 1, 2, 3))))]
    requests = " Also, ".join(f"please {want.request()}." for want in wanted)
    thought = f"The user wants {len(wanted)} thing(s): {', '.join(want.tool.name for want in wanted)}."
    calls = f"<think>\n{thought}\n</think>\n\n[{', '.join(want.python() for want in wanted)}]"
    turns: list[dict[str, Any]] = [
        {"role": "user", "content": requests[0].upper() + requests[1:]},
        {"role": "assistant", "content": calls},
        {"role": "tool", "content": [_result(rng, want) for want in wanted]},
        {"role": "assistant", "content": "Done."},
    ]
    if rng.random() < 0.1:
        turns.insert(3, {"role": "assistant", "content": ""})
    return turns


def _draw_call(rng: random.Random, tool: Tool) -> RequestedCall:
    given = [argument for argument in tool.arguments if not argument.optional or rng.random() < 0.5]
    return RequestedCall(tool, {argument.name: argument.draw(rng) for argument in given})


def _result(rng: random.Random, want: RequestedCall) -> dict[str, Any]:
    return {"tool": want.tool.name, "ok": True, "id": rng.randint(1, 9999), "note": None}
