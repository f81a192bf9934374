"""Countdown: transformations of an expression that reaches the target with the given numbers.

A wrong expression is checked with exact fractions and Python's own parser, not with the reward's arithmetic.
"""

import ast
import operator
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from egpo.rewards.answers import last_tagged
from egpo.rewards.countdown import judge_countdown
from egpo.rewards.verdict import Verdict
from egpo.tasks.countdown import Countdown
from tests.faults.transformations import REFUSED, RIGHT, WRONG, Transformation

_OPERATORS: dict[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


@dataclass(frozen=True)
class Puzzle:
    """Given numbers, a target, and an expression that is right."""

    numbers: tuple[int, ...]
    target: int
    expression: str

    def __str__(self) -> str:
        return f"{self.numbers} = {self.target}: {self.expression}"


def truths(count: int = 2_000, seed: int = 0) -> list[Puzzle]:
    """Return generated puzzles of two to six numbers."""
    found, rng = [], random.Random(seed)
    for number in range(count):
        most = 3 + number % 4
        task = Countdown(min_numbers=2, max_numbers=most, max_number=99, max_target=999)
        problem = task.draw(rng)
        expression = last_tagged(task.gold(problem)) or ""
        numbers = tuple(map(int, re.findall("[0-9]+", expression)))
        found.append(Puzzle(numbers, int(str(problem.ground_truth).rpartition(":")[2].strip(" }")), expression))
    return found


def judge(puzzle: Puzzle, text: str) -> Verdict:
    return judge_countdown(text, puzzle.numbers, puzzle.target)


def value_of(expression: str) -> Fraction | None:
    """Return the exact value of an expression by Python's grammar; None if it divides by zero."""

    def walk(node: ast.AST) -> Fraction:
        if isinstance(node, ast.BinOp):
            return _OPERATORS[type(node.op)](walk(node.left), walk(node.right))
        if isinstance(node, ast.UnaryOp):
            return -walk(node.operand)
        assert isinstance(node, ast.Constant)
        return Fraction(node.value)

    try:
        return walk(ast.parse(expression, mode="eval").body)
    except ZeroDivisionError:
        return None


def _tagged(template: str) -> Callable[[Puzzle], str]:
    """Write the template: @ is the expression, # the target."""
    return lambda p: (
        "<think>so</think><answer>" + template.replace("@", p.expression).replace("#", str(p.target)) + "</answer>"
    )


def _response(template: str) -> Callable[[Puzzle], str]:
    return lambda p: template.replace("@", p.expression).replace("#", str(p.target))


def _unequal(change: Callable[[Puzzle], str]) -> Callable[[Puzzle], str | None]:
    """Write a changed expression, unless it reaches the target with the given numbers after all."""

    def write(p: Puzzle) -> str | None:
        expression = change(p)
        same_numbers = sorted(map(int, re.findall("[0-9]+", expression))) == sorted(p.numbers)
        if same_numbers and value_of(expression) == p.target:
            return None
        return f"<think>so</think><answer>{expression}</answer>"

    return write


def _swap(first: str, second: str) -> Callable[[Puzzle], str]:
    def change(p: Puzzle) -> str:
        swaps = {first: second, second: first}
        return "".join(swaps.get(character, character) for character in p.expression)

    return change


def _number_changed(change: Callable[[int], int]) -> Callable[[Puzzle], str]:
    return lambda p: re.sub("[0-9]+", lambda found: str(change(int(found[0]))), p.expression, count=1)


def _in_script(zero: str) -> Callable[[Puzzle], str]:
    table = {ord("0") + digit: chr(ord(zero) + digit) for digit in range(10)}
    return lambda p: f"<think>so</think><answer>{p.expression.translate(table)}</answer>"


def _rows(kind: str, verdict: str, *rows: tuple[str, Callable[[Puzzle], str | None]]) -> Iterator[Transformation]:
    for name, write in rows:
        yield Transformation(name, kind, verdict, write)


TRANSFORMATIONS: tuple[Transformation, ...] = (
    *_rows(
        "notation",
        RIGHT,
        ("as it is", _tagged("@")),
        ("with its target", _tagged("@ = #")),
        ("target without spaces", _tagged("@=#")),
        ("in parentheses", _tagged("(@)")),
        ("in many parentheses", _tagged("((((((@))))))")),
        ("minus minus", _tagged("-(-(@))")),
        ("spaces around", _tagged("   @  \t")),
        ("line breaks", _tagged("\n@\n")),
        ("no spaces", lambda p: f"<think>a</think><answer>{p.expression.replace(' ', '')}</answer>"),
        (
            "other signs",
            lambda p: (
                f"<think>a</think><answer>{p.expression.replace('*', '×').replace('/', '÷').replace('-', '−')}</answer>"
            ),
        ),
        (
            "spaces everywhere",
            lambda p: "<think>a</think><answer>" + re.sub("([-+*/()])", r"  \1  ", p.expression) + "</answer>",
        ),
        (
            "leading zeros",
            lambda p: "<think>a</think><answer>" + re.sub("([0-9]+)", r"00\1", p.expression) + "</answer>",
        ),
    ),
    *_rows(
        "place of the answer",
        RIGHT,
        ("no thinking", _response("<answer>@</answer>")),
        ("text around", _response("So: <answer>@</answer> is it.")),
        ("the last of two tags", _response("<answer>1</answer><answer>@</answer>")),
        ("a wrong draft in the thought", _response("<think><answer>1 + 1</answer></think><answer>@</answer>")),
        ("thinking opened by the prompt", _response("<answer>1</answer></think><answer>@</answer>")),
        ("an opening tag left open after it", _response("<answer>@</answer><answer>1")),
        ("an opening tag before it", _response("<answer>1 <answer>@</answer>")),
    ),
    *_rows(
        "thinking",
        WRONG,
        ("only in the thought", _response("<think><answer>@</answer></think>I do not know.")),
        ("thought never closed", _response("<think>so <answer>@</answer>")),
        ("only in the thought of the prompt", _response("<answer>@</answer></think>")),
        ("right in the thought, wrong after it", _response("<think><answer>@</answer></think><answer>1</answer>")),
    ),
    *_rows(
        "two answers",
        WRONG,
        ("right tag, wrong tag", _response("<answer>@</answer><answer>1 + 1</answer>")),
        ("two expressions", _tagged("@, @")),
        ("one or the other", _tagged("@ or @")),
        ("two lines", _tagged("@\n@")),
        ("two equations", _tagged("@ = # = #")),
        ("both sides", _tagged("@ = @")),
        ("tag in the tag", _response("<answer><answer>1</answer>@</answer>")),
        ("a list", _tagged("[@]")),
        ("a set", _tagged("{@}")),
        ("semicolon", _tagged("@; 1")),
    ),
    *_rows(
        "false equation",
        WRONG,
        ("another target", lambda p: _tagged(f"@ = {p.target + 1}")(p)),
        ("negative target", lambda p: _tagged(f"@ = {-p.target}")(p) if p.target else None),
        ("target times ten", lambda p: _tagged(f"@ = {p.target * 10}")(p) if p.target else None),
        ("an expression for the target", lambda p: _tagged(f"@ = {p.target - 1} + 1")(p)),
        ("empty right side", _tagged("@ =")),
        ("target with text", _tagged("@ = # or so")),
        ("target twice", _tagged("@ = ##")),
        ("not equal", _tagged("@ != #")),
        ("greater", _tagged("@ > #")),
        ("about", _tagged("@ ≈ #")),
        ("double equals", _tagged("@ == #")),
    ),
    *_rows(
        "wrong numbers, right value",
        WRONG,
        ("the target alone", _unequal(lambda p: str(p.target))),
        ("target plus zero", _unequal(lambda p: f"{p.target} + 0")),
        ("times one", _tagged("(@) * 1")),
        ("plus zero", _tagged("@ + 0")),
        ("minus and plus a number", lambda p: _tagged(f"@ + {p.numbers[0]} - {p.numbers[0]}")(p)),
        (
            "number over itself",
            lambda p: _tagged(f"(@) * {p.numbers[0]} / {p.numbers[0]}")(p) if p.numbers[0] else None,
        ),
        ("twice and half", _tagged("((@) + (@)) / 2")),
        ("doubled minus itself", _tagged("(@) + (@) - (@)")),
        (
            "one number split",
            _unequal(lambda p: re.sub("[0-9]+", lambda f: f"({int(f[0]) - 1} + 1)", p.expression, count=1)),
        ),
        (
            "target split in ones",
            lambda p: _unequal(lambda q: " + ".join(["1"] * q.target))(p) if 2 < p.target < 90 else None,
        ),
        ("last number left out", _unequal(lambda p: p.expression.rpartition(" ")[0] and str(p.numbers[0]))),
        ("numbers joined", _unequal(lambda p: "".join(map(str, p.numbers)))),
        ("half times two", _unequal(lambda p: f"({p.target} / 2) * 2")),
    ),
    *_rows(
        "wrong value",
        WRONG,
        ("plus for minus", _unequal(_swap("+", "-"))),
        ("times for plus", _unequal(_swap("*", "+"))),
        ("over for times", _unequal(_swap("*", "/"))),
        ("minus for times", _unequal(_swap("*", "-"))),
        ("negated", _unequal(lambda p: f"-({p.expression})")),
        ("no parentheses", _unequal(lambda p: re.sub("[()]", "", p.expression))),
        ("all added", _unequal(lambda p: " + ".join(map(str, p.numbers)))),
        ("all multiplied", _unequal(lambda p: " * ".join(map(str, p.numbers)))),
        ("all subtracted", _unequal(lambda p: " - ".join(map(str, p.numbers)))),
        ("one number plus one", _unequal(_number_changed(lambda n: n + 1))),
        ("one number negated", _unequal(lambda p: re.sub("[0-9]+", lambda f: f"-{f[0]}", p.expression, count=1))),
        ("one number times ten", _unequal(_number_changed(lambda n: n * 10))),
        ("inverse", _unequal(lambda p: "1 / (" + p.expression + ")")),
        ("divided by zero", lambda p: _tagged(f"(@) / ({p.numbers[0]} - {p.numbers[0]})")(p)),
        ("reversed numbers", _unequal(lambda p: " + ".join(map(str, p.numbers[::-1])))),
    ),
    *_rows(
        "other syntax",
        WRONG,
        ("a power of one", _tagged("(@)**1")),
        ("a caret", _tagged("(@)^1")),
        ("whole division", _tagged("(@)//1")),
        ("rest", _tagged("(@)%10000")),
        ("factorial", _tagged("(@)!")),
        ("a comment", _tagged("@ # so")),
        ("a comment with the target", _tagged("# // @")),
        (
            "decimal point",
            lambda p: "<think>a</think><answer>" + re.sub("([0-9]+)", r"\1.0", p.expression) + "</answer>",
        ),
        ("exponent", lambda p: "<think>a</think><answer>" + re.sub("([0-9]+)", r"\1e0", p.expression) + "</answer>"),
        (
            "underscore",
            lambda p: (
                "<think>a</think><answer>" + re.sub("([0-9])([0-9])", r"\1_\2", p.expression) + "</answer>"
                if re.search("[0-9]{2}", p.expression)
                else None
            ),
        ),
        ("unary plus", _tagged("+(@)")),
        ("a name", _tagged("x")),
        ("a call", _tagged("abs(@)")),
        ("a ternary", _tagged("@ if 1 else 0")),
        ("joined parentheses", _tagged("(@)(1)")),
        ("not closed", _tagged("(@")),
        ("closed twice", _tagged("@)")),
        ("operator at the end", _tagged("@ +")),
        ("empty", _tagged("")),
        ("spaces only", _tagged("  ")),
        ("an f-string", _tagged("f'{@}'")),
        (
            "spaces in a number",
            lambda p: (
                "<think>a</think><answer>" + re.sub("([0-9])([0-9])", r"\1 \2", p.expression) + "</answer>"
                if re.search("[0-9]{2}", p.expression)
                else None
            ),
        ),
        (
            "invisible space in a number",
            lambda p: (
                "<think>a</think><answer>" + re.sub("([0-9])([0-9])", "\\1\u200b\\2", p.expression) + "</answer>"
                if re.search("[0-9]{2}", p.expression)
                else None
            ),
        ),
        ("bitwise and", _tagged("@ & -1")),
        ("a shift", _tagged("@ << 0")),
        ("a walrus", _tagged("(y:=@)")),
        (
            "hexadecimal",
            lambda p: (
                "<think>a</think><answer>" + re.sub("[0-9]+", lambda f: hex(int(f[0])), p.expression) + "</answer>"
            ),
        ),
    ),
    *_rows(
        "no tag",
        WRONG,
        ("prose", _response("It is @ = #.")),
        ("no closing tag", _response("<answer>@")),
        ("no opening tag", _response("@</answer>")),
        ("a box", _response(r"\boxed{@}")),
        ("tag in capitals", _response("<ANSWER>@</ANSWER>")),
        ("a tag with a space", _response("< answer>@</answer>")),
        ("nothing", _response("")),
        ("another tag", _response("<final>@</final>")),
        ("tags the wrong way round", _response("</answer>@<answer>")),
        ("escaped tags", _response("&lt;answer&gt;@&lt;/answer&gt;")),
    ),
    *_rows(
        "refused notation",
        REFUSED,
        ("full-width digits", _in_script("０")),
        ("Arabic-Indic digits", _in_script("٠")),
        (
            "LaTeX signs",
            lambda p: (
                f"<think>a</think><answer>{p.expression.replace('*', chr(92) + 'times ')}</answer>"
                if "*" in p.expression
                else None
            ),
        ),
        ("dollars around", _tagged("$@$")),
        ("in a box in the tag", _tagged(r"\boxed{@}")),
        ("text before", _tagged("The answer is @")),
        ("an equation with a name", _tagged("x = @")),
        (
            "a middle dot",
            lambda p: (
                f"<think>a</think><answer>{p.expression.replace('*', '·')}</answer>" if "*" in p.expression else None
            ),
        ),
        ("in backticks", _tagged("`@`")),
        ("in bold", _tagged("**@**")),
        ("a full stop", _tagged("@.")),
        (
            "a fraction slash",
            lambda p: (
                f"<think>a</think><answer>{p.expression.replace('/', '⁄')}</answer>" if "/" in p.expression else None
            ),
        ),
        (
            "x for times",
            lambda p: (
                f"<think>a</think><answer>{p.expression.replace('*', 'x')}</answer>" if "*" in p.expression else None
            ),
        ),
        ("target with decimals", _tagged("@ = #.0")),
        ("target on the left", _tagged("# = @")),
    ),
)
