"""YAML in and out, without YAML's surprises.

PyYAML reads `1e-6` as a string, `no` as False, and lets a key stand twice. Here scalars follow YAML 1.2, a second key
is a fault, and every value remembers its line.
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
_MOST_VALUES = 10_000  # an alias of an alias of an alias would fill the memory
_LONGEST_NUMBER = 400


@dataclass
class Document:
    """Plain values, and the line on which each key stands."""

    value: Any
    line_of: dict[KeyPath, int] = field(default_factory=dict)


def parse_yaml(text: str, where: str) -> Document:
    """One document of plain values. Faults are those of YAML itself; what the keys mean is the schema's business."""
    reader = _Reader(where)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = None if node is None else reader.value(node, ())
    except RecursionError as error:
        raise ConfigError([Fault("nested too deeply", where, "is an alias inside itself?")]) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{where}:{mark.line + 1}" if mark else where
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError([Fault(f"not YAML: {problem}", place, "mind the indentation and the quotes")]) from error
    return Document(value, reader.line_of)


def parse_scalar(text: str) -> Any:
    """A plain scalar by the rules of YAML 1.2's core schema."""
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
    """Keys in the order given; every scalar reads back as itself."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False)


class _Reader:
    def __init__(self, where: str) -> None:
        self.where = where
        self.line_of: dict[KeyPath, int] = {}
        self.num_values = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self.num_values += 1
        if self.num_values > _MOST_VALUES:
            raise ConfigError([Fault(f"more than {_MOST_VALUES} values", self.where, "is an alias inside itself?")])
        if not node.tag.startswith("tag:yaml.org,2002:") or ":python/" in node.tag:
            place = f"{self.where}:{node.start_mark.line + 1}"
            raise ConfigError([Fault(f"the tag `{node.tag}` means nothing here", place, "write plain values")])
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
                raise ConfigError([Fault(f"`{key}` stands twice", f"{self.where}:{line}", f"first on line {first}")])
            self.line_of[(*path, key)] = line
            values[key] = self.value(value_node, (*path, key))
        return values


class _Dumper(yaml.SafeDumper):
    """Quotes a string whenever it would read back as something else."""


def _represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain_is_safe = isinstance(parse_scalar(text), str) and text.isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain_is_safe else '"')


_Dumper.add_representer(str, _represent_str)
