"""The normal form of a short LaTeX answer, and what can be decided about it without a computer algebra system.

`differs_in_notation` compares what math-verify ignores: case, units, number bases, kinds of brackets. A difference
counts only if both sides state the property; but a number base on one side only is a difference too.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from egpo.rewards.answers import CHANGING_WORD, NUMBER_WORD, plain_number

MAX_CHARACTERS = 1000
MAX_DEPTH = 12
"""Limit on the nesting of brackets. Parsing time grows exponentially: ten pairs of braces take 0.7 s, twenty 90 s."""

_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_REWRITES = (
    (re.compile(r"\\(?:left|right)(?![A-Za-z])|(?<!\\)\\!"), ""),
    (re.compile(r"\\lbrace(?![A-Za-z]) ?"), r"\\{"),
    (re.compile(r"\\rbrace(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    # `1{,}000`, `1\,000` and `1 000` are the same number, if the separators group thousands.
    (
        re.compile(r"(?<![0-9.,])([0-9]{1,3})((?:(?:\{,\}|\\[,;:]|[ ~])[0-9]{3})+)(?![0-9])"),
        lambda m: m[1] + _digits(m[2]),
    ),
    # `\\\\ ` ends a row of a matrix: its second backslash and the space are not the command `\\ `.
    (re.compile(r"(?:(?<!\\)\\[,;: ]|\\q?quad(?![A-Za-z])|~|\s)+"), " "),
    # `2 1/2` is two and a half; math-verify reads (2 + 1)/2.
    (re.compile(r"(?<![0-9.,/])([0-9]+) ([0-9]+)/([0-9]+)(?![0-9.])"), r"\1\\frac{\2}{\3}"),
    (re.compile(r" (?![0-9A-Za-z])|(?<![0-9A-Za-z]) "), ""),
)
_PLAIN_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\{([^{}\\0-9]*)\}")
# Words of two letters: names of lines (`AC`), and English words that are unlikely to be a product of variables.
_WORD = re.compile(
    r"[A-Za-z]{3}[A-Za-z '-]*|[A-Z]{2}|(?i:am|an|as|at|be|by|do|go|he|if|in|is|it|me|my|no|of|on|or|pm|so|to|up|us|we)"
)
_FRACTION = re.compile(r"(-?)(?:\\frac\{(-?[0-9]{1,40})\}\{([0-9]{1,40})\}|([0-9]{1,40})/([0-9]{1,40})|([0-9]{1,40}))")
# math-verify adds up `5 6`, `5\ldots 6` and `5\phantom{6}`.
_SIDE_BY_SIDE = re.compile(r"[0-9](?: [0-9]|\\(?:[lcd]?dots|[hv]?phantom)(?![A-Za-z]))")

MAX_EXPONENT = 300
"""The largest exponent of a number such as `1e300` that is written out in digits for math-verify."""
_DECIMAL = r"[0-9]++(?:\.[0-9]*+)?+|\.[0-9]++"
_SCIENTIFIC = re.compile(rf"(?<![A-Za-z0-9.\\])({_DECIMAL})([eE])([+-]?)([0-9]{{1,9}})(?![0-9A-Za-z.^_{{])")
# `0.1\overline{6}`, `0.1\bar6`, `0.1\dot{6}`; `0.(6)`; `0.1666\ldots` with a last digit at least three times.
_REPEATING = re.compile(
    r"(?<![0-9.])([0-9]*)\.(?:([0-9]*)\\(?:overline|bar|dot) ?(?:\{([0-9]+)\}|([0-9]))|()\(([0-9]+)\)"
    r"|([0-9]*?)(([0-9])\9\9++)(?:\\[ld]?dots(?![A-Za-z])|\.\.\.|…))"
)
_POWERS = {"hundred": 2, "thousand": 3, "lakh": 5, "million": 6, "crore": 7, "billion": 9, "trillion": 12}
_SCALED = re.compile(
    rf"(?<![0-9.A-Za-z])({_DECIMAL})(?: ?(\\(?:text|textrm|mathrm|mbox)\{{) ?| )({'|'.join(_POWERS)})s?(?![A-Za-z])"
)
_TEXT_GROUP = re.compile(
    r"\\(?:text[a-z]*|math(?:rm|bf|it|sf|tt)|[mh]box|emph|operatorname)\*? ?\{((?:[^{}]|\{[^{}]*\})*+)\}"
)
_EMPTY_TEXT = re.compile(r"\\(?:text|textrm|mathrm|mbox)\{ *\}")
_BESIDE_WORD = re.compile(r"\\text(?:rm)?\{ ?(or|and) ?([-+]?[0-9.]+) ?\}")
_STARTS_WITH_NUMBER = re.compile(r"[-+−$\\]*[0-9.]")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z])\^?\{?-?[123]\}?(?![0-9])|[²³]")
_NUMERALS = re.compile(r"[0-9.,]*[0-9]|[^\x00-\x7f]")
_SHORT_FRACTION = re.compile(r"\\frac ?(?:([0-9])|\{([^{}]*)\}) ?(?:([0-9])|\{([^{}]*)\})")
# math-verify adds up `\frac{1}{2}\frac{1}{3}`, as it does the two parts of `2\frac{1}{3}`.
_FRACTIONS_SIDE_BY_SIDE = re.compile(r"(\\frac\{[^{}]*\}\{[^{}]*\})(?=\\frac)")
_STYLE = re.compile(
    r"\\(?:(?:display|text|script|scriptscript)style|tiny|small|normalsize|large|Large|huge|bf|rm|it)(?![A-Za-z]) ?"
)
_MEMBER = re.compile(r"[A-Za-z]\\in(?![A-Za-z]) ?")
_EULER = re.compile(r"(?<![A-Za-z])e(?![A-Za-z])")
_ANY_COMMAND = re.compile(r"\\[A-Za-z]+")


def _digits(text: str) -> str:
    return "".join(re.findall(r"[0-9]+", text))


def normal_form(latex: str) -> str:
    """Return the answer without wrapping, spacing and synonyms. Equal forms are equal answers; different forms may
    still be equal answers."""
    body = latex.strip()
    if not (body.endswith("...") and _REPEATING.search(body)):
        body = body.rstrip(".").rstrip()
    for opening, closing in _WRAPPERS:
        if body.startswith(opening) and body.endswith(closing) and len(body) >= len(opening) + len(closing):
            body = body[len(opening) : len(body) - len(closing)]
    for pattern, replacement in _REWRITES:
        body = pattern.sub(replacement, body)
    return body.strip()


def as_word(form: str) -> str | None:
    r"""Return an answer that is a word, in lower case; None for other answers. A word is `\text{…}` without digits,
    three or more letters, two capitals, or an English word of two letters.

    Words are compared letter by letter: a computer algebra system takes them for products, so that `east` is `seat`.
    """
    found = _PLAIN_TEXT.fullmatch(form)
    if found:
        return bare_word(found[1]) or None
    return bare_word(form) if _WORD.fullmatch(form) else None


def bare_word(text: str) -> str:
    """Return the word in lower case, without the parentheses of `(A)` and a full stop."""
    return text.strip(" ().").casefold()


def as_fraction(form: str) -> Fraction | None:
    r"""Return the value of an integer or a quotient of integers: `\frac{3}{4}`, `3/4` or `3`; None for other forms."""
    found = _FRACTION.fullmatch(form)
    if found is None:
        return None
    sign, latex_top, latex_bottom, top, bottom, whole = found.groups()
    denominator = int(latex_bottom or bottom or 1)
    return Fraction(int(sign + "1") * int(latex_top or top or whole), denominator) if denominator else None


@dataclass(frozen=True)
class Value:
    """A rational number, and whether it was written as a decimal, which may be a rounded one."""

    exact: Fraction
    decimal: bool


def as_value(form: str) -> Value | None:
    """Return the value of a form that is a single number; None for other forms. It is exact: `1e-400` is not zero."""
    number = plain_number(form)
    if number is not None:
        return Value(Fraction(number), "." in number)
    quotient = as_fraction(form)
    if quotient is not None:
        return Value(quotient, decimal=False)
    negative = form.startswith(("-", "−"))
    found = _SCIENTIFIC.fullmatch(form, 1 if negative else 0)
    if found is None or len(form) > MAX_CHARACTERS or len(found[4]) > 4:
        return None
    value = _power_of_ten(found)
    return Value(-value if negative else value, decimal=True)


def _power_of_ten(found: re.Match[str]) -> Fraction:
    return Fraction(found[1]) * Fraction(10) ** int(found[3] + found[4])


def spell_out(form: str, gold: str | None = None) -> str:
    r"""Return the same answer in LaTeX for math-verify: `0.\overline{3}` as `\frac{1}{3}`, `1.5e3` as `1500`,
    `2\text{ million}` as `2000000`, `\text{5 cm}` as `5 cm`, `5\text{ or 6}` as `5\text{ or }6`, `\frac12` as
    `\frac{1}{2}`, `x\in[1,2]` as `[1,2]`.

    `2e-3` may mean 0.002, or twice Euler's number minus 3. In an answer it means 0.002 if `gold` does not contain e.
    """
    whole = _TEXT_GROUP.fullmatch(form)
    if whole and _STARTS_WITH_NUMBER.match(whole[1].strip()):
        form = normal_form(whole[1])
    form = _MEMBER.sub("", _STYLE.sub(" ", form).strip(), count=1) if "\\" in form else form
    form = _FRACTIONS_SIDE_BY_SIDE.sub(r"\1\\cdot ", _SHORT_FRACTION.sub(_in_braces, form))
    has_euler = gold is None or _EULER.search(_ANY_COMMAND.sub(" ", _SCIENTIFIC.sub(" ", gold))) is not None
    form = _REPEATING.sub(_as_quotient, form)
    form = _SCIENTIFIC.sub(_written_out(has_euler), form)
    form = _EMPTY_TEXT.sub("", _SCALED.sub(_scaled, form))
    return _BESIDE_WORD.sub(r"\\text{ \1 }\2", form)


def _in_braces(found: re.Match[str]) -> str:
    top, bottom = found[1] or found[2] or "", found[3] or found[4] or ""
    return rf"\frac{{{top}}}{{{bottom}}}"


def _as_quotient(found: re.Match[str]) -> str:
    whole, fixed = found[1], found[2] or found[7] or ""
    repeated = found[3] or found[4] or found[6] or found[9]
    if len(found[0]) > MAX_CHARACTERS // 4:
        return found[0]
    shift = 10 ** len(fixed)
    value = Fraction(int(whole + fixed or "0"), shift) + Fraction(int(repeated), (10 ** len(repeated) - 1) * shift)
    latex = rf"\frac{{{value.numerator}}}{{{value.denominator}}}" if value.denominator > 1 else str(value.numerator)
    return f"({latex})" if found.string.startswith("^", found.end()) else latex


def _written_out(has_euler: bool) -> Callable[[re.Match[str]], str]:
    def write(found: re.Match[str]) -> str:
        mantissa, letter, sign, exponent = found.groups()
        may_be_euler = letter == "e" and sign and mantissa.isdigit() and mantissa != "1" and len(exponent) == 1
        if (may_be_euler and has_euler) or int(exponent) > MAX_EXPONENT or len(mantissa) > MAX_CHARACTERS // 4:
            return found[0]
        return _decimal(_power_of_ten(found))

    return write


def _scaled(found: re.Match[str]) -> str:
    number = _decimal(Fraction(found[1]) * 10 ** _POWERS[found[3]])
    return number + (found[2] or "")


def _decimal(value: Fraction) -> str:
    """Return the digits of a number that has finitely many decimals, without an exponent."""
    places = 0
    while value.denominator > 1:
        value, places = value * 10, places + 1
    digits = str(value.numerator).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits


def has_number_in_text(answer: str, gold: str) -> bool:
    r"""Return whether `\text{…}` in an answer adds or changes a number, as in `5\text{ or 6}` and `5\text{ squared}`,
    both of which math-verify reads as 5.

    A base (`101_{\text{two}}`), a power of a unit (`\text{ cm^2}`) and text of the ground truth itself are allowed.
    """
    said = _numbers_in_text(answer)
    return bool(said) and sorted(said) != sorted(_numbers_in_text(gold))


def _numbers_in_text(form: str) -> list[str]:
    said: list[str] = []
    for group in _TEXT_GROUP.finditer(form):
        if form.endswith(("_", "_{"), 0, group.start()):
            continue
        words = _UNIT_POWER.sub("", group[1])
        said += [mark for mark in _NUMERALS.findall(words) if any(map(str.isnumeric, mark))]
        said += [found[0].casefold() for found in NUMBER_WORD.finditer(words)]
        changing = CHANGING_WORD.match(words)
        if changing and group.start() > 0 and form[group.start() - 1] not in "({[,=+-":
            said.append(changing[0].strip().casefold())
    return said


def is_too_complex(latex: str) -> bool:
    """Return whether the answer is too long or too deep for a parser that takes exponential time."""
    if len(latex) > MAX_CHARACTERS:
        return True
    depth = deepest = 0
    for character in latex:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest > MAX_DEPTH


def has_numbers_side_by_side(form: str) -> bool:
    r"""Return whether two numbers are side by side, as in `5 15` or `5\ldots 15`, which math-verify adds up to 20."""
    return _SIDE_BY_SIDE.search(form) is not None


_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\{[^{}]*\}")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_UNIT = re.compile(
    r"(?<=[0-9}).])(?: ?(?P<bare>[A-Za-z]+)|\\(?:text|textrm|mathrm|mbox)\{(?P<text>[A-Za-z./ ]+)\})"
    r"(?:\^\{?(?P<power>[23])\}?)?\Z"
)
_DEGREE = re.compile(r"\^\{?\\circ\}?\Z")
_BARE_UNIT = re.compile(r"(?<=[0-9]) ([A-Za-z]{3,})\Z")
_BASE = re.compile(r"\(?([0-9][0-9A-Za-z.]*)\)?_\{?(?:\\(?:text|mathrm)\{)?([0-9a-z]+)\}*")
_PLUS_MINUS = re.compile(r"[^,(\[]*\\pm(?![A-Za-z])[^,]*\Z")
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
    """Return whether two normal forms differ in notation although their values may be equal."""
    return (
        _units_differ(answer, gold)
        or _bases_differ(answer, gold)
        or _brackets_differ(answer, gold)
        or _letters_differ_in_case(answer, gold)
    )


def bare_unit_as_text(form: str) -> str:
    r"""Return the form with a unit of three or more letters as text: `5 dollars` becomes `5\text{ dollars}`.

    math-verify reads letters without `\text` as factors.
    """
    found = _BARE_UNIT.search(form)
    if found is None or found[1].lower() not in _UNITS:
        return form
    return rf"{form[: found.start()]}\text{{ {found[1]}}}"


def _units_differ(answer: str, gold: str) -> bool:
    """Return whether the units differ, as in `5 cm` and `5 m`, or `5 cm^2` and `5 cm^3`. A unit that is not in the
    table, or on one side only, is ignored, as in math-verify, and so is a power on one side only."""
    first, second = _unit(answer), _unit(gold)
    if first is None or second is None:
        return False
    if first != second:
        return True
    powers = {found["power"] for form in (answer, gold) if (found := _UNIT.search(form)) and found["power"]}
    return len(powers) > 1


def _unit(form: str) -> str | None:
    """Return the unit of a form in a standard spelling: the word at its end, `dollar` for a dollar sign at its start,
    or `degree` for a degree sign; None if there is no known unit."""
    found = _UNIT.search(form)
    if found is None:
        return "dollar" if form.startswith(("$", "\\$")) else "degree" if _DEGREE.search(form) else None
    parts = (found["bare"] or found["text"]).lower().replace(" per ", "/").split("/")
    units = [_UNITS.get(part.strip(" .")) for part in parts]
    return "/".join(filter(None, units)) if all(units) else None


def _bases_differ(answer: str, gold: str) -> bool:
    """Return whether the number bases differ: `101_2` differs from `101` and from `101_3`."""
    if bool(_HAS_BASE.search(answer)) != bool(_HAS_BASE.search(gold)):
        return True
    first, second = _BASE.fullmatch(answer), _BASE.fullmatch(gold)
    return first is not None and second is not None and first.groups() != second.groups()


def _brackets_differ(answer: str, gold: str) -> bool:
    r"""Return whether only one side is a set, as in `\{1,2\}` and `(1,2)`."""
    kinds = {_enclosing(answer), _enclosing(gold)}
    return "{" in kinds and kinds & {"(", "["} != set()


def _enclosing(form: str) -> str:
    r"""Return the bracket around a whole list, `{` for `\{` and for `3\pm 2`, which is a set of two numbers; "" if
    there is none, as in `(1,2),(3,4)`."""
    if _PLUS_MINUS.match(form):
        return "{"
    body = form.replace("\\{", "{").replace("\\}", "}")
    if "," not in body or not form.startswith(("(", "[", r"\{")):
        return ""
    depth = 0
    for at, character in enumerate(body):
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return body[0] if at == len(body) - 1 else ""
    return ""


def _letters_differ_in_case(answer: str, gold: str) -> bool:
    """Return whether the sides differ in the case of a variable, `x` and `X`, unless one side uses both."""
    said, wanted = _letters(answer), _letters(gold)
    return any(letter.swapcase() in wanted and letter.swapcase() not in said for letter in said - wanted)


def _letters(form: str) -> set[str]:
    """Return the letters that are variables, without the letters of commands, of text and of a unit."""
    body = _UNIT.sub("", form) if _unit(form) is not None else form
    return {letter for letter in _COMMAND.sub(" ", _TEXT.sub(" ", body)) if letter.isascii() and letter.isalpha()}
