"""Conversations of several turns under a chat template: what it writes between turns, and whether it rewrites history.

Sampled tokens are never tokenised again. What follows a turn of the assistant is the text that the template itself
writes there (`following_text`). That continues the tokens so far only if the template leaves earlier turns as they
were. Qwen3's, for example, removes the thinking of earlier turns (`rewrites_history`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from egpo.chat_templates import render
from egpo.errors import EgpoError, InputError
from egpo.tags import THINK_TAGS, opens_thinking

History = Literal["keep", "per_turn"]
"""`keep`: an episode is one sequence, whatever the template would make of its earlier turns. `per_turn`: each turn of
the assistant is a sample of its own, with the whole conversation as the template renders it then."""
_MARK = "egpo-marks-this-answer"
_THOUGHT = f"{THINK_TAGS[0]}\nfirst thought\n{THINK_TAGS[1]}\n\n"
_TOOL_NAME = "look_around_here"
_CALL = f'<tool_call>\n{{"name": "{_TOOL_NAME}", "arguments": {{"at": "it"}}}}\n</tool_call>'
_TOOL = {
    "type": "function",
    "function": {
        "name": _TOOL_NAME,
        "description": "Look.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string", "description": "Where."}}},
    },
}
_FIX = "use a model whose chat template has tools, or set the template's variables in model.template"

Messages = Sequence[Mapping[str, Any]]
_shown: set[tuple[Any, ...]] = set()
_rewrites: dict[tuple[str, str], bool] = {}


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
    template refuses such a conversation, for example because it knows no role `tool`, or leaves the messages out.
    """
    for role in dict.fromkeys(str(message["role"]) for message in new):
        _require_role(tokenizer, role, tools, variables)
    mark = _mark(messages, new, tools)
    conversation = [*messages, {"role": "assistant", "content": mark}, *new]
    text = _rendered(tokenizer, conversation, new, tools, variables)
    _, found, rest = text.rpartition(mark)
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


def require_tools(tokenizer: Any, *, variables: Mapping[str, Any] | None = None) -> None:
    """Raise InputError if the template does not write the tools that it is given: the model would not know them."""
    key = ("tools", str(getattr(tokenizer, "chat_template", "")), repr(sorted((variables or {}).items())))
    if key in _shown:
        return
    user = [{"role": "user", "content": "question"}]
    if _TOOL_NAME not in _rendered(tokenizer, user, user, [_TOOL], variables):
        raise InputError("the chat template does not write the tools", fix=f"{_FIX}; toolbox can list them itself")
    _shown.add(key)


def _require_role(tokenizer: Any, role: str, tools: Sequence[Any] | None, variables: Mapping[str, Any] | None) -> None:
    """Raise InputError if the template leaves out a message of this role after an answer, as many do with `tool`."""
    key = (role, str(getattr(tokenizer, "chat_template", "")), bool(tools), repr(sorted((variables or {}).items())))
    if key in _shown:
        return
    new = [{"role": role, "name": _TOOL_NAME, "content": _MARK}]
    talk = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}, *new]
    if _MARK not in _rendered(tokenizer, talk, new, tools, variables):
        raise InputError(f"the chat template leaves out messages with the role `{role}`", fix=_FIX)
    _shown.add(key)


def _rendered(
    tokenizer: Any,
    conversation: Messages,
    new: Messages,
    tools: Sequence[Any] | None,
    variables: Mapping[str, Any] | None,
) -> str:
    try:
        return render(tokenizer, conversation, tools=tools, variables=variables)
    except EgpoError:
        raise
    except Exception as error:  # a template is a program from outside
        roles = ", ".join(str(message["role"]) for message in new)
        why = " ".join(str(error).split())[:200]
        raise InputError(f"the chat template refuses a conversation with {roles}: {why}", fix=_FIX) from error


def _mark(*parts: Any) -> str:
    """Return a word that occurs nowhere in these messages, though a tool may return what looks like one."""
    text, mark = json.dumps(parts, ensure_ascii=False, default=str), _MARK
    while mark in text:
        mark += "-"
    return mark


def rewrites_history(tokenizer: Any, *, variables: Mapping[str, Any] | None = None) -> bool:
    """Return whether the template renders a turn differently from what was sampled, once the conversation continues.

    Tried with an answer and with a call and its result, after thinking and without, with and without tools. Kinds of
    conversations that the template refuses are left out. Tried once for a template and its variables.
    """
    key = (str(getattr(tokenizer, "chat_template", "")), repr(sorted((variables or {}).items())))
    if key not in _rewrites:
        _rewrites[key] = _try_rewriting(tokenizer, variables)
    return _rewrites[key]


def _try_rewriting(tokenizer: Any, variables: Mapping[str, Any] | None) -> bool:
    user, again = ({"role": "user", "content": text} for text in ("first question", "second question"))
    result = {"role": "tool", "name": _TOOL_NAME, "content": "nothing"}
    for tools in (None, [_TOOL]):
        for thought in (_THOUGHT, ""):
            answer, call = ({"role": "assistant", "content": thought + text} for text in ("first answer", _CALL))
            for conversation in ([user, answer, again], [user, call, result], [user, call, result, answer, again]):
                if _is_rewritten(tokenizer, conversation, tools, variables):
                    return True
    return False


def _is_rewritten(
    tokenizer: Any, conversation: Messages, tools: Sequence[Any] | None, variables: Mapping[str, Any] | None
) -> bool:
    """Return whether a prompt and the text that was sampled for it are not the beginning of the next prompt."""
    places = [place for place, message in enumerate(conversation) if message["role"] == "assistant"]
    talk = [dict(message) for message in conversation]
    sampled: list[str] = []
    try:
        for place in places:
            prompt = render(tokenizer, talk[:place], tools=tools, variables=variables)
            thinks, is_open = talk[place]["content"].startswith(THINK_TAGS[0]), opens_thinking(prompt)
            if is_open != thinks and (is_open or prompt.rstrip().endswith(THINK_TAGS[1])):
                return False  # the prompt asks for thinking and there is none, or has ended it already
            if is_open:
                talk[place]["content"] = talk[place]["content"].removeprefix(THINK_TAGS[0]).lstrip("\n")
            sampled.append(prompt + talk[place]["content"])
        prompts = [render(tokenizer, talk[:end], tools=tools, variables=variables) for end in [*places[1:], len(talk)]]
    except EgpoError:
        raise
    except Exception:  # such a conversation cannot occur with this template
        return False
    return not all(later.startswith(text) for text, later in zip(sampled, prompts, strict=True))
