"""The BFCL task: single-turn cases of the Berkeley Function-Calling Leaderboard, judged as its AST checker does.

The module also writes the gold answers: calls that BFCL's possible answers allow, after a short thinking text that
follows from the case by rules.
"""

import json
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from egpo.chat_templates import render
from egpo.data import Dropped, Record, Row
from egpo.data.bfcl_cases import BFCL_WHEEL, open_cases, shown_tool
from egpo.data.calls import CallsError, hermes_text
from egpo.data.conversations import INSTRUCTION
from egpo.data.sources import Source
from egpo.data.tokens import load_tokenizer
from egpo.data.tool_prompt import qwen3_system_text
from egpo.errors import InputError
from egpo.rewards.answers import split_thinking
from egpo.rewards.tool_calls import judge_tool_calls
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS
from egpo.tasks.protocol import Problem
from egpo.tasks.sourced import Sizes, SourcedTask, require_at_least, require_choice
from egpo.tool_calls.calls import Call, checked_call, same_value

REFUSAL = "None of the tools can do that."

Mode = Literal["strict_think", "plain", "shaped"]


class Bfcl(SourcedTask):
    """A task of BFCL's single-turn cases: one request, some tools, and the calls that are right for it, or none.

    `source` is a folder that `egpo prepare` wrote; without one, the cases are read from the wheel of `bfcl-eval`.
    `train` and `test` are numbers of cases at most, and `seed` determines their order. `mode` of the reward is
    "strict_think", "plain" or "shaped". `instruction` is the text before the tools; None: one that asks for thinking.
    Descriptions of tools are shortened to `description_chars` characters; None: never; 0: left out. Cases whose prompt
    has more than `max_prompt_tokens` tokens, or whose gold answer has more than `max_answer_tokens`, are left out;
    `tokenizer` is the model whose tokens are counted.
    """

    data_source: ClassVar[str] = "bfcl"
    generated_data_source: ClassVar[str] = "bfcl"
    ability: ClassVar[str] = "function_calling"
    generated_sizes: ClassVar[Sizes] = Sizes(train=823, test=374)
    default_source: ClassVar[str] = f"{BFCL_WHEEL.requirement} (sha256 {BFCL_WHEEL.wheel_sha256[:12]})"
    benchmark: ClassVar[str] = "bfcl"
    """The benchmark of which the problems are cases; the key of a problem is the id of its case."""
    test_file: ClassVar[str] = "test"
    """The file of prepared data with the test problems, without its suffix."""

    def __init__(
        self,
        *,
        mode: Mode = "strict_think",
        instruction: str | None = None,
        description_chars: int | None = None,
        tokenizer: str | None = None,
        max_prompt_tokens: int | None = None,
        max_answer_tokens: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        require_choice("bfcl", "mode", mode, get_args(Mode))
        _require_text(instruction=instruction, tokenizer=tokenizer)
        limits = {"max_prompt_tokens": max_prompt_tokens, "max_answer_tokens": max_answer_tokens}
        require_at_least("bfcl", 1, **{name: limit for name, limit in limits.items() if limit is not None})
        if description_chars is not None:
            require_at_least("bfcl", 0, description_chars=description_chars)
        if tokenizer is None and any(limit is not None for limit in limits.values()):
            fix = "set `tokenizer` to the model that is trained"
            raise InputError("a limit in tokens needs a tokenizer", where="task bfcl", fix=fix)
        self.mode, self._instruction, self._description_chars = mode, instruction, description_chars
        self._tokenizer_name, self._max_tokens = tokenizer, (max_prompt_tokens, max_answer_tokens)

    def open(self, source: str | None, seed: int) -> Source:
        return open_cases(source, seed=seed)

    def draw(self, rng: random.Random) -> Problem:
        raise InputError("BFCL's cases are not generated", where="task bfcl", fix="give fewer rows with train and test")

    def read(self, record: Record, index: int) -> Problem | Dropped:
        case = record.value
        if case["in_other_split"] if case["part"] == "train" else False:
            return Dropped("in_other_split")
        answer = gold_text(case)
        if answer is None:
            return Dropped("answer_not_accepted")
        problem = self._problem(case, answer)
        return self._length_fault(problem) or problem

    def key(self, row: Row) -> str:
        return str(row.extra.get("case") or "")

    def judge(self, problem: Problem, text: str) -> Verdict:
        return judge_tool_calls(text, problem.ground_truth, mode=self.mode, tools=str(problem.extra["tools"]))

    def gold(self, problem: Problem) -> str:
        """Return the stored answer. In mode `plain` its thinking is text before the calls, without tags."""
        answer = str(problem.extra["answer"])
        if self.mode != "plain":
            return answer
        thought = split_thinking(answer)
        return f"{thought.thinking.strip()}\n{thought.answer.strip()}"

    def benchmark_cases(self) -> dict[str, list[str]]:
        """Return the ids of the training cases by benchmark, which an evaluation on it must leave out."""
        return {self.benchmark: [problem.key for problem in self.problems("train")]}

    def _problem(self, case: Mapping[str, Any], answer: str) -> Problem:
        own = "\n\n".join(message["content"] for message in case["question"][0] if message["role"] == "system")
        turns = [dict(message) for message in case["question"][0] if message["role"] != "system"]
        instruction = INSTRUCTION if self._instruction is None else self._instruction
        tools = [shown_tool(tool, self._description_chars) for tool in case["function"]]
        system = qwen3_system_text("\n\n".join(part for part in (instruction, own) if part), tools)
        extra = {
            "tools": json.dumps(case["function"], ensure_ascii=False),
            "answer": answer,
            "case": case["id"],
            "category": case["category"],
            "part": case["part"],
        }
        messages = ({"role": "system", "content": system}, *turns)
        return Problem(case["id"], messages, json.dumps(case["answers"], ensure_ascii=False), self.ability, extra)

    @cached_property
    def _tokenizer(self) -> Any:
        assert self._tokenizer_name is not None
        return load_tokenizer(self._tokenizer_name)

    def _length_fault(self, problem: Problem) -> Dropped | None:
        longest_prompt, longest_answer = self._max_tokens
        if longest_prompt is not None and self._num_tokens(render(self._tokenizer, problem.messages)) > longest_prompt:
            return Dropped("prompt_too_long")
        # One token more: the one that ends the response.
        if longest_answer is not None and self._num_tokens(str(problem.extra["answer"])) + 1 > longest_answer:
            return Dropped("answer_too_long")
        return None

    def _num_tokens(self, text: str) -> int:
        # Not verbose: transformers would warn of texts that are longer than the context, which are then left out.
        return len(self._tokenizer.encode(text, add_special_tokens=False, verbose=False))

    def _drawn(self) -> dict[str, list[Problem]]:
        source = self.open(None, self.seed)
        found = {split: source.readers[file]() for split, file in (("train", "train"), ("test", self.test_file))}
        read = {split: [self.read(record, 0) for record in records] for split, records in found.items()}
        return {
            split: [problem for problem in problems if isinstance(problem, Problem)][: self._limits[split]]
            for split, problems in read.items()
        }

    def _stored(self, directory: Path, split: str) -> Sequence[Problem]:
        return self._stored_file(directory, self.test_file if split == "test" else split, self._limits[split])


class BfclUnseen(Bfcl):
    """The task `bfcl` with other test problems: the cases of BFCL's live categories, which are never trained on.

    Its prepared data is that of `bfcl`.
    """

    test_file: ClassVar[str] = "unseen"
    data_of: ClassVar[str | None] = "bfcl"


def _require_text(**settings: str | None) -> None:
    for name, value in settings.items():
        if not isinstance(value, str | None):
            raise InputError(f"{name}={value!r:.60} is not text", where="task bfcl", fix="give text, or null")


@dataclass(frozen=True)
class GoldCall:
    """A right call to a tool, and where its arguments come from: the names of the arguments by origin."""

    call: Call
    origins: Mapping[str, str]


ORIGINS = {"request": "In the request", "default": "By default", "other": "To work out"}
"""Where the value of an argument comes from. `request`: its text is in the request. `default`: it is the default in the
tool's schema, and not in the request. `other`: any other value."""


def gold_text(case: Mapping[str, Any]) -> str | None:
    """Return a response that earns full reward in every mode; None if the case has no right answer.

    Of the allowed values, one whose text is in the request is preferred, otherwise the first is taken. Arguments that
    may be left out are left out.
    """
    request = " ".join(message["content"] for message in case["question"][0] if message["role"] != "assistant")
    tools = {tool["name"]: tool.get("parameters") or {} for tool in case["function"]}
    try:
        calls = [
            _gold_call(name, allowed, tools[name], request)
            for answer in case["answers"]
            for name, allowed in answer.items()
        ]
        final = hermes_text(gold.call for gold in calls) if calls else REFUSAL
    except (KeyError, CallsError):
        return None
    text = f"{THINK_TAGS[0]}\n{_thinking(calls)}\n{THINK_TAGS[1]}\n\n{final}"
    verdict = judge_tool_calls(text, case["answers"], tools=case["function"])
    return text if verdict.correct else None


def _thinking(calls: Sequence[GoldCall]) -> str:
    """Return which tools fit, how often each is called, and where its arguments come from: a line per tool."""
    if not calls:
        return "No tool fits the request."
    lines = []
    for name in dict.fromkeys(gold.call.name for gold in calls):
        same = [gold for gold in calls if gold.call.name == name]
        counted = f", {len(same)} calls" if len(same) > 1 else ""
        origins = {argument: _joint(gold.origins.get(argument) for gold in same) for argument in _arguments(same)}
        parts = [
            f" {title}: {', '.join(named)}."
            for origin, title in ORIGINS.items()
            if (named := [argument for argument, found in origins.items() if found == origin])
        ]
        lines.append(f"{name} fits{counted}.{''.join(parts)}")
    return "\n".join(lines)


def _arguments(calls: Iterable[GoldCall]) -> list[str]:
    return list(dict.fromkeys(argument for gold in calls for argument in gold.origins))


def _joint(origins: Iterable[str | None]) -> str:
    """Return the one origin of an argument in several calls; `other` if they differ."""
    found = {origin for origin in origins if origin is not None}
    return found.pop() if len(found) == 1 else "other"


def _gold_call(name: str, allowed: Mapping[str, Any], schema: Mapping[str, Any], request: str) -> GoldCall:
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    known = {key: values for key, values in allowed.items() if key in properties}
    arguments = _chosen(known, request, required)
    origins = {key: _origin(value, properties[key], request) for key, value in arguments.items()}
    return GoldCall(checked_call(name, arguments), origins)


def _chosen(allowed: Mapping[str, Any], request: str, required: Sequence[str] = ()) -> dict[str, Any]:
    """Return one allowed value for each parameter that may not be left out. An allowed "" means that it may."""
    return {
        key: _preferred([_plain(value, request) for value in given], request)
        for key, values in allowed.items()
        if (given := _given(key, values, required))
    }


def _given(key: str, values: Any, required: Sequence[str] = ()) -> list[Any]:
    """Return the values to choose from; none for a key that may be left out. A single value stands for itself."""
    if not isinstance(values, list):
        return [values]
    if "" in values and key not in required:
        return []
    # For a required parameter without another value, "" is the value itself.
    return [value for value in values if value != ""] or list(values)


def _preferred(values: Sequence[Any], request: str) -> Any:
    return next((value for value in values if is_in(value, request)), values[0])


def _plain(allowed: Any, request: str) -> Any:
    """Return a value for an allowed one. A dictionary among BFCL's answers, also in a list, lists the allowed values of
    each key; below that, values stand for themselves."""
    if isinstance(allowed, Mapping):
        return {key: _preferred(given, request) for key, values in allowed.items() if (given := _given(key, values))}
    return [_plain(item, request) for item in allowed] if isinstance(allowed, list) else allowed


def _origin(value: Any, schema: Mapping[str, Any], request: str) -> str:
    if is_in(value, request):
        return "request"
    return "default" if "default" in schema and same_value(value, schema["default"]) else "other"


def is_in(value: Any, request: str) -> bool:
    """Return whether the text of a value is in the request, as whole words; for a list or object, that of each item."""
    if isinstance(value, Mapping):
        return bool(value) and all(is_in(inner, request) for inner in value.values())
    if isinstance(value, list):
        return bool(value) and all(is_in(item, request) for item in value)
    if isinstance(value, bool) or value is None or value == "":
        return False
    if isinstance(value, str):
        return re.search(rf"(?<!\w){re.escape(value)}(?!\w)", request, re.IGNORECASE) is not None
    texts = (str(value), f"{value:g}", f"{value:,}")
    # 5 is not in 5.5, in 1,005 or in 3.5.
    return any(re.search(rf"(?<![\w.])(?<!\d,){re.escape(text)}(?!\w|[.,]\d)", request) for text in texts)
