"""The reader and writer of YAML 1.2, with the line number of each key.

PyYAML reads `1e-6` as a string and `no` as False, and accepts a key twice. Here scalars follow YAML 1.2's core schema,
and a repeated key is an error.
"""

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from egpo.errors import ConfigError, Fault
from egpo.sections import KeyPath

_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False, ".nan": float("nan")}
_WORDS |= {".inf": float("inf"), "-.inf": -float("inf"), "+.inf": float("inf")}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_MOST_VALUES = 10_000  # nested aliases can expand to more values than fit in memory
_LONGEST_NUMBER = 400


@dataclass
class Document:
    """The values of a YAML document, and the line number of each key."""

    value: Any
    line_of: dict[KeyPath, int] = field(default_factory=dict)


def parse_yaml(text: str, where: str, fix: str = "check the indentation and the quotes") -> Document:
    """Parse one YAML document into plain values. Raise ConfigError if it is not YAML; keys are not checked.

    `fix` is the advice of the error.
    """
    reader = _Reader(where)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = None if node is None else reader.value(node, ())
    except RecursionError as error:
        fix = "check whether an alias contains itself"
        raise ConfigError([Fault("the YAML is nested too deeply", where, fix)]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark else where
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError([Fault(f"the text is not YAML: {problem}", place, fix)]) from error
    return Document(value, reader.line_of)


def parse_scalar(text: str) -> Any:
    """Return the value of an unquoted scalar by the rules of YAML 1.2's core schema."""
    if text.lower() in _WORDS and text in {text.lower(), text.capitalize(), text.upper()}:
        return _WORDS[text.lower()]
    if len(text) <= _LONGEST_NUMBER:
        if _INTEGER.fullmatch(text):
            return int(text)
        if _BASED.fullmatch(text):
            return int(text, 0)
        if _FLOAT.fullmatch(text):
            return float(text)
    return text


def dump_yaml(value: Any) -> str:
    """Write values as YAML. Keys keep their order, and every scalar reads back as the same value and type."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


class _Reader:
    def __init__(self, where: str) -> None:
        self.where = where
        self.line_of: dict[KeyPath, int] = {}
        self.num_values = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.num_values += 1
        if self.num_values > _MOST_VALUES:
            fix = "check whether an alias contains itself"
            raise ConfigError([Fault(f"the YAML has more than {_MOST_VALUES} values", self.where, fix)])
        if not node.tag.startswith("tag:yaml.org,2002:") or ":python/" in node.tag:
            place = f"{self.where}:{node.start_mark.line + 1}"
            raise ConfigError([Fault(f"the YAML tag `{node.tag}` is not supported", place, "write plain values")])
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, str(i))) for i, item in enumerate(node.value)]
        assert isinstance(node, yaml.ScalarNode)
        return node.value if node.style else parse_scalar(node.value)

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = str(key_node.value), key_node.start_mark.line + 1
            if key in values:
                first = self.line_of[(*path, key)]
                fix = f"remove one; the first is on line {first}"
                raise ConfigError([Fault(f"`{key}` is given twice", f"{self.where}:{line}", fix)])
            self.line_of[(*path, key)] = line
            values[key] = self.value(value_node, (*path, key))
        return values


class _Dumper(yaml.SafeDumper):
    """A YAML dumper that quotes a string if it would otherwise be read as another type."""


def _represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain_is_safe = isinstance(parse_scalar(text), str) and text.isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain_is_safe else '"')


_Dumper.add_representer(str, _represent_str)
