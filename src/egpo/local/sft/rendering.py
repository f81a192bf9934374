"""Conversations out of a file, in the form that chat templates read.

A conversation as the chat template writes it, cut so that every learned word is read as it will be at inference.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from egpo.chat_templates import marked_spans, render
from egpo.data import Dropped, Record, read_records
from egpo.data.calls import CallsError, parse_openai
from egpo.data.conversations import UnfitError, content_text
from egpo.data.conversion import stored_answer
from egpo.data.messages import require_messages
from egpo.data.rows import parse_row
from egpo.data.tool_prompt import Tool, parse_tools
from egpo.errors import EgpoError

Turn = dict[str, Any]
"""One message: `role`, `content`, and what else its template may read (`tool_calls`, `reasoning_content`, ...)."""


@dataclass(frozen=True)
class Conversation:
    """Up to its last assistant turn: what follows that one teaches nothing."""

    messages: tuple[Turn, ...]
    tools: tuple[Tool, ...]
    where: str

    @property
    def answers(self) -> list[int]:
        """Which of the messages the assistant says, in answer to something: a first word to nobody is read only."""
        return [i for i, message in enumerate(self.messages) if i and message["role"] == "assistant"]


def read_conversations(path: Path) -> Iterator[Conversation | Dropped]:
    """Every record of a JSON, JSON lines or parquet file, or why it teaches nothing.

    A record holds `messages` (and `tools`), or is a row of `egpo prepare`, whose answer then is the last turn.
    """
    return (_conversation(record) for record in read_records(path))


def _conversation(record: Record) -> Conversation | Dropped:
    if "messages" not in record.value and "reward_model" in record.value:
        return _prepared(record)
    messages = require_messages(record, _FORMS)
    if not any(message.get("role") == "assistant" for message in messages[1:]):
        return Dropped("no_assistant_turn")
    try:
        tools = parse_tools(record.value.get("tools"))
    except (ValueError, TypeError, RecursionError):
        return Dropped("bad_tools")
    try:
        return _up_to_last_answer([_turn(message) for message in messages], tools, record.where)
    except CallsError:
        return Dropped("bad_calls")
    except UnfitError as unfit:
        return Dropped(unfit.reason)


def _prepared(record: Record) -> Conversation | Dropped:
    row = parse_row(record.value, record.where)
    answer = stored_answer(row)
    if isinstance(answer, Dropped):  # a row to be judged, without an answer to learn
        return Dropped("no_assistant_turn")
    return Conversation((*row.prompt, {"role": "assistant", "content": answer}), (), record.where)


_FORMS = "give conversations in OpenAI's form, or parquet of `egpo prepare`"


def _up_to_last_answer(messages: list[Turn], tools: list[Tool], where: str) -> Conversation:
    whole = Conversation(tuple(messages), tuple(tools), where)
    return Conversation(whole.messages[: whole.answers[-1] + 1], whole.tools, where)


def _turn(message: Mapping[str, Any]) -> Turn:
    # Parquet fills every key of every message: a template that asks `is defined` must not see the empty ones.
    turn = {key: value for key, value in message.items() if value is not None}
    if not isinstance(turn.get("role"), str):
        raise UnfitError("unknown_role")
    turn["content"] = _content(turn)
    if turn.pop("tool_calls", None):
        turn["tool_calls"] = _calls(message["tool_calls"])
    return turn


def _content(turn: Turn) -> str:
    try:
        return content_text(turn.get("content"))
    except UnfitError:
        if turn["role"] == "tool":  # what a function gave back may be any value
            return json.dumps(turn["content"], ensure_ascii=False)
        raise


def _calls(calls: Any) -> list[dict[str, Any]]:
    """Arguments as an object: a template that writes JSON would write their text in quotes."""
    if not isinstance(calls, list):
        raise CallsError("`tool_calls` is not a list")
    return [
        {key: value for key, value in call.items() if key in ("id", "type") and value is not None}
        | {"type": "function", "function": {"name": read.name, "arguments": dict(read.arguments)}}
        for call, read in zip(calls, parse_openai(calls), strict=True)
    ]


@dataclass(frozen=True)
class Answer:
    """One assistant turn: what the model reads before it speaks, and `text`, that and what it says."""

    prompt: str
    text: str


@dataclass(frozen=True)
class Rendering:
    """One example: the conversation up to its last answer, and the answers that it teaches, in order.

    The text of each answer but the last is a prefix of the next one's prompt.
    """

    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Template:
    """A tokenizer's chat template, with the recipe's variables for it."""

    tokenizer: PreTrainedTokenizerBase
    variables: Mapping[str, Any]

    def render(self, messages: Sequence[Turn], conversation: Conversation, *, prompt: bool = False) -> str:
        """The text of these messages; with `prompt`, up to where the assistant starts to speak."""
        return render(self.tokenizer, messages, tools=conversation.tools, prompt=prompt, variables=self.variables)

    def marks_answers(self, conversation: Conversation) -> bool:
        """Whether it says itself which words are the assistant's, by `{% generation %}`."""
        # A tokenizer may have another template for conversations with tools.
        source = str(self.tokenizer.get_chat_template(tools=list(conversation.tools) or None))
        return bool(re.search(r"\{%-?\s*generation\s*-?%\}", source))

    def marks(self, messages: Sequence[Turn], conversation: Conversation) -> list[int]:
        """Where the marked parts start, in characters of the text."""
        spans = marked_spans(self.tokenizer, messages, tools=conversation.tools, variables=self.variables)
        return [start for start, _ in spans]


_REFUSALS = (TemplateError, TypeError, ValueError, AttributeError, LookupError)
"""What a template raises on turns that it does not like, and what Python raises in its expressions."""


def renderings(conversation: Conversation, template: Template) -> Iterator[Rendering | Dropped]:
    """One example where the template writes each earlier answer as it wrote it when that was the last; else one for
    each answer. (Qwen3's takes the thinking out of earlier turns: nobody will ever be asked to speak so.)

    An answer starts after the prompt that asks for it, and not before the words that the template marks as the
    assistant's, if it does. An answer whose text does not go on from its prompt starts with the marked words; without
    marks it cannot be learned: such a template opens the assistant's turn with words that it does not keep.
    """
    try:
        answers = [_answer(conversation, at, template) for at in conversation.answers]
        answers[-1].text.encode()
    except UnicodeEncodeError:
        yield Dropped("lone_surrogate")
        return
    except EgpoError:  # the template breaks a limit, on whatever it is given
        raise
    except _REFUSALS:
        yield Dropped("template_refused")
        return
    if not all(_writes_calls(conversation.messages[at], answers[i]) for i, at in enumerate(conversation.answers)):
        yield Dropped("calls_not_written")
        return
    if all(map(_goes_on, answers)) and all(then.prompt.startswith(now.text) for now, then in pairwise(answers)):
        yield Rendering(tuple(answers))
        return
    for answer in answers:
        yield Rendering((answer,)) if _goes_on(answer) else Dropped("not_a_continuation")


def _answer(conversation: Conversation, at: int, template: Template) -> Answer:
    before, until = conversation.messages[:at], conversation.messages[: at + 1]
    prompt, text = template.render(before, conversation, prompt=True), template.render(until, conversation)
    if template.marks_answers(conversation):
        num_earlier = len(template.marks(before, conversation))
        marked = text[: template.marks(until, conversation)[num_earlier]]
        # What the prompt holds is given at inference, whatever is marked.
        prompt = max(prompt, marked, key=len) if text.startswith(prompt) else marked
    return Answer(prompt, text)


def _writes_calls(message: Turn, answer: Answer) -> bool:
    """A template that knows no tools passes over calls, without an error: the model would learn to say nothing."""
    said = answer.text.removeprefix(answer.prompt)
    return all(call["function"]["name"] in said for call in message.get("tool_calls", ()))


def _goes_on(answer: Answer) -> bool:
    return answer.text.startswith(answer.prompt) and len(answer.text) > len(answer.prompt)
