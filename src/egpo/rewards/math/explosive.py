r"""Answers that a computer algebra system would compute for ever, told by their spelling.

math-verify evaluates what it reads: `9^{9^{9^9}}`, `9999999!` or a sum of a billion terms would keep a worker until it
is killed, and the verdict would say that the checker failed: a response could choose not to be judged. The rules
overestimate a size from the numerals, without computing anything that is large.
"""

import re
from math import comb, inf, prod

MAX_POWER_DIGITS = 100_000
"""Of a power of numbers, by estimate: the digits of the base times the exponent."""
MAX_FACTORIAL = 10_000
"""The largest number with a factorial, or in a binomial coefficient."""
MAX_TERMS = 1500
"""Of an expanded power or product of brackets with letters or roots in them, by estimate."""
MAX_DEGREE = 500
"""Of brackets with letters or roots in them, and of a letter in a quotient, which would be divided out."""
MAX_STACKED = 3

_NUMERAL = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_BINOMIAL = re.compile(r"\\[dt]?binom\{([^{}]*)\}\{([^{}]*)\}")
_WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\{[^{}]*\}|\\[A-Za-z]+")
_NAME = re.compile(r"(?:^|[^\W\d_]|_\{[^{}]*\}|_.)\Z")
_DIVIDED_SUM = re.compile(r"(?:\\frac|/).*[+-]|[+-].*(?:\\frac|/)")
_OPEN_ENDED = re.compile(r"\\(?:sum|prod|coprod|int|iint|iiint|oint|lim|limsup|liminf)(?![A-Za-z])")


def is_explosive(form: str, gold: str = "") -> bool:
    """Whether an answer asks for a computation without end: a huge power, factorial, binomial coefficient or product;
    or a sum, integral or limit (or what else is computed term by term) where the ground truth has none."""
    if _OPEN_ENDED.search(form) and not _OPEN_ENDED.search(gold):
        return True
    return _has_huge_factorial(form) or _has_huge_binomial(form) or _has_huge_power(form) or _has_huge_product(form)


def _product(text: str) -> float:
    """The product of the numerals, small ones as 1: no sum or product of them that occurs in an answer is larger."""
    numerals = _NUMERAL.findall(text)
    return prod(max(1.0, float(numeral)) if len(numeral) < 40 else inf for numeral in numerals)


def _has_huge_factorial(form: str) -> bool:
    if r"\Gamma" in form and ("^" in form or "!" in form or _product(form) > MAX_FACTORIAL):
        return True
    for found in re.finditer("!", form):
        before = form[: found.start()]
        if before.endswith("!"):  # `3!!` is read as the factorial of a factorial
            return True
        numeral = re.search(r"[0-9.]+$", before)
        if numeral and _product(numeral[0]) > MAX_FACTORIAL:
            return True
        if before.endswith((")", "}", "]")) and ("^" in before or "!" in before or _product(before) > MAX_FACTORIAL):
            return True
    return False


def _has_huge_binomial(form: str) -> bool:
    arguments = [argument for found in _BINOMIAL.finditer(form) for argument in found.groups()]
    # One that the pattern does not find has something nested in it.
    if 2 * form.count("binom") != len(arguments):
        return True
    return any("^" in text or "!" in text or _product(text) > MAX_FACTORIAL for text in arguments)


def _has_huge_power(form: str) -> bool:
    """A power of a letter stays as it is, unless it is divided. One of a number is computed, one of brackets may be
    computed, expanded, or stacked on others."""
    if "^" not in form and "**" not in form:
        return False
    of_brackets, of_numbers, of_letters = 1.0, 1.0, 1.0
    for found in re.finditer(r"\^|\*\*", form):
        base = form[: found.start()].rstrip()
        exponent = _exponent_size(_group(form, found.end()))
        if _NAME.search(base):
            of_letters = max(of_letters, exponent if exponent < inf else 1.0)
        elif base[-1] in ")}]":
            of_brackets *= exponent
        else:
            of_numbers = max(of_numbers, exponent)
    if of_brackets == inf:
        return True
    longest = max((len(numeral) for numeral in _NUMERAL.findall(form)), default=1)
    num_names = len(set(filter(str.isalpha, _WORDS.sub(" ", form)))) + form.count(r"\sqrt")
    return (
        longest * of_brackets * of_numbers > MAX_POWER_DIGITS
        or (num_names > 0 and of_brackets > MAX_DEGREE)
        or comb(int(of_brackets) + num_names, num_names) > MAX_TERMS
        or (of_letters > MAX_DEGREE and _DIVIDED_SUM.search(form) is not None)
    )


def _has_huge_product(form: str) -> bool:
    """`(a+b+c)(d+e+f)…`, whose terms are as many as the product of those in each bracket."""
    groups = [group for group in re.findall(r"\(([^()]*)\)", form) if re.search("[A-Za-z]", group)]
    return prod(1.0 + len(re.findall(r"[+-]", group)) for group in groups) > MAX_TERMS


def _exponent_size(exponent: str) -> float:
    """An overestimate of its value. No estimate holds for a power of brackets, nor for one stacked high."""
    if exponent.count("^") > MAX_STACKED or re.search(r"[)}\]]\s*\^|!|\*\*", exponent):
        return inf
    size = _product(exponent)
    for found in re.finditer(r"([0-9.]+)\^", exponent):
        power = _exponent_size(_group(exponent, found.end()))
        # Below the largest float, beyond which a power is an error and not infinity.
        size *= _product(found[1]) ** power if power * len(found[1]) < 300 else inf
    return size


def _group(form: str, start: int) -> str:
    """What a `^` raises to: the braces that follow, or all up to the next operator. A power on it, as in `9^{9}^{9}`
    and `9^9^9`, is part of it."""
    if not form.startswith("{", start):
        return re.split(r"[ +*=,)}\]]", form[start:], maxsplit=1)[0]
    depth = 0
    for at in range(start, len(form)):
        depth += (form[at] == "{") - (form[at] == "}")
        if depth == 0:
            stacked = form[at + 1 :] if form.startswith("^", at + 1) else ""
            return form[start + 1 : at + bool(stacked)] + stacked
    return form[start:]
