"""The system message that lists the tools, in the format of Qwen3's chat template or of any tokenizer's template.

The text must be exactly the one that the model was trained with: a different format of the tools changes the results.
This module contains only Qwen3's text, so that data can be prepared without a tokenizer; a test compares it with the
real template. Text of other templates is rendered by `egpo.chat_templates.render`.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from egpo.chat_templates import render
from egpo.data.calls import decode_strict, require_json

Tool = dict[str, Any]
SystemText = Callable[[str, list[Tool]], str]
"""A function that returns the text of the system message for an instruction and a list of tools."""

HEAD = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""
TAIL = """
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""

_MARK = "[[the instruction]]"


def qwen3_system_text(instruction: str, tools: list[Tool]) -> str:
    """Return the system message as Qwen3's chat template writes it: the instruction, then the tools as JSON lines.

    The JSON is that of transformers' `tojson` filter: separators `, ` and `: `, characters unescaped, keys in the given
    order. If there are no tools, return only the instruction.
    """
    if not tools:
        return instruction
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (f"{instruction}\n\n" if instruction else "") + HEAD + lines + TAIL


def template_system_text(tokenizer: Any) -> SystemText | None:
    """Return a function that writes the system message as the tokenizer's own chat template does.

    Return None if there is no template, or if it does not write the tools into the system message.
    """
    if not tokenizer.chat_template:
        return None
    head, mark, tail = _render(tokenizer, _MARK, None).partition(_MARK)
    if not mark:
        return None

    def system_text(instruction: str, tools: list[Tool]) -> str:
        text = _render(tokenizer, instruction, tools or None)
        return text[len(head) : len(text) - len(tail)]

    probe = _render(tokenizer, _MARK, [{"name": "f", "parameters": {}}])
    writes_tools = probe.startswith(head) and probe.endswith(tail) and '"name": "f"' in probe
    return system_text if writes_tools else None


def _render(tokenizer: Any, instruction: str, tools: list[Tool] | None) -> str:
    messages = [{"role": "system", "content": instruction}]
    return render(tokenizer, messages, tools=tools, prompt=False)


def tools_in(system: str) -> list[Tool]:
    """Return the tools that a system message in Qwen3's format lists; an empty list for other formats."""
    _, head, rest = system.partition(HEAD)
    lines, tail, _ = rest.partition(TAIL)
    if not (head and tail):
        return []
    try:
        return parse_tools([decode_strict(line) for line in lines.split("\n")])
    except ValueError:
        return []


def parse_tools(value: Any) -> list[Tool]:
    """Return the tools of a record as a list.

    `value` may be a list of tools, one tool, an object that maps names to tools, or the JSON text of any of these.
    Raise ValueError if it is none of these. Tools are not changed: OpenAI's form {"type": "function", ...} is kept.
    """
    if isinstance(value, str):
        value = decode_strict(value) if value.strip() else []
    if value is None:
        return []
    if isinstance(value, Mapping):
        one = "name" in value or value.get("type") == "function"
        value = [value] if one else [{"name": name, **spec} for name, spec in value.items()]
    if not all(isinstance(tool, Mapping) and tool_name(tool) for tool in value):
        raise ValueError("a tool has no name")
    require_json(list(value))
    return [dict(tool) for tool in value]


def tool_name(tool: Mapping[str, Any]) -> str:
    """Return the name of a tool, which may be in OpenAI's form {"function": ...}; "" if it has no name."""
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


def has_readable_schema(tool: Tool) -> bool:
    """Return whether the rewards can read the tool's parameters: none, a JSON schema, or a flat object as in xlam."""
    schema = tool.get("function", tool).get("parameters") or {}
    if not isinstance(schema, Mapping):
        return False
    nested = "properties" in schema or isinstance(schema.get("type"), str)
    properties = (schema.get("properties") or {}) if nested else schema
    required = (schema.get("required") or []) if nested else []
    return (
        isinstance(properties, Mapping)
        and all(isinstance(one, Mapping) for one in properties.values())
        and isinstance(required, list | tuple)
        and all(isinstance(name, str) for name in required)
    )


def wrap(tool: Tool) -> Tool:
    """Return the tool in OpenAI's form: {"type": "function", "function": ...}."""
    return tool if "function" in tool else {"type": "function", "function": tool}
