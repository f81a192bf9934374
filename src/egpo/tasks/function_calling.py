"""Function calling: the right calls, with the right arguments, or none where none is right."""

import json
import random
from dataclasses import replace
from typing import Any, ClassVar, Literal, get_args

from egpo.data import CONVERTERS, Dropped, Record, Row, ToolStyle
from egpo.data.hardgen import convert_hardgen
from egpo.data.spool import prompt_key
from egpo.errors import InputError
from egpo.rewards.thinking import split_thinking
from egpo.rewards.tool_calls import judge_tool_calls
from egpo.rewards.verdict import Verdict
from egpo.tasks.protocol import Problem
from egpo.tasks.sourced import RecordReader, Sizes, SourcedTask, require_choice
from egpo.tasks.tool_conversations import draw_conversation

REFUSAL = "None of the tools is needed for that."

Mode = Literal["strict_think", "plain", "shaped"]


class FunctionCalling(SourcedTask):
    """Sources are raw conversations, OpenAI messages or xlam rows, told apart by their first record. `mode` is the
    reward's: "strict_think", "plain" or "shaped"."""

    data_source: ClassVar[str] = "function_calling"
    generated_data_source: ClassVar[str] = "hardgen"
    ability: ClassVar[str] = "function_calling"
    generated_sizes: ClassVar[Sizes] = Sizes(train=950, test=50)
    version: ClassVar[int] = 2

    def __init__(self, *, mode: Mode = "strict_think", **settings: Any) -> None:
        super().__init__(**settings)
        require_choice("function_calling", "mode", mode, get_args(Mode))
        self.mode = mode

    def draw(self, rng: random.Random) -> Problem:
        while True:
            row = convert_hardgen(Record(draw_conversation(rng), "a generated conversation"), 0, ToolStyle())
            if isinstance(row, Row):
                extra = {key: row.extra[key] for key in ("tools", "answer")}
                return self.problem_of(replace(row, extra=extra))

    def read(self, record: Record, index: int) -> Problem | Dropped:
        row = CONVERTERS[_kind(record)](record, index, ToolStyle())
        return row if isinstance(row, Dropped) else self.problem_of(row)

    def reader(self) -> RecordReader:
        """Refuses a source in which two formats are mixed."""
        first = ""

        def read(record: Record, index: int) -> Problem | Dropped:
            nonlocal first
            kind = _kind(record)
            first = first or kind
            if kind != first:
                what = f"a {kind} record among {first} records"
                raise InputError(what, where=record.where, fix="one source, one format: split the file")
            return self.read(record, index)

        return read

    def key(self, row: Row) -> str:
        """A converted row is its whole prompt. A generated one is its last request with the calls that it asks for:
        the same request after other turns, or beside other tools, is the same problem."""
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
        """The conversation's own answer; a thought is put before it where the mode asks for one and it has none."""
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
