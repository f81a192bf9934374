"""Answers of the corpus to programming problems: thinking that names the plan, then one function.

    <think>
    count multiples: divisor=7
    </think>

    ```python
    def solve(numbers, divisor=7):
        return sum((n % divisor == 0 for n in numbers))
    ```

The function is the reference solution of the problem, named `solve`, with the problem's parameters as defaults.
"""

import ast
import random
from collections.abc import Mapping

from egpo.rewards.code import extract_program
from egpo.tasks import Problem

HABITS: Mapping[str, float] = {"right": 0.52, "misread": 0.2, "unfenced": 0.12, "unfinished": 0.16}
"""Shares of the habits. `misread` uses a wrong value for a parameter, `unfenced` omits the code fence, `unfinished`
omits the last line."""


def respond(problem: Problem, habit: str, rng: random.Random) -> str:
    program = ast.parse(extract_program(str(problem.extra["answer"])) or "")
    solution, *rest = program.body
    assert isinstance(solution, ast.FunctionDef)
    call = next(node for node in ast.walk(ast.Module(rest, [])) if _calls(node, solution.name))
    assert isinstance(call, ast.Call)
    values = call.args[1:]
    if habit == "misread":
        values[-1] = _other(values[-1], rng)
    plan = _plan(solution, values)
    # A wrapper function is replaced by the solution itself; a program keeps its input and output.
    code = _code(solution, values) + ("" if isinstance(rest[0], ast.FunctionDef) else f"\n{_main(rest, call)}")
    if habit == "unfinished":
        code = code.rpartition("\n")[0]
    body = code if habit == "unfenced" else f"```python\n{code}\n```"
    return f"<think>\n{plan}\n</think>\n\n{body}"


def _calls(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _other(value: ast.expr, rng: random.Random) -> ast.expr:
    meant = ast.literal_eval(value)
    if isinstance(meant, int):
        return ast.Constant(meant + rng.choice((1, 2)))
    return ast.Constant(rng.choice([letter for letter in "aeinorst" if letter != meant]))


def _plan(solution: ast.FunctionDef, values: list[ast.expr]) -> str:
    names = [argument.arg for argument in solution.args.args[1:]]
    given = ", ".join(f"{name}={ast.unparse(value)}" for name, value in zip(names, values, strict=True))
    return f"{solution.name.replace('_', ' ')}: {given}"


def _code(solution: ast.FunctionDef, values: list[ast.expr]) -> str:
    solution.name, solution.returns = "solve", None
    for argument in solution.args.args:
        argument.annotation = None
    solution.args.defaults = values
    return ast.unparse(solution)


def _main(rest: list[ast.stmt], call: ast.Call) -> str:
    call.func, call.args = ast.Name("solve"), call.args[:1]
    return ast.unparse(ast.Module(rest, []))
