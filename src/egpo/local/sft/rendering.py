"""Convert the records of a file to prompts and answers, as the chat template writes them.

A conversation is cut so that every learned token has the context that it will have at inference.
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
"""One message: `role`, `content`, and other fields that a template may read (`tool_calls`, `reasoning_content`)."""


@dataclass(frozen=True)
class Conversation:
    """A conversation up to its last assistant turn. Later turns are not needed."""

    messages: tuple[Turn, ...]
    tools: tuple[Tool, ...]
    where: str

    @property
    def answers(self) -> list[int]:
        """The indices of the learned turns: the assistant's, except a first message, which answers nothing."""
        return [i for i, message in enumerate(self.messages) if i and message["role"] == "assistant"]


def read_conversations(path: Path) -> Iterator[Conversation | Dropped]:
    """Yield the conversation of each record of a JSON, JSON lines or parquet file, or why it cannot be learned.

    A record has `messages` (and `tools`), or was written by `egpo prepare`; then its stored answer is the last turn.
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
    if isinstance(answer, Dropped):  # a row with a judge but without a stored answer
        return Dropped("no_assistant_turn")
    return Conversation((*row.prompt, {"role": "assistant", "content": answer}), (), record.where)


_FORMS = "give conversations in OpenAI's format, or a parquet file written by `egpo prepare`"


def _up_to_last_answer(messages: list[Turn], tools: list[Tool], where: str) -> Conversation:
    whole = Conversation(tuple(messages), tuple(tools), where)
    return Conversation(whole.messages[: whole.answers[-1] + 1], whole.tools, where)


def _turn(message: Mapping[str, Any]) -> Turn:
    # In parquet every message has every key: a template that tests `is defined` must not see the empty ones.
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
        if turn["role"] == "tool":  # a function may return any value
            return json.dumps(turn["content"], ensure_ascii=False)
        raise


def _calls(calls: Any) -> list[dict[str, Any]]:
    """Return the calls with their arguments as dicts.

    Arguments may be stored as a JSON string. A template that converts arguments to JSON would quote that string again.
    """
    if not isinstance(calls, list):
        raise CallsError("`tool_calls` is not a list")
    return [
        {key: value for key, value in call.items() if key in ("id", "type") and value is not None}
        | {"type": "function", "function": {"name": read.name, "arguments": dict(read.arguments)}}
        for call, read in zip(calls, parse_openai(calls), strict=True)
    ]


@dataclass(frozen=True)
class Answer:
    """One assistant turn: `prompt` is the text before it, `text` is the prompt followed by the turn."""

    prompt: str
    text: str


@dataclass(frozen=True)
class Rendering:
    """One example: the answers of a conversation that are learned together, in order.

    The text of each answer but the last is a prefix of the next one's prompt.
    """

    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class ConversationTemplate:
    """A tokenizer's chat template, with the variables of the recipe (`model.template`)."""

    tokenizer: PreTrainedTokenizerBase
    variables: Mapping[str, Any]

    def render(self, messages: Sequence[Turn], conversation: Conversation, *, prompt: bool = False) -> str:
        """Return the text of these messages; with `prompt`, followed by the generation prompt."""
        return render(self.tokenizer, messages, tools=conversation.tools, prompt=prompt, variables=self.variables)

    def marks_answers(self, conversation: Conversation) -> bool:
        """Return whether the template marks the assistant's text with `{% generation %}`."""
        # A tokenizer may have another template for conversations with tools.
        source = str(self.tokenizer.get_chat_template(tools=list(conversation.tools) or None))
        return bool(re.search(r"\{%-?\s*generation\s*-?%\}", source))

    def marks(self, messages: Sequence[Turn], conversation: Conversation) -> list[int]:
        """Return where the template's `{% generation %}` blocks start, as character positions in the rendered text."""
        spans = marked_spans(self.tokenizer, messages, tools=conversation.tools, variables=self.variables)
        return [start for start, _ in spans]


_REFUSALS = (TemplateError, TypeError, ValueError, AttributeError, LookupError)
"""Exceptions with which a chat template rejects a conversation, and those of Python in the template's expressions."""


def renderings(conversation: Conversation, template: ConversationTemplate) -> Iterator[Rendering | Dropped]:
    """Yield one example if the template writes earlier answers in the same way as the last, else one per answer.

    (Qwen3's template removes the thinking of earlier turns: the model never generates a turn in that form.)

    Normally the conversation rendered up to an answer begins with the generation prompt for that answer. The answer
    then starts where this prompt ends, or at the template's `{% generation %}` mark, whichever is later. Some templates
    end the generation prompt with text that the rendered conversation lacks. Then the answer starts at the mark; if the
    template has no marks, the start is unknown, and the answer cannot be used for training.
    """
    try:
        answers = [_answer(conversation, at, template) for at in conversation.answers]
        answers[-1].text.encode()
    except UnicodeEncodeError:
        yield Dropped("lone_surrogate")
        return
    except EgpoError:  # the template exceeds a limit on any input
        raise
    except _REFUSALS:
        yield Dropped("template_refused")
        return
    if not all(_writes_calls(conversation.messages[at], answers[i]) for i, at in enumerate(conversation.answers)):
        yield Dropped("calls_not_written")
        return
    if all(map(_continues_prompt, answers)) and all(
        then.prompt.startswith(now.text) for now, then in pairwise(answers)
    ):
        yield Rendering(tuple(answers))
        return
    for answer in answers:
        yield Rendering((answer,)) if _continues_prompt(answer) else Dropped("not_a_continuation")


def _answer(conversation: Conversation, at: int, template: ConversationTemplate) -> Answer:
    before, until = conversation.messages[:at], conversation.messages[: at + 1]
    prompt, text = template.render(before, conversation, prompt=True), template.render(until, conversation)
    if template.marks_answers(conversation):
        num_earlier = len(template.marks(before, conversation))
        marked = text[: template.marks(until, conversation)[num_earlier]]
        # Text that is part of the prompt is never learned, even if it is marked: it is given at inference.
        prompt = max(prompt, marked, key=len) if text.startswith(prompt) else marked
    return Answer(prompt, text)


def _writes_calls(message: Turn, answer: Answer) -> bool:
    """Return whether the rendered answer contains the names of its tool calls.

    A template without support for tools leaves calls out without an error: the model would learn an empty answer.
    """
    said = answer.text.removeprefix(answer.prompt)
    return all(call["function"]["name"] in said for call in message.get("tool_calls", ()))


def _continues_prompt(answer: Answer) -> bool:
    return answer.text.startswith(answer.prompt) and len(answer.text) > len(answer.prompt)
