"""The base class of all sections of settings, the types of their values, and the messages for wrong values.

A section is a strict pydantic model: unknown keys and wrong types are errors. `faults_of` turns pydantic's errors into
faults that say where the error is, what is wrong and how to fix it, with the nearest known key. Imports no torch.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, Protocol, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails, PydanticCustomError, PydanticKnownError

from egpo.errors import ConfigError, Fault, nearest, shortened
from egpo.files import path_fault

KeyPath = tuple[str, ...]
"""The dotted key of a setting as a tuple: `update.lr` is ("update", "lr")."""

LARGEST_COUNT = 2**31 - 1
"""The largest count that a setting may have. Larger ones overflow the 32-bit integers of libraries."""


def _usable_path(text: str) -> str:
    if fault := path_fault(text):
        raise PydanticCustomError("path", "{text}", {"text": f"it must be {fault}"})
    return text


Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=LARGEST_COUNT)]
CountOrZero = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Every = CountOrZero
"""The type of a setting that is a period in steps; 0 means never."""
PathText = Annotated[str, Field(min_length=1), AfterValidator(_usable_path)]
"""The type of a setting that is a path, or a name that is tried as a path first."""
Words = Annotated[tuple[str, ...], Field(strict=False)]
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
RunsFolder = PathText
Seed = Annotated[int, Field(ge=0, lt=2**32)]
Segment = Literal["thinking", "answer", "response"]
"""The name of a part of a response: see `egpo.segments`."""


class Section(BaseModel):
    """A section of a config: unknown keys are faults, types are strict, and values cannot change after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


def one_of(names: Mapping[str, object], refused: Mapping[str, Fault] | None = None) -> AfterValidator:
    """Return a check that a text is a name of this table, or a `module:name`. A name in `refused` has its own fault."""

    def known(name: str) -> str:
        if refused and name in refused:
            raise raised(refused[name])
        if ":" not in name and name not in names:
            raise PydanticKnownError("literal_error", {"expected": ", ".join(f"'{each}'" for each in names)})
        return name

    return AfterValidator(known)


def named_in(names: Mapping[str, object]) -> WithJsonSchema:
    """Return the JSON schema of a text that is a name of this table, or a `module:name`."""
    return WithJsonSchema({"type": "string", "anyOf": [{"enum": list(names)}, {"pattern": "^[^:]+:[^:]+$"}]})


def raised(fault: Fault) -> PydanticCustomError:
    """Return a pydantic error that carries a fault, for a validator to raise. `fault.where` is the name of a field, or
    empty in a check of one field."""
    return PydanticCustomError("between_fields", "{text}", {"fault": fault, "text": str(fault)})


_LONGEST_OVERRIDE = 200
_KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "model_type": "a section of keys and values",
    "dict_type": "a section of keys and values",
    "tuple_type": "a list",
    "finite_number": "a finite number",
}


SectionType = TypeVar("SectionType", bound=Section)


def checked(section: type[SectionType], where: str, **values: Any) -> SectionType:
    """Return a section with these values. Raise ConfigError with all faults if a value is not valid."""
    try:
        return section.model_validate(values)
    except ValidationError as error:
        raise ConfigError(faults_of(error, section, PlaceOf(where, {}, {}))) from error


class TableRow(Protocol):
    """A row of a table that recipes choose from: an estimator, a loss form, a controller."""

    @property
    def settings(self) -> type[Section] | None: ...


def chosen_settings(
    owner: Section, name: str, row_named: Callable[[str], TableRow], where: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings of the row `name`: the section of `owner` with its name if it is built in, else `given`.

    Raise ConfigError at `where` if those of a row that is not built in are wrong.
    """
    section = getattr(owner, name, None) if ":" not in name else None
    if isinstance(section, Section):
        return section.model_dump()
    row = row_named(name)
    return dict(given) if row.settings is None else checked(row.settings, where, **given).model_dump()


def faults_of(
    error: ValidationError, root: type[BaseModel], place_of: "PlaceOf", other_words: Mapping[str, str] | None = None
) -> list[Fault]:
    """Return all errors of a pydantic validation as faults, in the order of the schema.

    `other_words` are keys of other tools with the keys that they mean here, for the advice about unknown keys.
    """
    found = (_fault(details, root, place_of, other_words or {}) for details in error.errors())
    return list(dict.fromkeys(found))


class PlaceOf:
    """A function that returns where a setting was set: file, line and section, or the override on the command line.

    `set_at` has the place (`file:line`) of each key that a file sets, `override_of` the override of each key that an
    override sets; for other keys the place is `where`.
    """

    def __init__(self, where: str, set_at: dict[KeyPath, str], override_of: dict[KeyPath, str]) -> None:
        self.where, self.set_at, self.override_of = where, set_at, override_of

    def __call__(self, path: KeyPath) -> str:
        if path in self.override_of:
            return _override(self.override_of[path])
        for set_path, override in reversed(self.override_of.items()):
            if path and (set_path[: len(path)] == path or path[: len(set_path)] == set_path):
                return _override(override)
        place = next((self.set_at[path[:n]] for n in range(len(path), 0, -1) if path[:n] in self.set_at), self.where)
        section = f" [{'.'.join(path[:-1])}]" if len(path) > 1 else ""
        return f"{place}{section}"


def _override(text: str) -> str:
    return f"override `{text if len(text) <= _LONGEST_OVERRIDE else text[:_LONGEST_OVERRIDE] + '...'}`"


def _fault(details: ErrorDetails, root: type[BaseModel], place_of: PlaceOf, other_words: Mapping[str, str]) -> Fault:
    path = tuple(part for part in details["loc"] if isinstance(part, str))
    key = (path[-1] if len(path[-1]) <= 60 else f"{path[-1][:57]}...") if path else "a key"
    kind, context = details["type"], details.get("ctx", {})
    if kind == "between_fields":
        fault: Fault = context["fault"]
        return Fault(fault.what, place_of((*path, fault.where) if fault.where else path), fault.fix)
    if kind == "extra_forbidden":
        advice = _advice_from_other_tools(path, details["input"], root, other_words)
        return Fault(f"unknown key `{key}`", place_of(path), advice or _advice_for_unknown(path, root))
    if kind == "missing" and isinstance(details["loc"][-1], str):
        name = ".".join(_first_required(path, root))
        return Fault(f"`{name}` is missing", place_of(path), f"set it in the recipe, or as {name}=...")
    if kind in ("missing", "too_long"):
        return Fault(
            f"`{key}` has too {'few' if kind == 'missing' else 'many'} values", place_of(path), "give two values"
        )
    if kind == "literal_error":
        choices = [choice.strip("' ") for choice in context["expected"].replace(" or ", ", ").split(", ")]
        return Fault(f"`{key}` is `{details['input']}`", place_of(path), nearest(str(details["input"]), choices))
    return Fault(f"`{key}` is {_shown(details['input'])}", place_of(path), _wanted(details))


def _wanted(details: ErrorDetails) -> str:
    if details["type"] in _KINDS:
        return f"it must be {_KINDS[details['type']]}"
    message = details["msg"][0].lower() + details["msg"][1:]
    return message.replace("input should", "it must").replace("string should", "it must")


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "empty"
    if isinstance(value, str):
        return shortened(value)
    text = (
        repr(value)
        if isinstance(value, list | dict)
        else str(value).lower()
        if value is True
        else str(value).removesuffix(".0")
    )
    return text if len(text) <= 60 else text[:57] + "..."


def _advice_from_other_tools(
    path: KeyPath, value: Any, root: type[BaseModel], other_words: Mapping[str, str]
) -> str | None:
    """Return the key that a key of another tool means here; None if it is not known. The value may be a section."""
    known = {".".join(place) for place in key_paths(root)}
    for place in leaf_paths(value, path) if isinstance(value, dict) else [path]:
        for word in (".".join(place), place[-1]):
            if (ours := other_words.get(word)) in known and word.rpartition(".")[2] not in known:
                theirs = f" (instead of `{word}`)" if len(place) > len(path) else ""
                return f"did you mean `{ours}`?{theirs}"
    return None


def leaf_paths(value: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the paths of all values that are not sections."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaf_paths(inner, (*path, str(key)))
    else:
        yield path


def _advice_for_unknown(path: KeyPath, root: type[BaseModel]) -> str:
    """Return advice for an unknown key: the closest key of its section, or the same key in another section."""
    *sections, key = path
    known = {*_section(root, sections).model_fields, *(() if sections else ("include",))}
    elsewhere = [".".join(place) for place in key_paths(root) if place[-1] == key]
    if elsewhere and "did you mean" not in nearest(key, known):
        return f"did you mean `{elsewhere[0]}`?"
    return nearest(key, known)


def _first_required(path: KeyPath, root: type[BaseModel]) -> KeyPath:
    """Return the key that the user must set: the missing key itself, or the first required key of a missing section."""
    section = _subsection(_section(root, list(path[:-1])), path[-1])
    if section is None:
        return path
    return (*path, next(name for name, field in section.model_fields.items() if field.is_required()))


def _section(root: type[BaseModel], path: list[str]) -> type[BaseModel]:
    for part in path:
        section = _subsection(root, part)
        assert section is not None
        root = section
    return root


def _subsection(parent: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the class of the subsection `name` of a section; None if the key holds a plain value."""
    annotation = parent.model_fields[name].annotation
    options = [annotation, *get_args(annotation)]
    return next((one for one in options if isinstance(one, type) and issubclass(one, BaseModel)), None)


def key_paths(root: type[BaseModel], path: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the paths of all keys of a section, with those of its subsections."""
    for name in root.model_fields:
        yield (*path, name)
        if section := _subsection(root, name):
            yield from key_paths(section, (*path, name))
