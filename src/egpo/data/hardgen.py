"""Converter of the HardGen format: tool-calling conversations, each a JSON object from turn numbers to turns."""

from collections.abc import Mapping
from typing import Any

from egpo.data.calls import CallsError, literal, tool_responses
from egpo.data.conversations import INSTRUCTION, Reply, ToolStyle, UnfitError, content_text, read_reply, row_of
from egpo.data.readers import Record
from egpo.data.rows import Dropped, Message, Row
from egpo.data.tool_prompt import Tool, parse_tools
from egpo.errors import InputError

DATA_SOURCE = "hardgen"


def convert_hardgen(record: Record, source_row: int, style: ToolStyle) -> Row | Dropped:
    """Convert one conversation in the HardGen format to a row, or return the reason to drop it.

    Turn "0" is the system turn, with `tools` as a JSON string; the others follow in numeric order, and empty ones are
    skipped. The row ends with the last assistant turn that contains a call. The calls of this turn are the ground
    truth, and the turns before it are the prompt.
    """
    try:
        turns = _turns(record)
        system = turns.pop(0, {})
        tools = _tools(system)
        instruction = content_text(system.get("content")).strip() or INSTRUCTION
        read = _read(list(turns.values()))
    except CallsError:
        return Dropped("bad_calls")
    except UnfitError as unfit:
        return Dropped(unfit.reason)
    last = max((i for i, turn in enumerate(read) if isinstance(turn, Reply) and turn.calls), default=None)
    if last is None:
        return Dropped("no_call")
    if last == 0:
        return Dropped("no_prompt")
    prompt = [{"role": "system", "content": style.system(instruction, tools)}, *map(_message, read[:last])]
    reply = read[last]
    assert isinstance(reply, Reply)
    return row_of(DATA_SOURCE, prompt, reply, tools, source_row)


def _turns(record: Record) -> dict[int, Mapping[str, Any]]:
    """Return the turns of a conversation by their numbers, in order.

    Raise UnfitError if two keys are the same number, such as `02` and `2`.
    """
    # A parquet file has a column for each turn number; a record's value is null for turns that it does not have.
    keys = [key for key, turn in record.value.items() if _is_number(key) and turn is not None]
    turns = {int(key): record.value[key] for key in sorted(keys, key=int)}
    if not turns or not all(isinstance(turn, Mapping) for turn in turns.values()):
        raise InputError(
            "the record is not a HardGen conversation, which is an object with the turns under `0`, `1`, `2`, …",
            where=record.where,
            fix="for {messages} use `egpo convert messages`, for {query, answers} use `egpo convert xlam`",
        )
    if len(turns) < len(keys):
        raise UnfitError("turn_twice")
    return turns


def _is_number(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key.lstrip("0")) < 10


def _tools(turn: Mapping[str, Any]) -> list[Tool]:
    try:
        tools = parse_tools(turn.get("tools"))
    except (ValueError, TypeError, RecursionError) as error:
        raise UnfitError("bad_tools") from error
    if not tools:
        raise UnfitError("no_tools")
    return tools


def _read(turns: list[Mapping[str, Any]]) -> list[Reply | Message]:
    read: list[Reply | Message] = []
    for turn in turns:
        role, content = turn.get("role"), turn.get("content")
        if not turn or content in (None, "", [], {}) or (isinstance(content, str) and not content.strip()):
            continue
        if role == "tool":
            _add_responses(read, content)
        elif role == "assistant":
            reply = read_reply(content_text(content))
            if reply.visible_text:
                read.append(reply)
        elif role in ("user", "system"):
            read.append({"role": role, "content": content_text(content).strip()})
        else:
            raise UnfitError("unknown_role")
    return read


def _add_responses(read: list[Reply | Message], content: Any) -> None:
    # The results of consecutive tool turns become one user message, as in the chat template.
    value = literal(content) if isinstance(content, str) else content
    text = tool_responses(value if isinstance(value, list) else [content if isinstance(value, str) else value])
    before = read[-1] if read else None
    if isinstance(before, dict) and before["content"].endswith("</tool_response>"):
        before["content"] += f"\n{text}"
    else:
        read.append({"role": "user", "content": text})


def _message(turn: Reply | Message) -> Message:
    return {"role": "assistant", "content": turn.visible_text} if isinstance(turn, Reply) else turn
