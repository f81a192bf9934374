"""Converter of OpenAI conversations: `messages` and `tools`, with calls in `tool_calls` or as text."""

from collections.abc import Mapping
from typing import Any

from egpo.data.calls import CallsError, decode_strict, parse_openai, tool_responses
from egpo.data.conversations import Reply, ToolStyle, UnfitError, content_text, read_reply, row_of
from egpo.data.readers import Record
from egpo.data.rows import Dropped, Message, Row
from egpo.data.tool_prompt import Tool, parse_tools, tools_in
from egpo.errors import InputError

DATA_SOURCE = "function_calling"
_TOOL_ROLES = ("tool", "function")
_SYSTEM_ROLES = ("system", "developer")


def convert_messages(record: Record, source_row: int, style: ToolStyle) -> Row | Dropped:
    """Convert one conversation in OpenAI's format to a row, or return the reason to drop it.

    The last message must be from the assistant: its calls are the ground truth, and the messages before it are the
    prompt. If the last message has no call, the ground truth is "": the correct answer then contains no call.
    """
    messages = require_messages(record, _OTHER_FORMS)
    if messages[-1].get("role") != "assistant":
        return Dropped("last_not_assistant")
    try:
        tools = parse_tools(record.value.get("tools"))
    except (ValueError, TypeError, RecursionError):
        return Dropped("bad_tools")
    try:
        reply = _reply(messages[-1])
        prompt = [turn for message in messages[:-1] for turn in _turn(message)]
    except CallsError:
        return Dropped("bad_calls")
    except UnfitError as unfit:
        return Dropped(unfit.reason)
    if not prompt:
        return Dropped("no_prompt")
    prompt = _with_system(_merge_responses(prompt), tools, style)
    return row_of(DATA_SOURCE, prompt, reply, tools or tools_in(prompt[0]["content"]), source_row)


_OTHER_FORMS = "for turns under `0`, `1`, … use `egpo convert hardgen`, for {query, answers} use `egpo convert xlam`"


def require_messages(record: Record, fix: str) -> list[Mapping[str, Any]]:
    """Return the record's `messages`, which may be a list or its JSON text. Raise InputError if there are none."""
    messages = record.value.get("messages")
    if isinstance(messages, str):
        try:
            messages = decode_strict(messages)
        except ValueError:
            messages = None
    if not isinstance(messages, list) or not messages or not all(isinstance(m, Mapping) for m in messages):
        raise InputError(
            "the record has no `messages` (a list of {role, content})",
            where=record.where,
            fix=fix,
        )
    return messages


def _turn(message: Mapping[str, Any]) -> list[Message]:
    role = message.get("role")
    if role == "assistant":
        return [{"role": "assistant", "content": _reply(message).visible_text}]
    if role in _TOOL_ROLES:
        return [{"role": "user", "content": tool_responses([_result(message)])}]
    if role == "user" or role in _SYSTEM_ROLES:
        return [
            {"role": "system" if role in _SYSTEM_ROLES else "user", "content": content_text(message.get("content"))}
        ]
    raise UnfitError("unknown_role")


def _reply(message: Mapping[str, Any]) -> Reply:
    text, calls = content_text(message.get("content")), message.get("tool_calls")
    thinking = message.get("reasoning_content") or message.get("reasoning") or ""
    reply = read_reply(text)
    if calls is not None and not isinstance(calls, list):
        raise CallsError("`tool_calls` is not a list")
    return Reply(reply.thinking or str(thinking).strip(), [*reply.parts, *parse_openai(calls or [])])


def _result(message: Mapping[str, Any]) -> Any:
    try:
        return content_text(message.get("content"))
    except UnfitError:
        return message["content"]


def _merge_responses(prompt: list[Message]) -> list[Message]:
    merged: list[Message] = []
    for turn in prompt:
        both = merged and all(_is_response(t) for t in (merged[-1], turn))
        if both:
            merged[-1] = {"role": "user", "content": f"{merged[-1]['content']}\n{turn['content']}"}
        else:
            merged.append(turn)
    return merged


def _is_response(turn: Message) -> bool:
    text = turn["content"]
    return turn["role"] == "user" and text.startswith("<tool_response>") and text.endswith("</tool_response>")


def _with_system(prompt: list[Message], tools: list[Tool], style: ToolStyle) -> list[Message]:
    """Return the prompt with the instruction and the tools in its system message.

    If there are no tools and the style sets no instruction, the system message stays unchanged.
    """
    own = prompt[0]["content"] if prompt[0]["role"] == "system" else ""
    rest = prompt[1:] if prompt[0]["role"] == "system" else prompt
    text = style.system(own, tools) if tools or style.instruction is not None else own
    return [{"role": "system", "content": text}, *rest] if text else rest
