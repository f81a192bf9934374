"""Tests that call into a program which lives in another process."""

import pytest

from egpo.rewards.sandbox import Checks, Limits, Report, Sandbox, SandboxJob
from egpo.rewards.sandbox.ground_truth import read_tests


def run(sandbox: Sandbox, program: str, *snippets: str, **more: object) -> list[str]:
    work = read_tests({"assert": list(snippets), **more}).work
    report = sandbox.run(SandboxJob(program, work, Limits(wall_s=30.0)))
    assert not report.failure, report.failure
    return [outcome.status for outcome in report.outcomes]


@pytest.mark.parametrize(
    ("program", "snippet"),
    [
        ("def f(x): return x + 1", "assert f(1) == 2"),
        ("def f(*a, **k): return [a, k]", "assert f(1, 'b', c=None) == [(1, 'b'), {'c': None}]"),
        ("def f(x): return x",
         "for v in (None, True, 2**200, -1.5, 1j, 'é\\udc80', b'\\0', [[]], {1: {2}}): assert f(v) == v"),
        ("def f(x): return x", "assert type(f((1,))) is tuple and type(f({1})) is set and type(f(True)) is bool"),
        ("def f(x): return float('nan')", "assert math.isnan(f(1))"),
        ("def f(x): x.sort()", "a = [3, 1, 2]\nf(a)\nassert a == [1, 2, 3]"),
        ("def f(x): x['new'] = [1]", "d = {}\nf(d)\nassert d == {'new': [1]}"),
        ("def f(n):\n    for i in range(n): yield i", "assert list(f(3)) == [0, 1, 2]\nassert next(f(2)) == 0"),
        ("def f(g, x): return g(g(x))", "assert f(lambda x: x * 3, 2) == 18"),
        ("def f(g, x): return sorted(x, key=g)", "assert f(len, ['aaa', 'b']) == ['b', 'aaa']"),
        ("def f(n): return lambda x: x + n", "assert f(2)(3) == 5"),
        ("class S:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
         "    def __len__(self): return len(self.items)\n    def __getitem__(self, i): return self.items[i]\n"
         "    def __str__(self): return 'S!'\n    def __bool__(self): return False",
         "s = S()\ns.push(3)\ns.push(4)\nassert len(s) == 2 and s[1] == 4 and s.items == [3, 4]\n"
         "assert str(s) == 'S!' and not s and list(s) == [3, 4] and 4 in s"),
        ("class P:\n    def __init__(self, x): self.x = x\n    def __eq__(self, o): return self.x == o.x\n"
         "    def __repr__(self): return f'P({self.x})'",
         "assert P(1) == P(1) and P(1) != P(2) and repr(P(3)) == 'P(3)'"),
        ("class N:\n    next = None\ndef f(node): return node.next is None",
         "n = N()\nn.value = 3\nassert f(n) and n.value == 3"),
        ("class Solution:\n    def f(self, x): return x * 2", "assert f(4) == 8\nassert Solution().f(1) == 2"),
        ("def f(x):\n    if x < 0: raise ValueError('negative')\n    return x",
         "try:\n    f(-1)\nexcept ValueError as e:\n    assert 'negative' in str(e)\nelse:\n    assert False"),
        ("from fractions import Fraction as F\nfrom decimal import Decimal as D\ndef f(): return [F(1, 2), D('1.50')]",
         "from fractions import Fraction\nimport decimal\nassert f() == [Fraction(1, 2), decimal.Decimal('1.5')]"),
        ("from collections import deque\ndef f(q): q.append(range(2)); return q",
         "from collections import deque\nassert f(deque([1], 2)) == deque([1, range(0, 2)])"),
        ("import datetime as d\ndef f(x): return x + d.timedelta(1)",
         "import datetime\nassert f(datetime.date(2024, 2, 28)) == datetime.date(2024, 2, 29)"),
        ("K = 7\ndef f(): return K", "assert f() == K == 7"),
        ("def sum(a, b): return a * b", "assert sum(3, 4) == 12"),
        ("print('noise')\ndef f(x):\n    print('more')\n    return x", "assert f(1) == 1"),
        ("import collections\ndef f(s): return collections.Counter(s)", "assert f('aab') == {'a': 2, 'b': 1}"),
        ("if __name__ == '__main__':\n    raise RuntimeError\ndef f(): return 1", "assert f() == 1"),
    ],
)  # fmt: skip
def test_passes(sandbox: Sandbox, program: str, snippet: str) -> None:
    assert run(sandbox, program, snippet) == ["ok"]


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("def f(x): return 5", "wrong"),
        ("def g(x): return 4", "error"),
        ("def f(x): return 1 / 0", "error"),
        ("def f(x): raise SystemExit", "error"),
        ("def f(x): raise KeyboardInterrupt", "error"),
        ("def f(x): raise UnicodeDecodeError('utf-8', b'', 0, 1, 'x')", "error"),
        ("def f(x): return f(x)", "error"),
        ("def f(x):\n    while True: pass", "timeout"),
        ("import os\ndef f(x): os._exit(0)", "died"),
        ("import os\ndef f(x): os.closerange(0, 100); return 4", "died"),
        ("import sys\nsys.exit()", "load"),
        ("def f(x:", "load"),
        ("1 / 0", "load"),
        ("def f(x): return 'y' * (20 << 20)", "error"),
        ("class F:\n    def __getattr__(self, n): raise AttributeError\nf = F()", "error"),
        ("f = 4", "wrong"),
    ],
)
def test_fails(sandbox: Sandbox, program: str, status: str) -> None:
    limits = Limits(wall_s=1.0 if status == "timeout" else 30.0)
    report = sandbox.run(SandboxJob(program, Checks(("assert f(2) == 4",), ("f",)), limits))
    assert not report.failure
    assert [outcome.status for outcome in report.outcomes] == [status]


@pytest.mark.parametrize(
    ("program", "snippet", "status"),
    [
        ("def f(a): a.clear(); return []", "data = [3, 1, 2]\nassert f(data) == sorted(data)", "wrong"),
        ("def f(a): a.clear(); return 0", "data = [3, 1, 2]\nassert f(data) == len(data)", "wrong"),
        ("def f(a): a.clear(); return {}", "data = {1: 2}\nassert f(a=data) == data", "wrong"),
        ("class S:\n    def __init__(self, a): a.clear()\n    def f(self): return []",
         "data = [3, 1, 2]\nassert S(data).f() == sorted(data)", "wrong"),
        ("def f(a): a.sort(); return a", "data = [3, 1, 2]\nassert f(data) == sorted(data)", "ok"),
        ("def f(a): a.sort()", "data = [3, 1, 2]\nassert f(data) is None and data == [1, 2, 3]", "ok"),
    ],
)  # fmt: skip
def test_a_program_cannot_empty_what_the_test_compares_with(
    sandbox: Sandbox, program: str, snippet: str, status: str
) -> None:
    assert run(sandbox, program, snippet) == [status]


def test_a_program_cannot_end_the_loop_of_its_test(sandbox: Sandbox) -> None:
    for name in ("StopIteration", "StopAsyncIteration"):
        program = f"def f(x): raise {name}"
        assert run(sandbox, program, "assert all(map(lambda x: f(x) == x * x, [1, 2]))") == ["error"]


def test_files_without_content_are_bounded(sandbox: Sandbox) -> None:
    program = "def f(n):\n    for name in range(n): open(f'/tmp/{name}', 'x').close()\n    return n"
    work = read_tests({"assert": ["assert f(100) == 100", "assert f(10 ** 6)", "assert f(0) == 0"]}).work
    report = sandbox.run(SandboxJob(program.replace("/tmp/", "/tmp/{n}-"), work, Limits(files=1000)))
    assert [outcome.status for outcome in report.outcomes] == ["ok", "files"]


def test_every_check_is_reported_until_the_program_is_gone(sandbox: Sandbox) -> None:
    program = "import os\ndef f(x): return os._exit(0) if x == 3 else x"
    assert run(sandbox, program, *(f"assert f({x}) == {x % 2}" for x in range(6))) == ["ok", "ok", "wrong", "died"]


def test_state_carries_from_one_check_to_the_next(sandbox: Sandbox) -> None:
    program = "n = 0\ndef f():\n    global n\n    n += 1\n    return n"
    assert run(sandbox, program, "assert f() == 1", "x = f()", "assert x == 2") == ["ok", "ok", "ok"]


def test_setup_runs_before_the_first_check(sandbox: Sandbox) -> None:
    assert run(sandbox, "def f(x): return x", "assert close(f(1), 1)", setup="def close(a, b): return a == b") == ["ok"]


def test_a_test_that_cannot_travel_is_the_tests_fault(sandbox: Sandbox) -> None:
    assert run(sandbox, "def f(x): return x", "assert f(object()) == 1") == ["unsupported"]


def test_a_comparison_that_nobody_can_make_is_the_tests_fault(sandbox: Sandbox) -> None:
    program = "class P: pass\ndef f(): return P()"
    assert run(sandbox, program, "class Q: pass\nassert f() == Q()") == ["unsupported"]


def test_setup_that_fails_by_itself_is_the_tests_fault(sandbox: Sandbox) -> None:
    assert run(sandbox, "def f(x): return x", "assert f(1)", setup="1 / 0") == ["unsupported"]


def test_arguments_that_are_the_expected_value_too_cannot_be_changed(sandbox: Sandbox) -> None:
    shared = [3, 1, 2]
    check = {"fn_name": "f", "args": [shared], "kwargs": {}, "expected": [shared]}
    program = "def f(x):\n    x.clear()\n    return x"
    (outcome,) = sandbox.run(SandboxJob(program, Checks((check,)))).outcomes
    assert outcome.status == "wrong"


@pytest.mark.parametrize("more", [{}, {"setup": "import no_such_module"}])
def test_a_test_that_needs_a_missing_module_is_the_tests_fault(sandbox: Sandbox, more: dict[str, str]) -> None:
    snippet = "assert f(1)" if more else "import no_such_module\nassert f(1)"
    assert run(sandbox, "def f(x): return x", snippet, **more) == ["unsupported"]


def test_a_program_that_needs_a_missing_module_is_the_programs_fault(sandbox: Sandbox) -> None:
    assert run(sandbox, "def f(x):\n    import no_such_module", "assert f(1)") == ["error"]
    assert run(sandbox, "import no_such_module", "assert f(1)") == ["load"]


def call(sandbox: Sandbox, program: str, args: list[object], *expected: object) -> Report:
    check = {"fn_name": "f", "args": args, "kwargs": {}, "expected": list(expected)}
    return sandbox.run(SandboxJob(program, Checks((check,)), Limits(wall_s=30.0)))


@pytest.mark.parametrize(
    ("returned", "expected", "status"),
    [
        ("(1, [2, (3,)])", [1, [2, [3]]], "ok"),
        ("0.1 + 0.2", 0.3, "ok"),
        ("float('nan')", float("nan"), "ok"),
        ("float('inf')", float("inf"), "ok"),
        ("float('inf')", 1e308, "wrong"),
        ("1", 1.0, "ok"),
        ("True", 1, "wrong"),
        ("1", True, "wrong"),
        ("None", None, "ok"),
        ("None", 0, "wrong"),
        ("'1'", 1, "wrong"),
        ("[1, 2]", [2, 1], "wrong"),
        ("[1, 2, 2]", [1, 2], "wrong"),
        ("{'a': (1,)}", {"a": [1]}, "ok"),
        ("[]", {}, "wrong"),
        ("10 ** 400", 1e308, "wrong"),
        ("object()", 1, "wrong"),
    ],
)  # fmt: skip
def test_call_compares_values(sandbox: Sandbox, returned: str, expected: object, status: str) -> None:
    (outcome,) = call(sandbox, f"def f(x): return {returned}", [0], expected).outcomes
    assert outcome.status == status, outcome
