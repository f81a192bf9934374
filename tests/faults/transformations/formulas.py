r"""Math: generated answers of thirty kinds, each with forms that are equal to it and forms that are not.

The forms are built from the numbers of which the answer was built, with exact arithmetic; no checker is asked. A form
that happens to equal the answer again (the conjugate of a real number) is left out by the generator.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, isqrt

from egpo.rewards.math import MathPool, judge_math
from egpo.rewards.verdict import Verdict
from tests.faults.transformations import REFUSED, RIGHT, UNDEFINED, WRONG, Transformation

Draw = random.Random
Forms = dict[str, str]


@dataclass(frozen=True)
class Answer:
    """A ground truth, and named forms of it: equal ones, others that are not equal, and equal ones that the documented
    rule refuses."""

    kind: str
    gold: str
    right: Forms = field(default_factory=dict)
    wrong: Forms = field(default_factory=dict)
    refused: Forms = field(default_factory=dict)
    undefined: Forms = field(default_factory=dict)

    def __str__(self) -> str:
        return self.gold


def frac(value: Fraction, command: str = "frac") -> str:
    """Return a number in LaTeX."""
    if value.denominator == 1:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    return rf"{sign}\{command}{{{abs(value.numerator)}}}{{{value.denominator}}}"


def _scaled(value: Fraction) -> Forms:
    """Return other numbers: another scale, sign, inverse, neighbour."""
    others = {f"times 10^{power}": value * Fraction(10) ** power for power in (-3, -2, -1, 1, 2, 3)}
    others |= {"other sign": -value, "plus one": value + 1, "doubled": 2 * value, "squared": value * value}
    if value:
        others |= {"inverse": 1 / value, "zero": Fraction(0)}
    return {name: frac(other) for name, other in others.items() if other != value}


def _whole(rng: Draw, low: int = 2, high: int = 99) -> int:
    return rng.randint(low, high)


def _integer(rng: Draw) -> Answer:
    n = rng.choice([rng.randint(-50, 200), rng.randint(1_000, 99_999)])
    right = {
        "quotient": rf"\frac{{{2 * n}}}{{2}}",
        "decimal": f"{n}.0",
        "sum": f"{n - 3} + 3",
        "product": rf"1 \cdot {n}" if n >= 0 else rf"-1 \cdot {-n}",
    }
    right |= {"equation": f"x = {n}", "chain": f"x = {n - 1} + 1 = {n}"}
    if n > 999:
        right |= {
            "commas": f"{n:,}",
            "LaTeX commas": f"{n:,}".replace(",", "{,}"),
            "thin spaces": f"{n:,}".replace(",", r"\,"),
            "spaces": f"{n:,}".replace(",", " "),
        }
    wrong = (
        _scaled(Fraction(n)) | {"reversed": str(n)[::-1]}
        if n > 0 and str(n) != str(n)[::-1] and n % 10
        else _scaled(Fraction(n))
    )
    wrong |= (
        {"base two": f"{n}_2", "imaginary": f"{n}i", "variable": f"{n}x", "false equation": f"{n + 1} = {n}"}
        if n
        else {}
    )
    wrong |= {
        "inequality": f"x > {n}",
        "pair": f"({n}, {n})",
        "open interval": f"({n}, \\infty)",
        "plus variable": f"{n} + x",
    }
    wrong |= {"almost": f"{n}.000002", "per mille": rf"{n}‰"} if n else {}
    return Answer("integer", str(n), right, wrong)


def _fraction(rng: Draw) -> Answer:
    value = Fraction(rng.randint(1, 60), rng.choice([3, 7, 8, 9, 11, 12, 13, 16, 20, 25])) * rng.choice([1, 1, -1])
    if value.denominator == 1:
        value += Fraction(1, 3)
    a, b = abs(value.numerator), value.denominator
    sign = "-" if value < 0 else ""
    right = {
        "dfrac": frac(value, "dfrac"),
        "tfrac": frac(value, "tfrac"),
        "slash": f"{sign}{a}/{b}",
        "not reduced": rf"{sign}\frac{{{6 * a}}}{{{6 * b}}}",
    }
    right |= {
        "difference": rf"{frac(value - 1)} + 1",
        "six decimals": _rounded(value, 6),
        "equation": f"x = {frac(value)}",
        "over": rf"{sign}{{{a} \over {b}}}",
    }
    right |= (
        {"power of minus one": rf"{sign}{a} \cdot {b}^{{-1}}", "sign below": rf"\frac{{{a}}}{{-{b}}}"}
        if sign
        else {"both signs": rf"\frac{{-{a}}}{{-{b}}}"}
    )
    if a > b:
        whole, rest = divmod(a, b)
        right |= {"mixed number": rf"{sign}{whole}\frac{{{rest}}}{{{b}}}"}
        if not sign:
            right |= {"mixed number in text": f"{whole} {rest}/{b}"}
    wrong = _scaled(value) | {
        "two decimals": _rounded(value, 2),
        "slash swapped": f"{sign}{b}/{a}",
        "pair": f"({value.numerator}, {b})",
        "binomial": rf"\binom{{{a}}}{{{b}}}",
    }
    wrong |= {
        "side by side": f"{sign}{a} {b}",
        "ratio of squares": rf"{sign}\frac{{{a * a}}}{{{b * b}}}",
        "decimal comma": f"{sign}{a},{b}",
    }
    return Answer("fraction", frac(value), right, _unlike(wrong, value))


def _rounded(value: Fraction, places: int) -> str:
    scaled = round(abs(value) * 10**places)
    digits = f"{scaled:0{places + 1}d}"
    return ("-" if value < 0 else "") + f"{digits[:-places]}.{digits[-places:]}"


def _unlike(forms: Forms, value: Fraction) -> Forms:
    """Return the forms without plain numbers that equal the value to six places."""
    kept = {}
    for name, form in forms.items():
        try:
            number = Fraction(form)
        except (ValueError, ZeroDivisionError):
            number = None
        if number is None or abs(number - value) > Fraction(1, 10**5):
            kept[name] = form
    return kept


def _decimal(rng: Draw) -> Answer:
    value = Fraction(rng.randint(1, 99_999), rng.choice([10, 100, 1000]))
    text = _rounded(value, 3).rstrip("0").rstrip(".")
    right = {
        "zeros behind": f"{text}000" if "." in text else f"{text}.000",
        "fraction": frac(value),
        "scientific": f"{_rounded(value / 10, 4)}e1",
        "times ten": rf"{_rounded(value / 10, 4)} \times 10^1",
        "times ten in braces": rf"{_rounded(value / 10, 4)} \cdot 10^{{1}}",
    }
    right |= {"equation": f"x = {text}", "percent": rf"{_rounded(value * 100, 3)}\%"}
    if value < 1:
        right |= {"no zero before the point": text[1:]}
    wrong = _scaled(value) | {
        "one digit more": f"{text}1" if "." in text else f"{text}.1",
        "comma": text.replace(".", ", ") if "." in text else f"{text}, 0",
        "percent of percent": rf"{text}\%\%",
    }
    wrong |= {
        "scientific, other power": f"{text}e2",
        "truncated": text[:-1] if "." in text and text[-2] != "." else f"{text}9",
    }
    return Answer("decimal", text, right, _unlike(wrong, value), undefined={"its percentage": rf"{text}\%"})


def _percent(rng: Draw) -> Answer:
    n = rng.randint(1, 99)
    value = Fraction(n, 100)
    right = {
        "without the sign": str(n),
        "as a fraction": frac(value),
        "as a decimal": _rounded(value, 2),
        "in text": rf"{n}\text{{ percent}}",
        "decimals": rf"{n}.0\%",
    }
    wrong = {
        "times ten": rf"{10 * n}\%",
        "a tenth": rf"{_rounded(Fraction(n, 10), 1)}\%",
        "a hundredth": rf"{_rounded(value, 2)}\%",
        "other sign": rf"-{n}\%",
        "plus one": rf"{n + 1}\%",
    }
    wrong |= {
        "times a hundred": str(100 * n),
        "hundredth of a hundredth": _rounded(value / 100, 4),
        "complement": rf"{100 - n}\%" if n != 50 else "0",
        "thousandth": _rounded(value / 10, 3),
    }
    return Answer("percentage", rf"{n}\%", right, wrong)


def _square_free(rng: Draw) -> int:
    return rng.choice([2, 3, 5, 6, 7, 10, 11, 13, 14, 15, 17, 19])


def _root(rng: Draw) -> Answer:
    a, b = rng.randint(2, 12), _square_free(rng)
    right = {
        "under the root": rf"\sqrt{{{a * a * b}}}",
        "power": rf"{a} \cdot {b}^{{1/2}}",
        "times": rf"{a} \cdot \sqrt{{{b}}}",
        "rationalised": rf"\frac{{{a * b}}}{{\sqrt{{{b}}}}}",
        "half power": rf"{a} \cdot {b}^{{\frac{{1}}{{2}}}}",
        "half power of the square": rf"({a * a * b})^{{0.5}}",
    }
    right |= {
        "root factor behind": rf"\sqrt{{{b}}} \cdot {a}",
        "equation": rf"x = {a}\sqrt{{{b}}}",
        "sum": rf"\sqrt{{{b}}} + {a - 1}\sqrt{{{b}}}",
    }
    wrong = {
        "sum under the root": rf"\sqrt{{{a} + {b}}}",
        "all under the root": rf"\sqrt{{{a * b}}}" if a * b != a * a * b else rf"\sqrt{{{a}}}",
        "swapped": rf"{b}\sqrt{{{a}}}" if a != b else rf"{b}\sqrt{{{a + 1}}}",
        "cube root": rf"{a}\sqrt[3]{{{b}}}",
        "other sign": rf"-{a}\sqrt{{{b}}}",
    }
    wrong |= {
        "without the root": str(a * b),
        "square": str(a * a * b),
        "plus": rf"{a} + \sqrt{{{b}}}",
        "two decimals": _rounded(Fraction(isqrt(a * a * b * 10**4), 100), 2),
        "plus or minus": rf"\pm {a}\sqrt{{{b}}}",
        "times ten": rf"{10 * a}\sqrt{{{b}}}",
        "only the root": rf"\sqrt{{{b}}}",
    }
    return Answer("root", rf"{a}\sqrt{{{b}}}", right, wrong)


def _surd_sum(rng: Draw) -> Answer:
    a, b, c = rng.randint(1, 20), rng.randint(2, 9), _square_free(rng)
    gold = rf"{a} + {b}\sqrt{{{c}}}"
    right = {
        "permuted": rf"{b}\sqrt{{{c}}} + {a}",
        "in brackets": rf"({a} + {b}\sqrt{{{c}}})",
        "doubled and halved": rf"\frac{{{2 * a} + {2 * b}\sqrt{{{c}}}}}{{2}}",
        "no spaces": rf"{a}+{b}\sqrt{{{c}}}",
        "minus minus": rf"{a} - (-{b}\sqrt{{{c}}})",
        "under the root": rf"{a} + \sqrt{{{b * b * c}}}",
    }
    wrong = {
        "conjugate": rf"{a} - {b}\sqrt{{{c}}}",
        "negative": rf"-{a} - {b}\sqrt{{{c}}}",
        "swapped": rf"{b} + {a}\sqrt{{{c}}}" if a != b else rf"{a + 1} + {b}\sqrt{{{c}}}",
        "product": rf"{a * b}\sqrt{{{c}}}",
        "plus or minus": rf"{a} \pm {b}\sqrt{{{c}}}",
        "both roots": rf"{a} + {b}\sqrt{{{c}}}, {a} - {b}\sqrt{{{c}}}",
        "first term": str(a),
        "second term": rf"{b}\sqrt{{{c}}}",
        "pair": rf"({a}, {b}\sqrt{{{c}}})",
        "neighbour": rf"{a} + {b}\sqrt{{{c + 1}}}",
    }
    return Answer("sum with a root", gold, right, wrong)


def _pi(rng: Draw) -> Answer:
    value = Fraction(rng.randint(1, 30), rng.choice([1, 2, 3, 4, 6]))
    gold = (
        rf"{value.numerator}\pi" if value.denominator == 1 else rf"\frac{{{value.numerator}\pi}}{{{value.denominator}}}"
    )
    right = {
        "factor before": rf"{frac(value)}\pi",
        "times": rf"{frac(value)} \cdot \pi",
        "factor behind": rf"\pi \cdot {frac(value)}",
        "slash": rf"{value.numerator}\pi/{value.denominator}",
        "doubled and halved": rf"\frac{{{2 * value.numerator}\pi}}{{{2 * value.denominator}}}",
        "brackets": rf"({frac(value)})\pi",
    }
    wrong = {
        "without pi": frac(value),
        "pi squared": rf"{frac(value)}\pi^2",
        "plus": rf"{frac(value)} + \pi",
        "two decimals": _rounded(value * Fraction(314159, 100000), 2),
        "other sign": rf"-{gold}",
        "doubled": rf"{frac(2 * value)}\pi",
        "over pi": rf"\frac{{{value.numerator}}}{{{value.denominator}\pi}}",
        "e for pi": rf"{frac(value)}e",
        "times ten": rf"{frac(10 * value)}\pi",
        "twenty-two sevenths": frac(value * Fraction(22, 7)),
    }
    return Answer("multiple of pi", gold, right, wrong)


def _power(rng: Draw) -> Answer:
    a, n = rng.choice([2, 3, 5, 7, 11]), rng.randint(5, 25)
    right = {
        "computed": str(a**n),
        "split": rf"{a}^{{{n - 2}}} \cdot {a}^{{2}}",
        "of a power": rf"({a}^{{{n}}})^1",
        "quotient": rf"\frac{{{a}^{{{n + 1}}}}}{{{a}}}",
        "times": rf"{a} \cdot {a}^{{{n - 1}}}",
    }
    wrong = {
        "swapped": rf"{n}^{{{a}}}",
        "product": str(a * n),
        "next": rf"{a}^{{{n + 1}}}",
        "minus one": rf"{a}^{{{n}}} - 1",
        "negative exponent": rf"{a}^{{-{n}}}",
        "other sign": rf"-{a}^{{{n}}}",
        "digits side by side": f"{a}{n}",
        "index": f"{a}_{{{n}}}",
        "last digit off": str(a**n + 1),
    }
    if a == n:
        wrong.pop("swapped")
    return Answer("power", rf"{a}^{{{n}}}", right, wrong)


def _interval(rng: Draw) -> Answer:
    a = rng.randint(-20, 20)
    b = a + rng.randint(1, 30)
    left, close = rng.choice("(["), rng.choice(")]")
    other_left, other_close = {"(": "[", "[": "("}[left], {")": "]", "]": ")"}[close]
    gold = f"{left}{a}, {b}{close}"
    right = {
        "left and right": rf"\left{left}{a}, {b}\right{close}",
        "no space": f"{left}{a},{b}{close}",
        "member": rf"x \in {left}{a}, {b}{close}",
        "fractions": rf"{left}\frac{{{2 * a}}}{{2}}, {b}{close}",
        "decimals": f"{left}{a}.0, {b}.0{close}",
    }
    wrong = {
        "other left end": f"{other_left}{a}, {b}{close}",
        "other right end": f"{left}{a}, {b}{other_close}",
        "both ends": f"{other_left}{a}, {b}{other_close}",
        "set": rf"\{{{a}, {b}\}}",
        "shifted": f"{left}{a + 1}, {b + 1}{close}",
        "wider": f"{left}{a}, {b + 1}{close}",
        "to infinity": rf"{left}{a}, \infty)",
        "length": str(b - a),
        "only its ends": f"{a}, {b}",
        "a point": f"{left}{a}, {a}{close}",
        "a triple": f"{left}{a}, {a}, {b}{close}",
    }
    if left == "(" and close == ")":
        wrong["negated"] = f"({-b}, {-a})" if a != -b else f"({a - 1}, {b})"
    undefined = {}
    if (left, close) == ("(", ")"):
        wrong.pop("only its ends")
        undefined["only its ends"] = f"{a}, {b}"
    else:
        undefined["only its ends"] = wrong.pop("only its ends")
    return Answer("interval", gold, right, wrong, undefined=undefined)


def _union(rng: Draw) -> Answer:
    a = rng.randint(-20, 0)
    b = a + rng.randint(1, 20)
    gold = rf"(-\infty, {a}) \cup ({b}, \infty)"
    right = {
        "permuted": rf"({b}, \infty) \cup (-\infty, {a})",
        "left and right": rf"\left(-\infty, {a}\right) \cup \left({b}, \infty\right)",
        "plus infinity": rf"(-\infty, {a}) \cup ({b}, +\infty)",
        "member": rf"x \in (-\infty, {a}) \cup ({b}, \infty)",
    }
    wrong = {
        "closed left": rf"(-\infty, {a}] \cup ({b}, \infty)",
        "closed right": rf"(-\infty, {a}) \cup [{b}, \infty)",
        "complement": f"[{a}, {b}]",
        "first part": rf"(-\infty, {a})",
        "second part": rf"({b}, \infty)",
        "everything": r"(-\infty, \infty)",
        "intersection": rf"(-\infty, {a}) \cap ({b}, \infty)",
        "shifted": rf"(-\infty, {a - 1}) \cup ({b}, \infty)",
        "a point more": rf"(-\infty, {a}) \cup ({b}, \infty) \cup \{{{a}\}}",
    }
    return Answer("union of intervals", gold, right, wrong)


def _set(rng: Draw) -> Answer:
    items = rng.sample(range(-20, 60), rng.randint(2, 5))
    body = ", ".join(map(str, items))
    right = {
        "permuted": rf"\{{{', '.join(map(str, items[::-1]))}\}}",
        "left and right": rf"\left\{{{body}\right\}}",
        "no spaces": rf"\{{{body.replace(' ', '')}\}}",
        "lbrace": rf"\lbrace {body} \rbrace",
        "decimals": rf"\{{{', '.join(f'{n}.0' for n in items)}\}}",
        "equation": rf"S = \{{{body}\}}",
    }
    wrong = {
        "one less": rf"\{{{', '.join(map(str, items[1:]))}\}}",
        "one more": rf"\{{{body}, 777\}}",
        "tuple": f"({body})",
        "one changed": rf"\{{{', '.join(map(str, [*items[:-1], 777]))}\}}",
        "negated": rf"\{{{', '.join(str(-n) for n in items)}\}}",
        "first member": str(items[0]),
        "its size": str(len(items)) if items != [len(items)] else "777",
        "sum": str(sum(items)),
        "set of the set": rf"\{{({body})\}}",
        "empty": r"\emptyset",
        "interval": f"[{min(items)}, {max(items)}]",
    }
    if {-n for n in items} == set(items):
        wrong.pop("negated")
    return Answer(
        "set",
        rf"\{{{body}\}}",
        right,
        wrong,
        undefined={"a member twice": rf"\{{{body}, {items[0]}\}}", "without braces": body},
    )


def _halved(n: int) -> str:
    return rf"\frac{{{2 * n}}}{{2}}"


def _tuple(rng: Draw) -> Answer:
    items = [rng.randint(-20, 40) for _ in range(rng.randint(2, 4))]
    while items == items[::-1] or len(set(items)) < len(items):
        items = [rng.randint(-20, 40) for _ in range(len(items))]
    if len(items) == 2 and items[0] < items[1]:
        items.reverse()
    body = ", ".join(map(str, items))
    right = {
        "left and right": rf"\left({body}\right)",
        "no spaces": f"({body.replace(' ', '')})",
        "fractions": f"({', '.join(map(_halved, items))})",
        "decimals": f"({', '.join(f'{n}.0' for n in items)})",
        "quad": rf"(\,{body}\,)",
    }
    wrong = {
        "permuted": f"({', '.join(map(str, items[::-1]))})",
        "set": rf"\{{{body}\}}",
        "one less": f"({', '.join(map(str, items[1:]))})" if len(items) > 2 else str(items[0]),
        "one more": f"({body}, 0)",
        "one changed": f"({', '.join(map(str, [*items[:-1], 777]))})",
        "negated": f"({', '.join(str(-n) for n in items)})",
        "first": str(items[0]),
        "sum": str(sum(items)),
        "product": rf"{items[0]} \cdot {items[1]}" if items[1] >= 0 else f"{items[0]}",
        "doubled": f"({', '.join(str(2 * n) for n in items)})",
        "rotated": f"({', '.join(map(str, items[1:] + items[:1]))})",
    }
    return Answer("tuple", f"({body})", right, wrong)


def _polynomial_text(coefficients: list[int], variable: str = "x") -> str:
    """Return a polynomial in LaTeX; the coefficients begin with the highest power."""
    text = ""
    for power, c in zip(range(len(coefficients) - 1, -1, -1), coefficients, strict=True):
        if c:
            name = "" if power == 0 else variable if power == 1 else f"{variable}^{{{power}}}"
            size = "" if abs(c) == 1 and power else str(abs(c))
            text += ("-" if c < 0 else "") + size + name if not text else (" - " if c < 0 else " + ") + size + name
    return text or "0"


def _polynomial(rng: Draw) -> Answer:
    r, s = rng.sample([n for n in range(-9, 10) if n], 2)
    while r == -s:
        r, s = rng.sample([n for n in range(-9, 10) if n], 2)
    coefficients = [1, -(r + s), r * s]
    gold = _polynomial_text(coefficients)
    factors = f"({_polynomial_text([1, -r])})({_polynomial_text([1, -s])})"
    terms = [f"{r * s}", rf"({-(r + s)})x", "x^2"]
    right = {
        "factored": factors,
        "permuted": " + ".join(terms),
        "no braces": gold.replace("{2}", "2"),
        "no spaces": gold.replace(" ", ""),
        "factors swapped": f"({_polynomial_text([1, -s])})({_polynomial_text([1, -r])})",
        "times one": f"1({gold})",
        "halved and doubled": rf"\frac{{2({gold})}}{{2}}",
        "Horner": f"x(x + {-(r + s)}) + {r * s}" if r + s < 0 else f"x(x - {r + s}) + ({r * s})",
    }
    wrong = {
        "other sign": f"-({gold})",
        "constant off": _polynomial_text([1, -(r + s), r * s + 1]),
        "middle sign": _polynomial_text([1, r + s, r * s]),
        "coefficients only": ", ".join(map(str, coefficients)),
        "roots": f"{r}, {s}",
        "other variable": _polynomial_text(coefficients, "y"),
        "capital variable": _polynomial_text(coefficients, "X"),
        "degree three": _polynomial_text([*coefficients, 0]),
        "one factor": f"({_polynomial_text([1, -r])})",
        "at one": str(sum(coefficients)),
        "squared": f"({gold})^2",
        "derivative": _polynomial_text([2, -(r + s)]),
    }
    return Answer("polynomial", gold, right, wrong, undefined={"equated to zero": f"{gold} = 0"})


def _matrix(rng: Draw) -> Answer:
    a, b, c, d = (rng.randint(-9, 20) for _ in range(4))
    while b == c or a == d:
        a, b, c, d = (rng.randint(-9, 20) for _ in range(4))

    def matrix(rows: list[list[object]], kind: str = "pmatrix") -> str:
        return rf"\begin{{{kind}}} " + r" \\ ".join(" & ".join(map(str, row)) for row in rows) + rf" \end{{{kind}}}"

    rows: list[list[object]] = [[a, b], [c, d]]
    right = {
        "square brackets": matrix(rows, "bmatrix"),
        "no spaces": matrix(rows).replace(" ", ""),
        "fractions": matrix([[rf"\frac{{{2 * a}}}{{2}}", b], [c, d]]),
        "decimals": matrix([[f"{a}.0", b], [c, f"{d}.0"]]),
    }
    wrong = {
        "transposed": matrix([[a, c], [b, d]]),
        "rows swapped": matrix([[c, d], [a, b]]),
        "columns swapped": matrix([[b, a], [d, c]]),
        "one changed": matrix([[a, b], [c, d + 1]]),
        "negated": matrix([[-a, -b], [-c, -d]]),
        "one row": matrix([[a, b]]),
        "a row more": matrix([[a, b], [c, d], [0, 0]]),
        "flattened": f"({a}, {b}, {c}, {d})",
        "determinant": str(a * d - b * c),
        "doubled": matrix([[2 * a, 2 * b], [2 * c, 2 * d]]),
        "first entry": str(a),
    }
    if (a, b, c, d) == (0, 0, 0, 0):
        wrong.pop("negated")
    return Answer("matrix", matrix(rows), right, wrong)


def _complex(rng: Draw) -> Answer:
    a, b = rng.choice([n for n in range(-15, 16) if n]), rng.choice([n for n in range(-15, 16) if abs(n) > 1])
    while abs(a) == abs(b):
        b += 1

    def form(real: int, imaginary: int) -> str:
        return f"{real} {'-' if imaginary < 0 else '+'} {abs(imaginary)}i"

    right = {
        "permuted": f"{b}i + {a}" if a > 0 else f"{b}i - {-a}",
        "no spaces": form(a, b).replace(" ", ""),
        "times i": rf"{a} + ({b}) \cdot i",
        "root of minus one": rf"{a} + ({b})\sqrt{{-1}}",
        "doubled and halved": rf"\frac{{{2 * a} + ({2 * b})i}}{{2}}",
        "brackets": f"({form(a, b)})",
    }
    wrong = {
        "conjugate": form(a, -b),
        "negative": form(-a, -b),
        "swapped": form(b, a),
        "real part": str(a),
        "imaginary part": f"{b}i",
        "pair": f"({a}, {b})",
        "i squared": f"{a} + ({b})i^2",
        "modulus": rf"\sqrt{{{a * a + b * b}}}",
        "without i": f"{a} + ({b})",
        "j instead": form(a, b).replace("i", "k"),
        "times ten": form(10 * a, 10 * b),
        "turned": form(-b, a),
        "both": f"{form(a, b)}, {form(a, -b)}",
    }
    return Answer("complex number", form(a, b), right, wrong)


_UNITS = (
    ("cm", "m", "centimeters"),
    ("kg", "g", "kilograms"),
    ("km", "miles", "kilometers"),
    ("hours", "minutes", "hrs"),
    ("feet", "inches", "ft"),
)


def _unit(rng: Draw) -> Answer:
    n, (unit, other, spelled) = rng.randint(2, 400), rng.choice(_UNITS)
    right = {
        "without the unit": str(n),
        "mathrm": rf"{n}\,\mathrm{{{unit}}}",
        "spelled otherwise": rf"{n}\text{{ {spelled}}}",
        "all in text": rf"\text{{{n} {unit}}}",
        "decimals": rf"{n}.0\text{{ {unit}}}",
        "no space": rf"{n}\text{{{unit}}}",
        "equation": rf"x = {n}\text{{ {unit}}}",
        "fraction": rf"\frac{{{2 * n}}}{{2}}\text{{ {unit}}}",
    }
    wrong = {
        "other unit": rf"{n}\text{{ {other}}}",
        "other number": rf"{n + 1}\text{{ {unit}}}",
        "other scale": rf"{10 * n}\text{{ {unit}}}",
        "other sign": rf"-{n}\text{{ {unit}}}",
        "second number": rf"{n}\text{{ {unit} or {n + 1}}}",
        "number word": rf"{n}\text{{ {unit} and six}}",
        "thousand": rf"{n}\text{{ thousand {unit}}}",
        "only the unit": rf"\text{{{unit}}}",
        "per hour": rf"{n}\text{{ {unit}/{other}}}",
        "dollars": rf"\${n}",
        "degrees": rf"{n}^\circ",
    }
    if unit == "hours":
        wrong.pop("per hour")
    return Answer("number with a unit", rf"{n}\text{{ {unit}}}", right, wrong)


def _money(rng: Draw) -> Answer:
    n = rng.randint(100, 99_999)
    text = f"{n // 100}.{n % 100:02d}"
    right = {
        "without the sign": text,
        "dollars": rf"{text}\text{{ dollars}}",
        "bare dollars": f"{text} dollars",
        "fraction": frac(Fraction(n, 100)),
        "space": rf"\$ {text}",
    }
    wrong = {
        "cents": rf"{text}\text{{ cents}}",
        "in cents": str(n),
        "other sign": rf"-\${text}",
        "a cent more": rf"\${(n + 1) // 100}.{(n + 1) % 100:02d}",
        "times ten": rf"\${n // 10}.{n % 10}0",
        "million": rf"\${text}\text{{ million}}",
        "two amounts": rf"\${text}, \${text}1",
        "percent": "",
        "degrees": rf"{text}^\circ",
    }
    wrong.pop("percent")
    return Answer("money", rf"\${text}", right, wrong)


_WORDS = [
    "east",
    "west",
    "north",
    "south",
    "Tuesday",
    "Friday",
    "blue",
    "red",
    "green",
    "circle",
    "parabola",
    "ellipse",
    "hyperbola",
    "even",
    "odd",
    "yes",
    "none",
    "Evelyn",
    "Alice",
    "Navin",
]


def _text(rng: Draw) -> Answer:
    word = rng.choice(_WORDS)
    others = [w for w in _WORDS if w != word]
    scrambled = word[::-1]
    right = {
        "bare": word,
        "lower case": rf"\text{{{word.lower()}}}",
        "capitals": rf"\text{{{word.upper()}}}",
        "mathrm": rf"\mathrm{{{word}}}",
        "bold": rf"\textbf{{{word}}}",
        "full stop": rf"\text{{{word}.}}",
        "spaces": rf"\text{{ {word} }}",
    }
    wrong = {
        "other word": rf"\text{{{rng.choice(others)}}}",
        "letters permuted": rf"\text{{{scrambled}}}",
        "letters permuted, bare": scrambled,
        "longer": rf"\text{{{word}x}}",
        "shorter": rf"\text{{{word[:-1]}}}",
        "two words": rf"\text{{{word} or {others[0]}}}",
        "negated": rf"\text{{not {word}}}",
        "number": "5",
        "first letter": rf"\text{{{word[0]}}}",
        "empty": r"\text{}",
        "Cyrillic letter": rf"\text{{{word.replace('e', 'е').replace('a', 'а').replace('o', 'о')}}}",
    }
    if not set(word) & set("eao"):
        wrong.pop("Cyrillic letter")
    return Answer("word", rf"\text{{{word}}}", right, wrong)


def _choice(rng: Draw) -> Answer:
    letter, other = rng.sample("ABCDEF", 2)
    right = {
        "no parentheses": rf"\text{{{letter}}}",
        "bare": letter,
        "bare in parentheses": f"({letter})",
        "bold": rf"\textbf{{({letter})}}",
        "full stop": rf"\text{{({letter}).}}",
    }
    wrong = {
        "another letter": rf"\text{{({other})}}",
        "another letter, bare": other,
        "two letters": rf"\text{{({letter}) or ({other})}}",
        "two bare letters": letter + other,
        "number": str("ABCDEF".index(letter) + 1),
        "doubled": letter * 2,
        "all": "A, B, C, D, E, F",
        "negated": rf"\text{{not ({letter})}}",
    }
    return Answer("choice", rf"\text{{({letter})}}", right, wrong)


def _base(rng: Draw) -> Answer:
    base = rng.randint(2, 9)
    digits = str(rng.randint(1, base - 1)) + "".join(str(rng.randint(0, base - 1)) for _ in range(rng.randint(2, 6)))
    right = {"braces": f"{digits}_{{{base}}}", "text": rf"{digits}_{{\text{{{base}}}}}"}
    wrong = {
        "without the base": digits,
        "other base": f"{digits}_{{{base + 1}}}",
        "other digits": f"{digits}0_{{{base}}}",
        "reversed": f"{digits[::-1]}_{{{base}}}" if digits != digits[::-1] else f"{digits}1_{base}",
        "other sign": f"-{digits}_{{{base}}}",
        "power": f"{digits}^{{{base}}}",
        "product": rf"{digits} \cdot {base}",
    }
    refused = {"in base ten": str(int(digits, base))} if int(digits, base) != int(digits) else {}
    return Answer("number in a base", f"{digits}_{base}", right, wrong, refused)


def _line(rng: Draw) -> Answer:
    m, b = rng.choice([n for n in range(-9, 10) if n not in (0, 1, -1)]), rng.choice([n for n in range(-20, 20) if n])
    side = _polynomial_text([m, b])
    right = {
        "no spaces": f"y={side}".replace(" ", ""),
        "sides swapped": f"{side} = y",
        "terms permuted": f"y = {b} + {m}x" if m > 0 else f"y = {b} - {-m}x",
        "right side alone": side,
    }
    wrong = {
        "other slope": f"y = {_polynomial_text([m + 1 or 1, b])}",
        "other sign": f"y = -({side})",
        "other intercept": f"y = {_polynomial_text([m, b + 1])}",
        "x and y swapped": f"x = {_polynomial_text([m, b], 'y')}",
        "inequality": f"y < {side}",
        "slope": str(m),
        "intercept": str(b),
        "parallel through zero": f"y = {m}x",
        "inverse slope": rf"y = \frac{{1}}{{{m}}}x + ({b})",
    }
    return Answer(
        "equation of a line",
        f"y = {side}",
        right,
        wrong,
        undefined={"all on one side": f"y - ({side}) = 0", "doubled": f"2y = 2({side})"},
    )


def _degrees(rng: Draw) -> Answer:
    n = rng.randint(1, 359)
    right = {
        "without the sign": str(n),
        "braces": rf"{n}^{{\circ}}",
        "in text": rf"{n}\text{{ degrees}}",
        "decimals": rf"{n}.0^\circ",
        "equation": rf"x = {n}^\circ",
    }
    wrong = {
        "radians": rf"{n}\text{{ radians}}",
        "other": rf"{n + 1}^\circ",
        "complement": rf"{360 - n}^\circ" if n != 180 else r"0^\circ",
        "other sign": rf"-{n}^\circ",
        "times ten": rf"{10 * n}^\circ",
        "power": f"{n}^2" if n > 1 else "2",
        "percent of pi": rf"{n}\pi",
    }
    return Answer("degrees", rf"{n}^\circ", right, wrong)


def _function(rng: Draw) -> Answer:
    a = rng.choice([2, 3, 5, 6, 7, 10])
    b = rng.choice([n for n in (2, 3, 5, 6, 7, 10, 11) if n != a])
    kind = rng.choice(["log", "exp", "trig"])
    if kind == "log":
        gold, right = (
            rf"\ln({a})",
            {
                "no brackets": rf"\ln {a}",
                "of the inverse": rf"-\ln(\frac{{1}}{{{a}}})",
                "half of the square": rf"\frac{{\ln({a * a})}}{{2}}",
                "left and right": rf"\ln\left({a}\right)",
            },
        )
        wrong = {
            "other argument": rf"\ln({b})",
            "other sign": rf"-\ln({a})",
            "argument": str(a),
            "of the square": rf"\ln({a * a})",
            "squared": rf"\ln({a})^2",
            "exponential": f"e^{{{a}}}",
            "plus one": rf"\ln({a}) + 1",
            "log to base two": rf"\log_2({a})",
        }
    elif kind == "exp":
        gold, right = (
            f"e^{{{a}}}",
            {
                "split": rf"e^{{{a - 1}}} \cdot e",
                "inverse": rf"\frac{{1}}{{e^{{-{a}}}}}",
                "power of a power": f"(e^{{{a}}})^1",
            },
        )
        wrong = {
            "other exponent": f"e^{{{b}}}",
            "negative exponent": f"e^{{-{a}}}",
            "other sign": f"-e^{{{a}}}",
            "product": f"{a}e",
            "exponent": str(a),
            "pi": rf"\pi^{{{a}}}",
            "log": rf"\ln({a})",
            "plus one": f"e^{{{a}}} + 1",
        }
    else:
        gold, right = (
            rf"\sin({a})",
            {"no brackets": rf"\sin {a}", "odd": rf"-\sin(-{a})", "shifted": rf"\cos(\frac{{\pi}}{{2}} - {a})"},
        )
        wrong = {
            "cosine": rf"\cos({a})",
            "other sign": rf"-\sin({a})",
            "other argument": rf"\sin({b})",
            "argument": str(a),
            "squared": rf"\sin({a})^2",
            "doubled": rf"2\sin({a})",
            "tangent": rf"\tan({a})",
            "arcsine": rf"\arcsin({a})",
        }
    return Answer(f"function ({kind})", gold, right, wrong)


def _combinatorial(rng: Draw) -> Answer:
    n = rng.randint(5, 12)
    k = rng.randint(2, n - 2)
    value = 1
    for at in range(k):
        value = value * (n - at) // (at + 1)
    right = {
        "computed": str(value),
        "other half": rf"\binom{{{n}}}{{{n - k}}}",
        "dbinom": rf"\dbinom{{{n}}}{{{k}}}",
        "factorials": rf"\frac{{{n}!}}{{{k}! \cdot {n - k}!}}",
    }
    wrong = {
        "swapped": rf"\binom{{{k}}}{{{n}}}",
        "fraction": frac(Fraction(n, k)),
        "next": rf"\binom{{{n + 1}}}{{{k}}}",
        "plus one": str(value + 1),
        "factorial": f"{n}!",
        "ordered": rf"\frac{{{n}!}}{{{n - k}!}}",
        "other sign": rf"-\binom{{{n}}}{{{k}}}",
        "pair": f"({n}, {k})",
        "power": f"{n}^{{{k}}}",
    }
    return Answer("binomial coefficient", rf"\binom{{{n}}}{{{k}}}", right, wrong)


def _repeating(rng: Draw) -> Answer:
    digit = rng.randint(1, 8)
    lead = rng.randint(0, 9)
    value = Fraction(lead, 10) + Fraction(digit, 90)
    right = {
        "fraction": frac(value),
        "bar": rf"0.{lead}\bar{{{digit}}}",
        "six places": _rounded(value, 6),
        "twice in the bar": rf"0.{lead}\overline{{{digit}{digit}}}",
        "dots": rf"0.{lead}{str(digit) * 4}\ldots" if lead != digit else frac(value),
    }
    wrong = {
        "without the bar": f"0.{lead}{digit}",
        "bar over both": rf"0.\overline{{{lead}{digit}}}" if lead != digit else rf"0.\overline{{{lead}{digit + 1}}}",
        "other digit": rf"0.{lead}\overline{{{digit + 1}}}",
        "two digits": f"0.{lead}{digit}{digit}",
        "other sign": rf"-0.{lead}\overline{{{digit}}}",
        "ten times": rf"{lead}.\overline{{{digit}}}",
        "plus one": rf"1.{lead}\overline{{{digit}}}",
    }
    return Answer("repeating decimal", rf"0.{lead}\overline{{{digit}}}", right, wrong)


def _scientific(rng: Draw) -> Answer:
    mantissa, power = Fraction(rng.randint(11, 99), 10), rng.choice([n for n in range(-25, 26) if abs(n) > 4])
    m = _rounded(mantissa, 1)
    right = {
        "cdot": rf"{m} \cdot 10^{{{power}}}",
        "e": f"{m}e{power}",
        "E": f"{m}E{power}",
        "mantissa times ten": rf"{_rounded(mantissa * 10, 1)} \times 10^{{{power - 1}}}",
        "zero behind": rf"{m}0 \times 10^{{{power}}}",
        "fraction": rf"{frac(mantissa)} \cdot 10^{{{power}}}",
    }
    wrong = {
        "other exponent": rf"{m} \times 10^{{{power + 1}}}",
        "other sign of the exponent": rf"{m} \times 10^{{{-power}}}",
        "other mantissa": rf"{_rounded(mantissa + Fraction(1, 10), 1)} \times 10^{{{power}}}",
        "other sign": rf"-{m} \times 10^{{{power}}}",
        "zero": "0",
        "mantissa": m,
        "exponent alone": rf"10^{{{power}}}",
        "base two": rf"{m} \times 2^{{{power}}}",
        "plus": rf"{m} + 10^{{{power}}}",
        "e with other exponent": f"{m}e{power - 1}",
    }
    return Answer("scientific notation", rf"{m} \times 10^{{{power}}}", right, wrong)


def _inequality(rng: Draw) -> Answer:
    n, sign = rng.randint(-30, 30), rng.choice(["<", ">", r"\le", r"\ge"])
    opposite = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}[sign]
    strict = {"<": r"\le", ">": r"\ge", r"\le": "<", r"\ge": ">"}[sign]
    right = {
        "sides swapped": f"{n} {opposite} x",
        "no spaces": f"x{sign} {n}".replace("x ", "x"),
        "fraction": rf"x {sign} \frac{{{2 * n}}}{{2}}",
    }
    wrong = {
        "opposite": f"x {opposite} {n}",
        "equality": f"x = {n}",
        "number alone": str(n),
        "other strictness": f"x {strict} {n}",
        "other bound": f"x {sign} {n + 1}",
        "not equal": rf"x \ne {n}",
        "other variable": f"y {sign} {n}",
    }
    return Answer("inequality", f"x {sign} {n}", right, wrong)


def _list(rng: Draw) -> Answer:
    items = rng.sample(range(-30, 90), rng.randint(2, 4))
    body = ", ".join(map(str, items))
    right = {
        "permuted": ", ".join(map(str, items[::-1])),
        "no spaces": body.replace(" ", ""),
        "and": ", ".join(map(str, items[:-1])) + rf"\text{{ and }}{items[-1]}",
        "or": ", ".join(map(str, items[:-1])) + rf"\text{{ or }}{items[-1]}",
        "set": rf"\{{{body}\}}",
        "solutions": ", ".join(f"x = {n}" for n in items),
        "one equation": f"x = {body}",
    }
    wrong = {
        "one less": ", ".join(map(str, items[1:])),
        "one more": f"{body}, 777",
        "one changed": ", ".join(map(str, [*items[1:], 777])),
        "sum": str(sum(items)),
        "first": str(items[0]),
        "negated": ", ".join(str(-n) for n in items),
        "side by side": " ".join(map(str, items)),
        "product": r" \cdot ".join(f"({n})" for n in items),
        "sum written": " + ".join(f"({n})" for n in items),
    }
    if {-n for n in items} == set(items):
        wrong.pop("negated")
    if len(items) == 2 and items[0] == 777:
        wrong.pop("one changed")
    return Answer("several solutions", body, right, wrong)


def _plus_minus(rng: Draw) -> Answer:
    n = rng.randint(2, 60)
    right = {
        "both": f"{n}, -{n}",
        "both, permuted": f"-{n}, {n}",
        "equation": rf"x = \pm {n}",
        "no space": rf"\pm{n}",
        "set": rf"\{{{n}, -{n}\}}",
        "or": rf"{n}\text{{ or }}-{n}",
    }
    wrong = {
        "plus only": str(n),
        "minus only": str(-n),
        "other": rf"\pm {n + 1}",
        "zero": "0",
        "interval": f"(-{n}, {n})",
        "with zero": f"-{n}, 0, {n}",
        "doubled": rf"\pm {2 * n}",
        "twice the same": f"{n}, {n}",
    }
    return Answer("plus or minus", rf"\pm {n}", right, wrong)


def _ratio(rng: Draw) -> Answer:
    a, b = 1, 1
    while a == b or gcd(a, b) > 1:
        a, b = rng.randint(1, 20), rng.randint(2, 20)
    right = {"spaces": f"{a} : {b}", "in text": rf"\text{{{a}:{b}}}"}
    wrong = {
        "swapped": f"{b}:{a}",
        "other": f"{a}:{b + 1}",
        "first": str(a),
        "sum": str(a + b),
        "product": str(a * b) if a > 1 and b > 1 else "777",
        "pair": f"({a}, {b})",
        "negative": f"-{a}:{b}",
    }
    return Answer(
        "ratio",
        f"{a}:{b}",
        right,
        wrong,
        undefined={"fraction": frac(Fraction(a, b)), "not reduced": f"{2 * a}:{2 * b}"},
    )


KINDS: tuple[Callable[[Draw], Answer], ...] = (
    _integer,
    _fraction,
    _decimal,
    _percent,
    _root,
    _surd_sum,
    _pi,
    _power,
    _interval,
    _union,
    _set,
    _tuple,
    _polynomial,
    _matrix,
    _complex,
    _unit,
    _money,
    _text,
    _choice,
    _base,
    _line,
    _degrees,
    _function,
    _combinatorial,
    _repeating,
    _scientific,
    _inequality,
    _list,
    _plus_minus,
    _ratio,
)


def truths(count: int = 1_000, seed: int = 0) -> list[Answer]:
    """Return generated answers, all kinds in turn, without repetitions where a kind has enough answers."""
    rng = random.Random(seed)
    found: list[Answer] = []
    seen: set[str] = set()
    for number in range(count):
        answer = KINDS[number % len(KINDS)](rng)
        for _ in range(20):
            if answer.gold not in seen:
                break
            answer = KINDS[number % len(KINDS)](rng)
        seen.add(answer.gold)
        found.append(answer)
    return found


def boxed(latex: str) -> str:
    return rf"So the answer is $\boxed{{{latex}}}$."


def _around(template: str) -> Callable[[Answer], str]:
    return lambda answer: template.replace("@", answer.gold)


_SECOND = "7777777"
AROUND: tuple[Transformation, ...] = (
    *(
        Transformation(name, "place of the answer", RIGHT, _around(template))
        for name, template in (
            ("box", r"So $\boxed{@}$."),
            ("fbox", r"\fbox{@}"),
            ("box with dollars inside", r"\boxed{$@$}"),
            ("box with space", r"\boxed {@}"),
            ("after ####", "so\n#### @"),
            ("next line after ####", "####\n@"),
            ("answer tag", "<answer>@</answer>"),
            ("the last of two boxes", r"\boxed{7777777} then \boxed{@}"),
            ("nested boxes", r"\boxed{\boxed{@}}"),
            ("parentheses of math", r"\boxed{\(@\)}"),
            ("display math inside", r"\boxed{\[@\]}"),
            ("full stop inside", r"\boxed{@.}"),
            ("spaces inside", r"\boxed{  @  }"),
            ("box goes before ####", "\\boxed{@}\n#### 7777777"),
            ("unfinished box at the end", r"\boxed{@} and \boxed{7777777"),
            ("displaystyle", r"\boxed{\displaystyle @}"),
            ("thin space around", r"\boxed{\,@\,}"),
            ("a wrong draft in the thought", r"<think>\boxed{7777777}</think>\boxed{@}"),
            ("thinking opened by the prompt", r"\boxed{7777777}</think>\boxed{@}"),
            ("line breaks inside", "\\boxed{\n@\n}"),
        )
    ),
    *(
        Transformation(name, "thinking", WRONG, _around(template))
        for name, template in (
            ("only in the thought", r"<think>\boxed{@}</think>I do not know."),
            ("thought never closed", r"<think>\boxed{@}"),
            ("only in the thought of the prompt", r"\boxed{@}</think>Hm."),
            ("right in the thought, wrong after it", r"<think>\boxed{@}</think>\boxed{7777777}"),
        )
    ),
    *(
        Transformation(name, "two answers", WRONG, _around(template))
        for name, template in (
            ("right box, wrong box", r"\boxed{@} or \boxed{7777777}"),
            ("wrong box in the right one", r"\boxed{@ \boxed{7777777}}"),
            ("comma and another", r"\boxed{@, 7777777}"),
            ("another and comma", r"\boxed{7777777, @}"),
            ("or another", r"\boxed{@\text{ or }7777777}"),
            ("or another in text", r"\boxed{@\text{ or 7777777}}"),
            ("and another", r"\boxed{@\text{ and }7777777}"),
            ("semicolon and another", r"\boxed{@; 7777777}"),
            ("or a word", r"\boxed{@\text{ or seven}}"),
            ("wrong box after the right marker", "#### @\n\\boxed{7777777}"),
            ("equals another", r"\boxed{@ = 7777777}"),
            ("another equals it", r"\boxed{7777777 = @}"),
            ("not equal to another", r"\boxed{@ \ne 7777777}"),
            ("another in front, side by side", r"\boxed{7777777 \quad @}"),
            ("dots to another", r"\boxed{@ \ldots 7777777}"),
            ("set of both", r"\boxed{\{@, 7777777\}}"),
            ("pair of both", r"\boxed{(@, 7777777)}"),
            ("approximately another", r"\boxed{@ \approx 7777777}"),
            ("implies another", r"\boxed{@ \Rightarrow 7777777}"),
        )
    ),
    *(
        Transformation(name, "changed", WRONG, _around(template))
        for name, template in (
            ("or more", r"\boxed{@\text{ or more}}"),
            ("or none", r"\boxed{@\text{ or none}}"),
            ("negated as a whole", r"\boxed{\neg(@)}"),
            ("plus a million", r"\boxed{@ + 1000000}"),
            ("plus a variable", r"\boxed{@ + q}"),
            ("a power plus three", r"\boxed{(@)^{77} + 3}"),
            ("a variable alone", r"\boxed{q}"),
            ("nothing", ""),
            ("empty box", r"\boxed{}"),
            ("no marker", "The answer is @."),
            ("a question mark", r"\boxed{?}"),
            ("empty set", r"\boxed{\emptyset}"),
            ("everything", r"\boxed{(-\infty, \infty)}"),
            ("NaN", r"\boxed{NaN}"),
            ("infinity", r"\boxed{\infty}"),
            ("undefined", r"\boxed{\frac{1}{0}}"),
            ("true", r"\boxed{\text{True}}"),
            ("a huge number", r"\boxed{10^{99}}"),
            ("unclosed box", r"\boxed{@"),
            ("box in words", "boxed{@}"),
            ("the letters of a box", r"\boxe{@}"),
            ("answer tag not closed", "<answer>@"),
        )
    ),
    *(
        Transformation(
            name,
            "hedge without a number",
            UNDEFINED,
            _around(template),
            "text without a number beside the answer is a unit by the rule",
        )
        for name, template in (
            ("probably", r"\boxed{@\text{ probably}}"),
            ("is wrong", r"\boxed{@\text{ is wrong}}"),
            ("not", r"\boxed{\text{not }@}"),
            ("about", r"\boxed{\text{about }@}"),
        )
    ),
)


def transformations(answer: Answer) -> Iterator[Transformation]:
    """Yield the forms of an answer, in a box, and the ways to place it in a response."""
    for forms, verdict in (
        (answer.right, RIGHT),
        (answer.wrong, WRONG),
        (answer.refused, REFUSED),
        (answer.undefined, UNDEFINED),
    ):
        for name, latex in forms.items():
            yield Transformation(
                f"{answer.kind}, {name}",
                answer.kind,
                verdict,
                lambda _, latex=latex: boxed(latex),
                "the page of the reward does not say",
            )  # type: ignore[misc]
    yield from AROUND


def judge_with(pool: MathPool) -> Callable[[Answer, str], Verdict]:
    return lambda answer, text: judge_math(text, answer.gold, pool=pool)


def all_names(answers: Iterable[Answer]) -> set[str]:
    return {how.name for answer in answers for how in transformations(answer)}
