"""Converter of the dataset xlam-function-calling-60k: rows of `query`, and `tools` and `answers` as JSON strings."""

from collections.abc import Mapping
from typing import Any

from egpo.data.calls import Call, CallsError, decode_strict, parse_openai, require_json
from egpo.data.conversations import INSTRUCTION, Reply, ToolStyle, UnfitError, content_text, row_of
from egpo.data.readers import Record
from egpo.data.rows import Dropped, Row
from egpo.data.tool_prompt import Tool, parse_tools
from egpo.errors import InputError

DATA_SOURCE = "xlam-function-calling"

JSON_TYPES = {
    "str": "string",
    "int": "integer",
    "float": "number",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "set": "array",
    "dict": "object",
}


def convert_xlam(record: Record, source_row: int, style: ToolStyle) -> Row | Dropped:
    """Convert one record in the format of xlam to a row, or return the reason to drop it.

    The prompt is the system message with the tools, and the query. The ground truth is the calls in `answers`; "" if
    there are none.
    """
    value = record.value
    missing = [key for key in ("query", "tools", "answers") if value.get(key) is None]
    if missing:
        raise InputError(
            f"the record has no `{'`, `'.join(missing)}`",
            where=record.where,
            fix="give rows of xlam with `query`, `tools` and `answers`",
        )
    try:
        tools = [json_schema_tool(tool) for tool in parse_tools(value["tools"])]
        # Checked again, because the parameters are nested one level deeper as JSON schema than in the dataset.
        require_json(tools)
    except (ValueError, TypeError, RecursionError):
        return Dropped("bad_tools")
    try:
        calls = _calls(value["answers"])
        query = content_text(value["query"])
    except (CallsError, ValueError):
        return Dropped("bad_calls")
    except UnfitError as unfit:
        return Dropped(unfit.reason)
    prompt = [
        {"role": "system", "content": style.system(INSTRUCTION, tools)},
        {"role": "user", "content": query},
    ]
    return row_of(DATA_SOURCE, prompt, Reply("", calls), tools, source_row)


def _calls(answers: Any) -> list[Call]:
    calls = decode_strict(answers) if isinstance(answers, str) else answers
    if not isinstance(calls, list):
        raise CallsError("`answers` is not a list")
    return parse_openai(calls)


def json_schema_tool(tool: Tool) -> Tool:
    """Return the tool with its parameters as a JSON schema. In the dataset they are flat, with Python's type names.

    A parameter is optional if its type contains `optional`, as in `str, optional`, or if it has a default. A type that
    JSON schema does not have is left out.
    """
    parameters = tool.get("parameters")
    if not isinstance(parameters, Mapping) or parameters.get("type") == "object":
        return tool
    properties = {name: _property(spec) for name, spec in parameters.items()}
    required = [name for name, spec in parameters.items() if not _is_optional(spec)]
    return {**tool, "parameters": {"type": "object", "properties": properties, "required": required}}


def _property(spec: Any) -> dict[str, Any]:
    if not isinstance(spec, Mapping):
        return {}
    name = str(spec.get("type", "")).split(",")[0].strip().lower()
    base = name.removeprefix("optional[").partition("[")[0].rstrip("]")
    known = JSON_TYPES.get(base, base if base in JSON_TYPES.values() else None)
    return {**({"type": known} if known else {}), **{key: spec[key] for key in spec if key != "type"}}


def _is_optional(spec: Any) -> bool:
    return isinstance(spec, Mapping) and ("optional" in str(spec.get("type", "")).lower() or "default" in spec)
