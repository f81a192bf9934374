"""The tools of a row, as JSON-schema specs: required arguments, and the types of arguments."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from egpo.errors import InputError
from egpo.tool_calls.calls import CallsError, decode

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "null": (type(None),),
    "array": (list,), "tuple": (list,), "object": (dict,),
}  # fmt: skip
# Public data names its types as JSON schema does, as BFCL does, or as Python does.
_SYNONYMS = {
    "str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object",
}  # fmt: skip

_FORM = 'give a JSON list of {"name": ..., "parameters": {"properties": ..., "required": ...}}'


@dataclass(frozen=True)
class Tool:
    """One function: the schema of each parameter, which are required, and whether other arguments are allowed."""

    parameters: Mapping[str, Mapping[str, Any]]
    required: frozenset[str]
    takes_others: bool = False


class Toolbox:
    """The tools of one row by name. Each spec is read on first use, since right calls seldom need it."""

    def __init__(self, specs: Any) -> None:
        if isinstance(specs, Mapping):
            specs = [specs]
        if not isinstance(specs, Iterable):
            raise InputError(f"a {type(specs).__name__} is not a list of tools", where="tools", fix=_FORM)
        self._specs = {spec["name"]: spec for spec in map(_bare_spec, specs)}
        self._tools: dict[str, Tool] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def tool(self, name: str) -> Tool | None:
        if name in self._specs and name not in self._tools:
            self._tools[name] = _tool(self._specs[name])
        return self._tools.get(name)


def toolbox(tools: str | Mapping[str, Any] | Sequence[Any]) -> Toolbox | None:
    """Read tools from a list of specs, one spec, or the JSON text of either; None for an empty text."""
    if isinstance(tools, str):
        return _toolbox_from_text(tools) if tools.strip() else None
    return Toolbox(tools)


@lru_cache(maxsize=1024)
def _toolbox_from_text(text: str) -> Toolbox:
    try:
        return Toolbox(decode(text))
    except CallsError as error:
        what = "the text is not JSON, or has duplicate keys or NaN"
        raise InputError(what, where="tools", fix=_FORM) from error


def _bare_spec(spec: Any) -> Mapping[str, Any]:
    """Return the function's own spec, without OpenAI's `{"type": "function", "function": {...}}` around it."""
    inner = spec.get("function", spec) if isinstance(spec, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        raise InputError(f"a tool is not a function spec: {str(spec)[:80]!r}", where="tools", fix=_FORM)
    return inner


def _tool(spec: Mapping[str, Any]) -> Tool:
    """Read a tool from a spec with a JSON schema (`properties`, `required`), or in xlam's form, in which an optional
    parameter has a default."""
    schema = spec.get("parameters") or {}
    if isinstance(schema, Mapping) and ("properties" in schema or isinstance(schema.get("type"), str)):
        parameters, required = schema.get("properties") or {}, schema.get("required") or ()
    else:
        parameters = schema
        required = [name for name, one in _items(schema, spec) if not _is_optional(one)]
    if not isinstance(required, list | tuple) or not all(isinstance(name, str) for name in required):
        raise InputError(f"`required` of `{spec['name']}` is not a list of names", where="tools", fix=_FORM)
    return Tool(dict(_items(parameters, spec)), frozenset(required), bool(schema.get("additionalProperties")))


def _items(parameters: Any, spec: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    if not isinstance(parameters, Mapping) or not all(isinstance(one, Mapping) for one in parameters.values()):
        raise InputError(f"the parameters of `{spec['name']}` are not a JSON schema", where="tools", fix=_FORM)
    return list(parameters.items())


def _is_optional(schema: Mapping[str, Any]) -> bool:
    return "default" in schema or "optional" in str(schema.get("type", ""))


def type_names(schema: Any) -> tuple[str, ...]:
    """Return the JSON-schema names of the types of a schema (`List[int], optional` is an array); () if it has none."""
    names = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(names, str):
        return (_type_name(names),)
    return tuple(_type_name(name) for name in names if isinstance(name, str)) if isinstance(names, list) else ()


@lru_cache(maxsize=1024)
def _type_name(written: str) -> str:
    name = written.partition(",")[0].partition("[")[0].strip().lower()
    return _SYNONYMS.get(name, name)


def fits_type(value: Any, schema: Mapping[str, Any]) -> bool:
    """Return whether a value has the schema's type, items and properties included. An unknown type allows any value."""
    names = type_names(schema)
    if names and not any(_is_a(value, _TYPES.get(name, (object,))) for name in names):
        return False
    if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
        return all(fits_type(item, items) for item in value)
    if isinstance(value, dict) and isinstance(properties := schema.get("properties"), Mapping):
        return all(fits_type(value[key], inner) for key, inner in properties.items() if key in value)
    return True


def _is_a(value: Any, types: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in types or object in types
    # 1.0 equals 1, in JSON schema as in our comparison.
    return isinstance(value, types) or (int in types and isinstance(value, float) and value.is_integer())


def schema_fault(arguments: Mapping[str, Any], tool: Tool) -> str:
    """Return the reason why the arguments break the tool's schema; "" if they do not."""
    if not tool.takes_others and not arguments.keys() <= tool.parameters.keys():
        return "unknown_argument"
    if not tool.required <= arguments.keys():
        return "missing_argument"
    known = tool.parameters.keys() & arguments.keys()
    return "" if all(fits_type(arguments[name], tool.parameters[name]) for name in known) else "wrong_type"
