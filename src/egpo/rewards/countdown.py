"""The Countdown reward. The task is to reach the target with the given numbers, each used exactly once.

    reward = 0.1 (thinking closed) + 0.1 (answer tag) + 0.3 (exactly the given numbers) + 0.5 (value right)

The expression is in the last `<answer>…</answer>` after the thinking; `= target` may follow it. A part of the answer
pays only if the parts before it pay: otherwise writing down the target itself would pay 0.7.

The arithmetic is exact: `+ - * /`, parentheses, unary minus and integers, on two stacks and pairs of integers. No
`eval`, no `ast`, no floats, no recursion. The length of the text is bounded first, which bounds depth, time and values.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from operator import index

from egpo.errors import InputError, nearest
from egpo.rewards.answers import last_tagged, split_thinking
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS

MAX_CHARACTERS = 1000
"""The maximum length of an expression, with inner white space. It also keeps values below Python's limit on the digits
of an `int`."""

FAULTS = {
    "empty_expression": "there is nothing to evaluate",
    "expression_too_long": f"the expression is longer than {MAX_CHARACTERS} characters",
    "illegal_character": "a character other than ASCII digits, + - * / × ÷ −, parentheses and white space",
    "malformed_expression": "allowed characters that do not form an expression: `1 2`, `2**3`, `(1`, `()`, `+1`",
    "division_by_zero": "the expression is well formed and divides by zero",
}

_DIGITS = "0123456789"
_ALLOWED = _DIGITS + "+-*/×÷−() \t\r\n"
_ONE_SPELLING = str.maketrans("×÷−", "*/-")
_TOKEN = re.compile(r"[0-9]+|[-+*/()]")
_NEGATE = "negate"
_INFIX = "+-*/"
_BINDING = {"+": 1, "-": 1, "*": 2, "/": 2, _NEGATE: 3}

# (numerator, denominator), not reduced: in a short text a reduction costs more than it saves. None: division by zero.
_Ratio = tuple[int, int] | None


@dataclass(frozen=True)
class ExpressionValue:
    """The result of evaluating an expression: its value and the integers in it, in order; or its fault, of `FAULTS`.

    A division by zero has its integers and no value. Any other fault has neither.
    """

    value: Fraction | None
    numbers: tuple[int, ...]
    fault: str = ""


class _Malformed(Exception):  # noqa: N818 - raised and caught in this file alone
    """An error for tokens that do not form an expression."""


def evaluate(text: str) -> ExpressionValue:
    """Compute one expression exactly. Accepts any string: if it is not an expression, the result has a `fault`."""
    expression = text.strip()
    fault = _spelling_fault(expression)
    if fault:
        return ExpressionValue(None, (), fault)
    tokens = _TOKEN.findall(expression.translate(_ONE_SPELLING))
    try:
        ratio = _compute(tokens)
    except _Malformed:
        return ExpressionValue(None, (), "malformed_expression")
    numbers = tuple([int(token) for token in tokens if token[0] in _DIGITS])
    if ratio is None:
        return ExpressionValue(None, numbers, "division_by_zero")
    return ExpressionValue(Fraction(*ratio), numbers)


def _spelling_fault(expression: str) -> str:
    if not expression:
        return "empty_expression"
    if len(expression) > MAX_CHARACTERS:
        return "expression_too_long"
    # `strip` removes allowed characters from both ends: text is left only if there is a character that is not allowed.
    return "illegal_character" if expression.strip(_ALLOWED) else ""


def _compute(tokens: list[str]) -> _Ratio:
    """Evaluate the tokens with Dijkstra's shunting-yard algorithm."""
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
    """Return the operator for a token where an operand is expected; _Malformed if it is neither `(` nor `-`."""
    if token == "(":
        return token
    if token == "-":
        return _NEGATE
    raise _Malformed


def _apply_down_to(binding: int, values: list[_Ratio], operators: list[str]) -> None:
    """Apply the operators on the stack with a precedence of `binding` or more, back to the last open parenthesis."""
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


PARTS = {"thinking": 0.1, "answer_tag": 0.1, "numbers": 0.3, "value": 0.5}
MODES = ("shaped", "binary")

REASONS = {
    "correct": "the answer uses exactly the given numbers, and its value is the target",
    "wrong_value": "the answer uses exactly the given numbers, and its value is not the target",
    "false_equation": "the value is the target, and the text after `=` is not",
    "wrong_numbers": "the answer does not use exactly the given numbers, each once",
    "no_answer_tag": "there is no complete <answer>…</answer> after the thinking",
    "unclosed_thinking": "the thinking was opened and never closed: there is no answer",
    **FAULTS,
}

# The parts of the answer that are paid for each reason. For any other reason: the answer tag alone.
_ANSWER_PARTS = {
    "correct": ("answer_tag", "numbers", "value"),
    "wrong_value": ("answer_tag", "numbers"),
    "false_equation": ("answer_tag", "numbers"),
    "division_by_zero": ("answer_tag", "numbers"),
    "no_answer_tag": (),
    "unclosed_thinking": (),
}


def judge_countdown(
    text: str,
    numbers: Iterable[int],
    target: int,
    *,
    mode: str = "shaped",
    tags: tuple[str, str] = THINK_TAGS,
) -> Verdict:
    """Return the verdict on a response: the reward is the sum of the parts (`shaped`), or 1.0 for a right answer and
    0.0 for any other (`binary`).

    `correct` means that the answer is right, with or without closed thinking, so that accuracies of models that were
    and were not asked to think can be compared. In `shaped` mode, a correct answer without closed thinking gets 0.9.
    """
    if mode not in MODES:
        raise InputError(f"unknown mode `{mode}`", where="countdown", fix=nearest(mode, MODES))
    given, goal = _puzzle(numbers, target)
    thought = split_thinking(text, tags)
    if thought.opened and not thought.closed:
        reason = "unclosed_thinking"
    else:
        reason = _read_answer(thought.answer, given, goal)
    if mode == "binary":
        return Verdict(float(reason == "correct"), reason == "correct", reason)
    return _shaped(reason, thought.closed)


def _read_answer(answer: str, given: list[int], goal: int) -> str:
    """Return the reason of the verdict on an answer, which is the text after the thinking."""
    body = last_tagged(answer)
    if body is None:
        return "no_answer_tag"
    expression, equals, claim = body.partition("=")
    evaluation = evaluate(expression)
    if evaluation.fault not in ("", "division_by_zero"):
        return evaluation.fault
    if sorted(evaluation.numbers) != given:
        return "wrong_numbers"
    if evaluation.value is None:
        return "division_by_zero"
    if evaluation.value != goal:
        return "wrong_value"
    return "false_equation" if equals and claim.strip().replace("−", "-") != str(goal) else "correct"


def _shaped(reason: str, thinking_closed: bool) -> Verdict:
    """Return the shaped verdict. Parts that are not paid are 0.0: verl and TRL need the same keys in every row."""
    paid = _ANSWER_PARTS.get(reason, ("answer_tag",))
    parts = {part: worth if part in paid else 0.0 for part, worth in PARTS.items()}
    if thinking_closed:
        parts["thinking"] = PARTS["thinking"]
    # Rounded, so that 0.1 + 0.3 + 0.5 reads 0.9 in a log.
    return Verdict(round(sum(parts.values()), 6), reason == "correct", reason, parts=parts)


def _puzzle(numbers: Iterable[int], target: int) -> tuple[list[int], int]:
    """Return the given numbers, sorted, and the target as plain integers (numpy's are accepted).

    Negative numbers are refused: a minus sign in an expression is an operator, so no expression could use them.
    """
    try:
        numbers = tuple(numbers)
        given, goal = sorted(map(index, numbers)), index(target)
        if isinstance(target, bool) or bool in map(type, numbers):
            raise TypeError("a bool is not a number")
    except TypeError as error:
        raise InputError(
            f"numbers {numbers!r:.80} and target {target!r:.80} are not a list of integers and an integer",
            where="countdown ground truth",
            fix="give for example numbers=[3, 5, 7] and target=22",
        ) from error
    if not given:
        raise InputError("there are no numbers", where="countdown ground truth", fix="give at least one number")
    if given[0] < 0:
        raise InputError(
            f"{given[0]} is negative, and no expression can use it",
            where="countdown ground truth",
            fix="leave this puzzle out, or give numbers from 0 on",
        )
    return given, goal
