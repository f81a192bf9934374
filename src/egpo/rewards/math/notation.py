r"""What an answer says by its notation, and math-verify passes over: case, units, number bases, kinds of brackets.

Only where both sides say it and differ, but for a base, which one side alone may not leave out.
"""

import re

_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\{[^{}]*\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_UNIT = re.compile(
    r"(?<=[0-9}).])(?: ?(?P<bare>[A-Za-z]+)|\\(?:text|textrm|mathrm|mbox)\{(?P<text>[A-Za-z./ ]+)\})"
    r"(?:\^\{?(?P<power>[23])\}?)?\Z"
)
_DEGREE = re.compile(r"\^\{?\\circ\}?\Z")
_BARE_UNIT = re.compile(r"(?<=[0-9]) ([A-Za-z]{3,})\Z")
_BASE = re.compile(r"\(?([0-9][0-9A-Za-z.]*)\)?_\{?(?:\\(?:text|mathrm)\{)?([0-9a-z]+)\}*")
_HAS_BASE = re.compile(r"[0-9]\)?_")

_SPELLINGS = {
    "am": "am a.m",
    "pm": "pm p.m",
    "mm": "mm millimeter millimeters millimetre millimetres",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "m": "m meter meters metre metres",
    "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "mg": "mg milligram milligrams",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "oz": "oz ounce ounces",
    "lb": "lb lbs pound pounds",
    "ml": "ml milliliter milliliters millilitre millilitres",
    "l": "l liter liters litre litres",
    "s": "s sec second seconds",
    "min": "min minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "year years",
    "cent": "cent cents",
    "dollar": "dollar dollars",
    "degree": "degree degrees",
    "radian": "rad radian radians",
}
_UNITS = {spelling: unit for unit, spellings in _SPELLINGS.items() for spelling in spellings.split()}


def differs_in_notation(answer: str, gold: str) -> bool:
    """Whether two normal forms say different things although their values may be equal."""
    return (
        _units_differ(answer, gold)
        or _bases_differ(answer, gold)
        or _brackets_differ(answer, gold)
        or _letters_differ_in_case(answer, gold)
    )


def bare_unit_as_text(form: str) -> str:
    r"""`5 dollars` as `5\text{ dollars}`: math-verify takes bare letters for factors. Of three letters and more."""
    found = _BARE_UNIT.search(form)
    if found is None or found[1].lower() not in _UNITS:
        return form
    return rf"{form[: found.start()]}\text{{ {found[1]}}}"


def _units_differ(answer: str, gold: str) -> bool:
    """`5 cm` and `5 m`, `5 cm^2` and `5 cm^3`. A unit that is not in the table, or on one side only, is left out as
    math-verify does, and so is a power on one side only."""
    first, second = _unit(answer), _unit(gold)
    if first is None or second is None:
        return False
    if first != second:
        return True
    powers = {found["power"] for form in (answer, gold) if (found := _UNIT.search(form)) and found["power"]}
    return len(powers) > 1


def _unit(form: str) -> str | None:
    """The unit at the end of a form, in one spelling; that of a dollar sign or a degree sign."""
    found = _UNIT.search(form)
    if found is None:
        return "dollar" if form.startswith(("$", "\\$")) else "degree" if _DEGREE.search(form) else None
    parts = (found["bare"] or found["text"]).lower().replace(" per ", "/").split("/")
    units = [_UNITS.get(part.strip(" .")) for part in parts]
    return "/".join(filter(None, units)) if all(units) else None


def _bases_differ(answer: str, gold: str) -> bool:
    """`101_2` is neither `101` nor `101_3`."""
    if bool(_HAS_BASE.search(answer)) != bool(_HAS_BASE.search(gold)):
        return True
    first, second = _BASE.fullmatch(answer), _BASE.fullmatch(gold)
    return first is not None and second is not None and first.groups() != second.groups()


def _brackets_differ(answer: str, gold: str) -> bool:
    r"""`\{1,2\}`, a set, and `(1,2)`, which is none."""
    kinds = {_enclosing(answer), _enclosing(gold)}
    return "{" in kinds and kinds & {"(", "["} != set()


def _enclosing(form: str) -> str:
    r"""The bracket around all of a list, `{` for `\{`; "" where there is none, as in `(1,2),(3,4)`."""
    body = form.replace(r"\lbrace", r"\{").replace(r"\rbrace", r"\}").replace("\\{", "{").replace("\\}", "}")
    if "," not in body or not form.startswith(("(", "[", r"\{", r"\lbrace")):
        return ""
    depth = 0
    for at, character in enumerate(body):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return body[0] if at == len(body) - 1 else ""
    return ""


def _letters_differ_in_case(answer: str, gold: str) -> bool:
    """`x` and `X` are two names, unless one side uses both."""
    said, wanted = _letters(answer), _letters(gold)
    return any(letter.swapcase() in wanted and letter.swapcase() not in said for letter in said - wanted)


def _letters(form: str) -> set[str]:
    """The letters that name something: those of commands, of text and of a unit do not."""
    body = _UNIT.sub("", form) if _unit(form) is not None else form
    return {letter for letter in _COMMAND.sub(" ", _TEXT.sub(" ", body)) if letter.isascii() and letter.isalpha()}
