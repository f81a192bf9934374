"""A conversation as the chat template writes it, cut so that every learned word is read as it will be at inference."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from egpo.chat_templates import marked_spans, render
from egpo.data import Dropped
from egpo.errors import EgpoError
from egpo.local.sft.conversations import Conversation, Turn


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
