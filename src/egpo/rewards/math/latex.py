r"""One spelling for a short LaTeX answer, and what can be said of it without a computer algebra system."""

import re
from fractions import Fraction

MAX_CHARACTERS = 1000
MAX_DEPTH = 12
"""Of brackets. Parsing time explodes with it: ten pairs of braces take 0.7 s, twenty took 90 s."""

_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"))
_REWRITES = (
    (re.compile(r"\\(?:left|right)(?![A-Za-z])|\\!"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    # `1{,}000`, `1\,000` and `1 000` are one number, as long as thousands are what they group.
    (
        re.compile(r"(?<![0-9.,])([0-9]{1,3})((?:(?:\{,\}|\\[,;:]|[ ~])[0-9]{3})+)(?![0-9])"),
        lambda m: m[1] + _digits(m[2]),
    ),
    (re.compile(r"(?:\\[,;: ]|\\q?quad(?![A-Za-z])|~|\s)+"), " "),
    # `2 1/2` is two and a half; math-verify reads (2 + 1)/2.
    (re.compile(r"(?<![0-9.,/])([0-9]+) ([0-9]+)/([0-9]+)(?![0-9.])"), r"\1\\frac{\2}{\3}"),
    (re.compile(r" (?![0-9A-Za-z])|(?<![0-9A-Za-z]) "), ""),
)
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\{([^{}\\0-9]*)\}")
# Of two letters: names of lines (`AC`), and what is English and no likely product.
_WORD = re.compile(
    r"[A-Za-z]{3}[A-Za-z '-]*|[A-Z]{2}|(?i:am|an|as|at|be|by|do|go|he|if|in|is|it|me|my|no|of|on|or|pm|so|to|up|us|we)"
)
_FRACTION = re.compile(r"(-?)(?:\\frac\{(-?[0-9]{1,40})\}\{([0-9]{1,40})\}|([0-9]{1,40})/([0-9]{1,40})|([0-9]{1,40}))")
_SIDE_BY_SIDE = re.compile(r"[0-9] [0-9]")


def _digits(text: str) -> str:
    return "".join(re.findall(r"[0-9]+", text))


def normal_form(latex: str) -> str:
    """The answer without its wrapping, spacing and synonyms. Equal forms are equal answers; unequal ones may be too."""
    body = latex.strip().rstrip(".").rstrip()
    for opening, closing in _WRAPPERS:
        if body.startswith(opening) and body.endswith(closing) and len(body) >= len(opening) + len(closing):
            body = body[len(opening) : len(body) - len(closing)]
    for pattern, replacement in _REWRITES:
        body = pattern.sub(replacement, body)
    return body.strip()


def as_word(form: str) -> str | None:
    r"""The word that an answer is, in lower case, or None: `\text{…}` without digits, three letters and more,
    two capitals, or an English word of two letters.

    Words are compared letter by letter. A computer algebra system takes them for products, and `east` for `seat`.
    """
    found = _TEXT.fullmatch(form)
    if found:
        return bare_word(found[1]) or None
    return bare_word(form) if _WORD.fullmatch(form) else None


def bare_word(text: str) -> str:
    """In lower case, without the parentheses of `(A)` and a full stop."""
    return text.strip(" ().").casefold()


def as_fraction(form: str) -> Fraction | None:
    r"""An integer or a quotient of two, as `\frac{3}{4}`, `3/4` or `3`. Decimals are rounded ones, and not exact."""
    found = _FRACTION.fullmatch(form)
    if found is None:
        return None
    sign, latex_top, latex_bottom, top, bottom, whole = found.groups()
    denominator = int(latex_bottom or bottom or 1)
    return Fraction(int(sign + "1") * int(latex_top or top or whole), denominator) if denominator else None


def is_too_complex(latex: str) -> bool:
    """Whether the answer is too long or too deep for a parser that takes exponential time."""
    if len(latex) > MAX_CHARACTERS:
        return True
    depth = deepest = 0
    for character in latex:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest > MAX_DEPTH


def has_numbers_side_by_side(form: str) -> bool:
    """`5 15`: two answers, which math-verify would add up to 20."""
    return _SIDE_BY_SIDE.search(form) is not None
