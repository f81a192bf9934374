"""Code: transformations of a right program, run in the sandbox.

Half of the generated problems ask for a function `solve`, tested by asserts; half for a script, tested by its output.
"""

# ruff: noqa: E501 - a program of a table is one line

import json
import random
import textwrap
from collections.abc import Callable, Iterator

from egpo.rewards.code import judge_code
from egpo.rewards.sandbox import Limits
from egpo.rewards.verdict import Verdict
from egpo.tasks.program_problems import ProgramProblem, draw_program_problem
from tests.faults.transformations import REFUSED, RIGHT, WRONG, Transformation

Write = Callable[[ProgramProblem], str | None]
LIMITS = Limits(wall_s=20.0)
"""Generous, so that a busy machine gives the verdicts of an idle one. Nothing here waits for the limit."""


def truths(count: int = 40, seed: int = 0) -> list[ProgramProblem]:
    """Return different generated problems, functions and scripts in turn."""
    rng = random.Random(seed)
    found: list[ProgramProblem] = []
    while len(found) < count:
        problem = draw_program_problem(rng)
        if is_function(problem) == (len(found) % 2 == 0):
            found.append(problem)
    return found


def is_function(problem: ProgramProblem) -> bool:
    return "assert" in json.loads(problem.tests)


def judge(problem: ProgramProblem, text: str) -> Verdict:
    return judge_code(text, problem.tests, limits=LIMITS)


def _outputs(problem: ProgramProblem) -> list[str]:
    return [str(output) for output in json.loads(problem.tests).get("outputs", ())]


def _fenced(program: str, fence: str = "```", language: str = "python") -> str:
    return f"<think>so</think>\n{fence}{language}\n{program}\n{fence}"


def _program(change: Callable[[str], str]) -> Write:
    return lambda p: _fenced(change(p.solution))


def _function(program: str) -> Write:
    """Put code after the right program that changes `solve`; `right` is the right function."""
    return lambda p: _fenced(f"{p.solution}\n\nright = solve\n{program}") if is_function(p) else None


def _script(program: str) -> Write:
    """Write a script that runs the right one, and has its output in `text`."""
    head = "import contextlib, io, sys\nheard = io.StringIO()\nwith contextlib.redirect_stdout(heard):\n"

    def write(p: ProgramProblem) -> str | None:
        if is_function(p):
            return None
        return _fenced(f"{head}    exec({p.solution!r}, {{}})\ntext = heard.getvalue()\n{program}")

    return write


def _only(functions: bool, write: Write) -> Write:
    return lambda p: write(p) if is_function(p) == functions else None


def _rows(kind: str, verdict: str, *rows: tuple[str, Write]) -> Iterator[Transformation]:
    for name, write in rows:
        yield Transformation(name, kind, verdict, write)


_OTHER = """\
def other(v):
    if isinstance(v, bool): return not v
    return v + 1 if isinstance(v, int) else v + [0] if isinstance(v, list) else v + "x"
"""
_EQUAL = "class Equal:\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\n"

TRANSFORMATIONS: tuple[Transformation, ...] = (
    *_rows(
        "fence",
        RIGHT,
        ("python fence", lambda p: _fenced(p.solution)),
        ("py fence", lambda p: _fenced(p.solution, language="py")),
        ("capitals", lambda p: _fenced(p.solution, language="Python3")),
        ("no language", lambda p: _fenced(p.solution, language="")),
        ("tildes", lambda p: _fenced(p.solution, "~~~")),
        ("long fence", lambda p: _fenced(p.solution, "`````")),
        ("never closed", lambda p: f"```python\n{p.solution}"),
        ("closed on the last line", lambda p: f"```python\n{p.solution.rstrip()}```"),
        ("in a list item", lambda p: "1. So:\n   ```python\n" + textwrap.indent(p.solution, "   ") + "\n   ```"),
        ("text around", lambda p: f"Here:\n{_fenced(p.solution)}\nDone."),
        (
            "the last of two blocks",
            lambda p: f"```python\n1/0\n```\n{_fenced(p.solution).removeprefix('<think>so</think>')}",
        ),
        ("output in another block after it", lambda p: f"{_fenced(p.solution)}\n```text\n7\n```"),
        ("a wrong draft in the thought", lambda p: f"<think>```python\n1/0\n```</think>{_fenced(p.solution)[17:]}"),
        ("carriage returns", lambda p: _fenced(p.solution).replace("\n", "\r\n")),
    ),
    *_rows(
        "program",
        RIGHT,
        ("comments", _program(lambda s: f"# so\n{s}\n# done")),
        ("an unused import", _program(lambda s: f"import math, collections\n{s}")),
        ("words on stderr", _program(lambda s: f"import sys\nprint('hm', file=sys.stderr)\n{s}")),
        ("a caught exception", _program(lambda s: f"try:\n    1/0\nexcept ZeroDivisionError:\n    pass\n{s}")),
        ("wide letters in a comment", _program(lambda s: f"# ünïcödé 数\n{s}")),
        ("exit code zero at the end", _only(False, _program(lambda s: f"{s}\nimport sys\nsys.exit(0)"))),
        ("spaces behind the output", _script("print(text.rstrip() + '   ')\nprint()")),
        (
            "a thread",
            _only(
                True,
                _program(lambda s: f"import threading\nt = threading.Thread(target=int)\nt.start()\nt.join()\n{s}"),
            ),
        ),
        ("words while loading", _only(True, _program(lambda s: f"print('loading')\n{s}"))),
        ("keyword only helper", _function("def solve(*a, **k):\n    return right(*a, **k)")),
        (
            "a class for the function",
            _function("class Solver:\n    def __call__(self, *a): return right(*a)\nsolve = Solver()"),
        ),
        ("a cache", _function("import functools\nsolve = lambda *a: right(*a)")),
    ),
    *_rows(
        "place",
        WRONG,
        ("only in the thought", lambda p: f"<think>{_fenced(p.solution)[17:]}</think>I do not know."),
        ("thought never closed", lambda p: f"<think>{_fenced(p.solution)[17:]}"),
        ("no fence", lambda p: p.solution),
        ("one backtick", lambda p: f"`{p.solution}`"),
        ("another language", lambda p: _fenced(p.solution, language="javascript")),
        ("a wrong block last", lambda p: f"{_fenced(p.solution)}\n```python\nsolve = None\n```"),
        ("empty block", lambda p: _fenced("")),
        ("nothing", lambda p: ""),
        ("prose", lambda p: "Sort them, then add them up."),
        ("an empty block last", lambda p: f"{_fenced(p.solution)}\n```python\n```"),
    ),
    *_rows(
        "fault",
        WRONG,
        ("syntax error", _program(lambda s: f"{s}\n)")),
        ("indentation", _program(lambda s: f"  {s}")),
        (
            "an exception at the end",
            _program(lambda s: f"{s}\nraise ValueError" if "def solve" not in s else f"raise ValueError\n{s}"),
        ),
        ("exit code one", _only(False, _program(lambda s: f"{s}\nimport sys\nsys.exit(1)"))),
        ("exit code zero first", _program(lambda s: f"import sys\nsys.exit(0)\n{s}")),
        ("os._exit first", _program(lambda s: f"import os\nos._exit(0)\n{s}")),
        ("killed by itself", _program(lambda s: f"import os\nos.kill(os.getpid(), 9)\n{s}")),
        ("NUL in the program", _program(lambda s: f"x = '\0'\n{s}")),
        ("an unknown module", _program(lambda s: f"import no_such_module\n{s}")),
        ("too much recursion", _program(lambda s: f"def f(): return f()\nf()\n{s}")),
        ("memory", _program(lambda s: f"x = [0] * 10**12\n{s}")),
        ("the name is gone", _only(True, _program(lambda s: f"{s}\ndel solve"))),
        ("os._exit in the call", _function("import os\ndef solve(*a): os._exit(0)")),
        ("exit in the call", _function("import sys\ndef solve(*a): sys.exit(0)")),
        ("an exception in the call", _function("def solve(*a): raise SystemExit(0)")),
        ("AssertionError in the call", _function("def solve(*a): raise AssertionError")),
        ("a generator", _function("def solve(*a):\n    yield right(*a)")),
        ("a coroutine", _function("async def solve(*a): return right(*a)")),
    ),
    *_rows(
        "wrong value",
        WRONG,
        ("another value", _function(f"{_OTHER}def solve(*a): return other(right(*a))")),
        ("None", _function("def solve(*a): return None")),
        ("printed, not returned", _function("def solve(*a): print(right(*a))")),
        ("in a list", _function("def solve(*a): return [right(*a)]")),
        (
            "as text",
            _function("def solve(*a):\n    v = right(*a)\n    return repr(v) if not isinstance(v, str) else [v]"),
        ),
        (
            "another value from the second call on",
            _function(
                f"{_OTHER}calls = 0\ndef solve(*a):\n    global calls\n    calls += 1\n    return right(*a) if calls < 2 else other(right(*a))"
            ),
        ),
        (
            "the first value for ever",
            _function("kept = []\ndef solve(*a):\n    kept.append(right(*a))\n    return kept[0]"),
        ),
        ("NaN", _function("def solve(*a): return float('nan')")),
        ("the argument", _function(f"{_OTHER}def solve(*a): return a[0] if a[0] != right(*a) else other(a[0])")),
        ("a function", _function("def solve(*a): return right")),
        ("an endless iterator", _function("import itertools\ndef solve(*a): return itertools.count()")),
        ("an output less", _script("print('\\n'.join(text.splitlines()[:-1]))")),
        ("a line more", _script("print(text + '0')")),
        ("a line before", _script("print('debug')\nprint(text)")),
        ("nothing printed", _script("")),
        ("on stderr", _script("print(text, file=sys.stderr)")),
        ("a letter more", _script("print(text.rstrip() + 'x')")),
        ("a space in front", _script("print(' ' + text)")),
        ("quoted", _script("print(repr(text))")),
        ("output twice", _script("print(text.rstrip())\nprint(text)")),
        ("reversed", _script("print(text.rstrip() + text.rstrip()[::-1] + '1')")),
        ("an empty line before", _script("print()\nprint(text)")),
        ("output, then an error", _script("print(text)\n1/0")),
        (
            "the first output for ever",
            lambda p: (
                None
                if is_function(p) or len({o.strip() for o in _outputs(p)}) < 2
                else _fenced(f"print({_outputs(p)[0].strip()!r})")
            ),
        ),
        (
            "all outputs at once",
            lambda p: None if is_function(p) else _fenced(f"print({chr(10).join(o.strip() for o in _outputs(p))!r})"),
        ),
    ),
    *_rows(
        "forged",
        WRONG,
        ("equal to everything", _function(f"{_EQUAL}def solve(*a): return Equal()")),
        (
            "a list equal to everything",
            _function("class L(list):\n    def __eq__(self, o): return True\ndef solve(*a): return L()"),
        ),
        (
            "an int equal to everything",
            _function(
                "class N(int):\n    def __eq__(self, o): return True\n    __hash__ = int.__hash__\ndef solve(*a): return N(-987654321)"
            ),
        ),
        (
            "text equal to everything",
            _function(
                "class T(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\ndef solve(*a): return T('no such text')"
            ),
        ),
        (
            "builtins changed",
            _function(
                "import builtins\nbuiltins.AssertionError = Exception\nbuiltins.isinstance = lambda *a: True\ndef solve(*a): return None"
            ),
        ),
        (
            "equal by operator",
            _function("import operator\noperator.eq = lambda a, b: True\ndef solve(*a): return None"),
        ),
        ("verdict printed", _function("print('ok 0 0 0')\ndef solve(*a):\n    print('ok 0 0 0')\n    return None")),
        (
            "verdict written to all descriptors",
            _function(
                "import os\ndef solve(*a):\n    for fd in range(3, 40):\n        try: os.write(fd, b'ok 0 0 0\\n')\n        except OSError: pass\n    return None"
            ),
        ),
        ("asserts off", _function("import sys, os\nos.environ['PYTHONOPTIMIZE'] = '2'\ndef solve(*a): return None")),
        ("a mock", _function("from unittest.mock import MagicMock, ANY\ndef solve(*a): return ANY")),
        ("NotImplemented", _function("def solve(*a): return NotImplemented")),
        (
            "a proxy that compares as true",
            _function(
                "class P:\n    def __getattr__(self, n): return lambda *a: True\n    def __eq__(self, o): return 1\ndef solve(*a): return P()"
            ),
        ),
        (
            "atexit prints the answer",
            lambda p: (
                None
                if is_function(p)
                else _fenced(f"import atexit\natexit.register(print, {_outputs(p)[-1].strip() + 'x'!r})")
            ),
        ),
    ),
    *_rows(
        "refused form",
        REFUSED,
        ("indented code without a fence", lambda p: textwrap.indent(p.solution, "    ")),
        ("in an answer tag", lambda p: f"<answer>{p.solution}</answer>"),
        ("fence named as another Python", lambda p: _fenced(p.solution, language="python2")),
        ("HTML", lambda p: f"<pre><code>{p.solution}</code></pre>"),
    ),
)
