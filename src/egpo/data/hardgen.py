"""Raw multi-turn tool conversations (hardgen, BFCL-like): an object whose keys are the numbers of the turns."""

from collections.abc import Mapping
from typing import Any

from egpo.data.calls import CallsError, literal, tool_responses
from egpo.data.conversations import INSTRUCTION, Reply, ToolStyle, read_reply, row_of
from egpo.data.readers import Record
from egpo.data.rows import Dropped, Message, Row
from egpo.data.tool_prompt import Tool, parse_tools
from egpo.errors import InputError

DATA_SOURCE = "hardgen"


def convert_hardgen(record: Record, source_row: int, style: ToolStyle) -> Row | Dropped:
    """Turn "0" is the system's, its `tools` a JSON string; the others follow in numeric order, empty ones skipped.

    The conversation is cut after its last assistant turn with a call, which becomes the ground truth; the turns
    before it are the prompt.
    """
    turns = _turns(record)
    system = turns.pop(0, {})
    tools = _tools(system)
    if isinstance(tools, Dropped):
        return tools
    read = _read(list(turns.values()))
    if isinstance(read, Dropped):
        return read
    last = max((i for i, turn in enumerate(read) if isinstance(turn, Reply) and turn.calls), default=None)
    if last is None:
        return Dropped("no_call")
    if last == 0:
        return Dropped("no_prompt")
    shown = style.system(_text(system.get("content")) or INSTRUCTION, tools)
    prompt = [{"role": "system", "content": shown}, *map(_message, read[:last])]
    reply = read[last]
    assert isinstance(reply, Reply)
    return row_of(DATA_SOURCE, prompt, reply, tools, source_row)


def _turns(record: Record) -> dict[int, dict[str, Any]]:
    numbers = sorted(int(key) for key in record.value if key.isascii() and key.isdigit() and len(key) < 10)
    # Parquet has every turn that any record has: the ones this record lacks are null.
    turns = {number: record.value[str(number)] for number in numbers if record.value.get(str(number)) is not None}
    if not turns or not all(isinstance(turn, Mapping) for turn in turns.values()):
        raise InputError(
            "not a raw conversation: an object with the turns under `0`, `1`, `2`, …",
            where=record.where,
            fix="for {messages} use `egpo convert messages`, for {query, answers} `egpo convert xlam`",
        )
    return turns


def _tools(turn: Mapping[str, Any]) -> list[Tool] | Dropped:
    try:
        tools = parse_tools(turn.get("tools"))
    except (ValueError, TypeError, RecursionError):
        return Dropped("bad_tools")
    return tools or Dropped("no_tools")


def _read(turns: list[dict[str, Any]]) -> list[Reply | Message] | Dropped:
    read: list[Reply | Message] = []
    for turn in turns:
        role, content = turn.get("role"), turn.get("content")
        if not turn or content in (None, "", [], {}) or (isinstance(content, str) and not content.strip()):
            continue
        if role == "tool":
            _add_responses(read, content)
        elif role == "assistant":
            try:
                reply = read_reply(_text(content))
            except CallsError:
                return Dropped("bad_calls")
            if reply.spoken:
                read.append(reply)
        elif role in ("user", "system"):
            read.append({"role": role, "content": _text(content)})
        else:
            return Dropped("unknown_role")
    return read


def _add_responses(read: list[Reply | Message], content: Any) -> None:
    # Tool turns in a row share one user turn, as the chat template has it.
    value = literal(content) if isinstance(content, str) else content
    text = tool_responses(value if isinstance(value, list) else [content if isinstance(value, str) else value])
    before = read[-1] if read else None
    if isinstance(before, dict) and before["content"].endswith("</tool_response>"):
        before["content"] += f"\n{text}"
    else:
        read.append({"role": "user", "content": text})


def _message(turn: Reply | Message) -> Message:
    return {"role": "assistant", "content": turn.spoken} if isinstance(turn, Reply) else turn


def _text(content: Any) -> str:
    return content.strip() if isinstance(content, str) else "" if content is None else str(content)
