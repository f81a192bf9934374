"""Two reward functions for the rows of numbers.jsonl: one in TRL's form, one for a single response."""

import ast
import operator
import re

SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def reached(completions, numbers, target, **columns):
    """TRL's form: lists in, one number for each completion out. 1 if the answer uses every number and is the target."""
    rows = zip(completions, numbers, target, strict=True)
    return [float(_solves(text, given, goal)) for text, given, goal in rows]


def close(text, ground_truth, extra_info):
    """One response: 1 for the target, less the further away the value is."""
    if _solves(text, extra_info["numbers"], ground_truth):
        return 1.0
    try:
        return 0.5 / (1 + abs(_value(_answer(text)) - ground_truth))
    except (ValueError, ArithmeticError):
        return 0.0


def _solves(text, numbers, target):
    try:
        answer = _answer(text)
        used = sorted(int(number) for number in re.findall(r"\d+", ast.unparse(answer)))
        return used == sorted(numbers) and abs(_value(answer) - target) < 1e-9
    except (ValueError, ArithmeticError):
        return False


def _answer(text):
    """Return the expression between the answer tags. A response without one raises ValueError."""
    found = re.findall(r"<answer>([-+*/() \d]{1,80})</answer>", text)
    try:
        return ast.parse(found[-1].strip(), mode="eval").body
    except (IndexError, SyntaxError) as error:
        raise ValueError("no expression") from error


def _value(node):
    if isinstance(node, ast.Constant):
        return node.value
    if not isinstance(node, ast.BinOp) or type(node.op) not in SIGNS:
        raise ValueError("not an expression of two numbers")
    return SIGNS[type(node.op)](_value(node.left), _value(node.right))
