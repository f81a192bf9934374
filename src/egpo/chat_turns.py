"""Conversations of several turns under a chat template: what it writes between turns, and whether it rewrites history.

Sampled tokens are never tokenised again. What follows a turn of the assistant is the text that the template itself
writes there (`following_text`). That continues the tokens so far only if the template leaves earlier turns as they
were. Qwen3's, for example, removes the thinking of earlier turns (`rewrites_history`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from egpo.chat_templates import render
from egpo.errors import EgpoError, InputError

History = Literal["keep", "per_turn"]
"""`keep`: an episode is one sequence, whatever the template would make of its earlier turns. `per_turn`: each turn of
the assistant is a sample of its own, with the whole conversation as the template renders it then."""
_MARK = "egpo-marks-this-answer"
_THOUGHT = "<think>\nfirst thought\n</think>\n\n"
_CALL = '<tool_call>\n{"name": "look", "arguments": {"at": "it"}}\n</tool_call>'
_TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string", "description": "Where."}}},
    },
}

Messages = Sequence[Mapping[str, Any]]


def following_text(
    tokenizer: Any,
    messages: Messages,
    new: Messages,
    *,
    tools: Sequence[Any] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> str:
    """Return what the template writes after an answer to `messages` that is followed by the messages `new`.

    The text begins with the end of the assistant's turn, and ends with the start of its next one. InputError if the
    template refuses such a conversation, for example because it knows no role `tool`.
    """
    conversation = [*messages, {"role": "assistant", "content": _MARK}, *new]
    try:
        text = render(tokenizer, conversation, tools=tools, variables=variables)
    except EgpoError:
        raise
    except Exception as error:  # a template is a program from outside
        roles = ", ".join(str(message["role"]) for message in new)
        fix = "use a model whose chat template has tools, or set the template's variables in model.template"
        raise InputError(f"the chat template refuses a conversation with {roles}: {error}", fix=fix) from error
    _, found, rest = text.rpartition(_MARK)
    if not found:
        raise InputError("the chat template does not write the assistant's answer", fix="use another chat template")
    return rest


@dataclass(frozen=True)
class Following:
    """The tokens that follow a turn of the assistant, and the text that they were made from."""

    tokens: tuple[int, ...]
    text: str


def following_tokens(
    tokenizer: Any,
    messages: Messages,
    new: Messages,
    last: int,
    *,
    tools: Sequence[Any] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> Following:
    """Return the tokens of `following_text`, for a turn whose last sampled token is `last`.

    If that token is the end of the turn, which the template writes too, it is not repeated.
    """
    text = following_text(tokenizer, messages, new, tools=tools, variables=variables)
    tokens = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    return Following(tokens[1:] if tokens[0] == last else tokens, text)


def rewrites_history(tokenizer: Any, *, variables: Mapping[str, Any] | None = None) -> bool:
    """Return whether the template renders earlier turns of a conversation differently once it continues.

    Tried with an answer after thinking, and with a call after thinking and its result, with and without tools.
    """
    user, again = ({"role": "user", "content": text} for text in ("first question", "second question"))
    answer, call = ({"role": "assistant", "content": _THOUGHT + text} for text in ("first answer", _CALL))
    result = {"role": "tool", "name": "look", "content": "nothing"}
    conversations = ([user, answer, again], [user, call, result], [user, call, result, answer, again])
    for tools in (None, [_TOOL]):
        for conversation in conversations:
            if _is_rewritten(tokenizer, conversation, tools, variables):
                return True
    return False


def _is_rewritten(
    tokenizer: Any, conversation: Messages, tools: Sequence[Any] | None, variables: Mapping[str, Any] | None
) -> bool:
    ends = [place + 1 for place, message in enumerate(conversation) if message["role"] == "assistant"]
    try:
        texts = [render(tokenizer, conversation[:end], tools=tools, variables=variables, prompt=False) for end in ends]
        whole = render(tokenizer, conversation, tools=tools, variables=variables)
    except EgpoError:
        raise
    except Exception:  # such a conversation cannot occur with this template
        return False
    # A template may end a conversation with a line break that it does not write between turns.
    return not all(later.startswith(text.rstrip("\n")) for text, later in zip(texts, [*texts[1:], whole], strict=True))
