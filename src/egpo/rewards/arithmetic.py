"""Exact arithmetic over model text: `+ - * /`, parentheses, unary minus, integers, and nothing else.

No `eval`, no `ast`, no floats, no recursion: two stacks and pairs of integers. The length is bounded before anything is
read, and with it depth, time and the size of every value.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_CHARACTERS = 1000
"""Of an expression, inner white space included. It bounds the digits of every value too, below what `int` refuses."""

FAULTS = {
    "empty_expression": "there is nothing to evaluate",
    "expression_too_long": f"the expression is longer than {MAX_CHARACTERS} characters",
    "illegal_character": "something other than ASCII digits, + - * / × ÷ −, parentheses and white space",
    "malformed_expression": "the characters are right, the expression is not: `1 2`, `2**3`, `(1`, `()`, `+1`",
    "division_by_zero": "the expression is well formed and divides by zero",
}

_DIGITS = "0123456789"
_ALLOWED = _DIGITS + "+-*/×÷−() \t\r\n"
_ONE_SPELLING = str.maketrans("×÷−", "*/-")
_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
_NEGATE = "negate"
_INFIX = "+-*/"
_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2, _NEGATE: 3}

# (numerator, denominator), unreduced: with bounded text a reduction costs more than it saves. None: undefined.
_Ratio = tuple[int, int] | None


@dataclass(frozen=True)
class Evaluation:
    """The value and the integers used, in order; or the fault, one of `FAULTS`.

    A division by zero has its integers and no value. Any other fault has neither.
    """

    value: Fraction | None
    numbers: tuple[int, ...]
    fault: str = ""


class _Malformed(Exception):  # noqa: N818 - raised and caught in this file alone
    """The tokens do not make an expression."""


def evaluate(text: str) -> Evaluation:
    """Read one expression and compute it exactly. Any string may come in; what is wrong with it comes out."""
    expression = text.strip()
    fault = _spelling_fault(expression)
    if fault:
        return Evaluation(None, (), fault)
    tokens = _TOKEN.findall(expression.translate(_ONE_SPELLING))
    try:
        ratio = _compute(tokens)
    except _Malformed:
        return Evaluation(None, (), "malformed_expression")
    numbers = tuple([int(token) for token in tokens if token[0] in _DIGITS])
    if ratio is None:
        return Evaluation(None, numbers, "division_by_zero")
    return Evaluation(Fraction(*ratio), numbers)


def _spelling_fault(expression: str) -> str:
    if not expression:
        return "empty_expression"
    if len(expression) > MAX_CHARACTERS:
        return "expression_too_long"
    # What is left after stripping every allowed character begins with one that is not.
    return "illegal_character" if expression.strip(_ALLOWED) else ""


def _compute(tokens: list[str]) -> _Ratio:
    """Dijkstra's shunting yard, computing as it goes."""
    values: list[_Ratio] = []
    operators: list[str] = []
    operand_next = True
    for token in tokens:
        if operand_next:
            if token[0] in _DIGITS:
                values.append((int(token), 1))
                operand_next = False
            else:
                operators.append(_prefix(token))
        elif token == ")":
            _apply_down_to(0, values, operators)
            if not operators:
                raise _Malformed
            operators.pop()
        elif token in _INFIX:
            _apply_down_to(_BINDING[token], values, operators)
            operators.append(token)
            operand_next = True
        else:  # an operand right after an operand: `1 2`, `2(3)`
            raise _Malformed
    if operand_next:
        raise _Malformed
    _apply_down_to(0, values, operators)
    if operators:  # a parenthesis that was never closed
        raise _Malformed
    return values[0]


def _prefix(token: str) -> str:
    """What may stand where an operand is due: an opening parenthesis or a minus sign."""
    if token == "(":
        return token
    if token == "-":
        return _NEGATE
    raise _Malformed


def _apply_down_to(binding: int, values: list[_Ratio], operators: list[str]) -> None:
    """Apply every operator on the stack that binds at least this tightly, back to the last open parenthesis."""
    while operators and operators[-1] != "(" and _BINDING[operators[-1]] >= binding:
        operator = operators.pop()
        right = values.pop()
        if operator == _NEGATE:
            values.append(None if right is None else (-right[0], right[1]))
        else:
            values.append(_combine(values.pop(), operator, right))


def _combine(left: _Ratio, operator: str, right: _Ratio) -> _Ratio:
    if left is None or right is None:
        return None
    (a, b), (c, d) = left, right
    if operator == "*":
        return a * c, b * d
    if operator == "/":
        return (a * d, b * c) if c else None
    return (a * d + c * b if operator == "+" else a * d - c * b), b * d
