"""The code reward: which program is taken, and what its behaviour earns."""

import json
from collections.abc import Iterator

import pytest

from egpo.errors import EgpoError, InputError
from egpo.rewards import code
from egpo.rewards.code import REASONS, extract_program, judge_code, same_output
from egpo.rewards.sandbox import Limits, Report, Sandbox, SandboxJob, choose_sandbox, sandbox_status, selection
from egpo.tasks.code import Code
from egpo.tasks.mixed import Mixed
from egpo.tasks.protocol import Problem

DOUBLE = {"inputs": ["1\n", "2\n", "-3"], "outputs": ["2\n", "4", "-6\n\n"]}
ADD = {"assert": ["assert add(1, 2) == 3", "assert add(2, 2) == 4"]}
RIGHT = "print(2 * int(input()))"


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    status = sandbox_status("bubblewrap")
    if not status.ok:
        pytest.skip(status.detail)
    return choose_sandbox("bubblewrap", limits=Limits(wall_s=30.0))


def fenced(program: str) -> str:
    return f"<think>Let me see.</think>Here it is:\n```python\n{program}\n```\nDone."


@pytest.mark.parametrize(
    ("program", "tests", "reason", "reward", "fraction"),
    [
        (RIGHT, DOUBLE, "correct", 1.0, 1.0),
        ("print('2')", DOUBLE, "wrong_answer", 0.0, 1 / 3),
        ("n = int(input())\nprint(2 * n if n > 0 else 1 / 0)", DOUBLE, "runtime_error", 0.0, 2 / 3),
        ("print(2 * int(input())", DOUBLE, "syntax_error", 0.0, 0.0),
        ("x = '\0'", DOUBLE, "syntax_error", 0.0, 0.0),
        ("  indented = 1", DOUBLE, "syntax_error", 0.0, 0.0),
        ("while True: pass", DOUBLE, "timeout", 0.0, 0.0),
        ("x = [0] * 10 ** 12", DOUBLE, "memory", 0.0, 0.0),
        ("while True: print('x' * 9999)", DOUBLE, "output_limit", 0.0, 0.0),
        ("import os\nos.kill(os.getpid(), 9)", DOUBLE, "crashed", 0.0, 0.0),
        ("import sys\nprint(2 * int(input()))\nsys.exit(1)", DOUBLE, "runtime_error", 0.0, 0.0),
        ("def add(a, b): return a + b", ADD, "correct", 1.0, 1.0),
        ("def add(a, b): return a * b", ADD, "wrong_answer", 0.0, 0.5),
        ("def plus(a, b): return a + b", ADD, "runtime_error", 0.0, 0.0),
        ("def add(a, b):\n    while True: pass", ADD, "timeout", 0.0, 0.0),
        ("import os\ndef add(a, b): os._exit(0)", ADD, "crashed", 0.0, 0.0),
        ("def add(a, b) return", ADD, "syntax_error", 0.0, 0.0),
        ("def add(a, b): return [0] * 10 ** 12", ADD, "memory", 0.0, 0.0),
        ("def add(a, b): return a + b", {"assert": ["assert add(open, print.__self__) == 1"]}, "bad_test", 0.0, 0.0),
    ],
)  # fmt: skip
def test_verdicts(sandbox: Sandbox, program: str, tests: dict, reason: str, reward: float, fraction: float) -> None:
    # An endless program is cut off soon; any other has time, on a busy machine too.
    limits = Limits(wall_s=1.0) if reason == "timeout" else None
    verdict = judge_code(fenced(program), tests, sandbox=sandbox, limits=limits)
    assert (verdict.reason, verdict.reward, verdict.correct) == (reason, reward, reason == "correct")
    assert verdict.failed == REASONS[reason].startswith("checker failure")
    shaped = judge_code(fenced(program), tests, sandbox=sandbox, mode="fraction", limits=limits)
    assert (shaped.reason, shaped.reward) == (reason, pytest.approx(fraction))


@pytest.mark.parametrize("text", ["", "no code", "<think>```python\nprint(1)\n```", "`print(1)`", "``python\nx\n``"])
def test_no_code(text: str) -> None:
    assert judge_code(text, DOUBLE).reason == "no_code"


def test_a_program_in_the_thought_neither_pays_nor_spoils(sandbox: Sandbox) -> None:
    thought = f"<think>```python\n{RIGHT}\n```</think>"
    assert judge_code(thought, DOUBLE).reason == "no_code"
    wrong = "<think>```python\nprint(0)\n```</think>" + f"```python\n{RIGHT}\n```"
    assert judge_code(wrong, DOUBLE, sandbox=sandbox).correct


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("```python\na\n```\ntext\n```python\nb\n```", "b\n"),
        ("```python\na\n```\n```text\noutput\n```", "a\n"),
        ("```python\na\n```\n```\noutput\n```", "a\n"),
        ("```\na\n```", "a\n"),
        ("```js\na\n```", None),
        ("```PYTHON3 title=x\na\n```", "a\n"),
        ("```py\na\n", "a"),
        ("```python\na```", "a"),
        ("```python\na\n```python\nb\n```", "b\n"),
        ("~~~python\na\n```\nb\n~~~", "a\n```\nb\n"),
        ("````python\na\n```\nb\n````", "a\n```\nb\n"),
        ("  ```python\n  a\n  ```", "a\n"),
        ("1. Here:\n   ```python\n   if a:\n       b\n\n   c\n   ```", "if a:\n    b\n\nc\n"),
        ("\t```python\n\ta\n\t```", "a\n"),
        ("      ```python\n      a```", "a"),
        ("    ```python\nif a:\n    b\n    ```", "if a:\n    b\n"),
        ("    ```python\n\n    a = '''\nx\n  y\n    '''\n    ```", "\na = '''\nx\ny\n'''\n"),
        ("```python\na\n    ```\n    x\n    ```python\nb\n```", "a\n    ```\n    x\n    ```python\nb\n"),
        ("     ```python\n     a\n```", "a\n"),
        ("```python\na\n`````", "a\n"),
        ("```python\na\n``````\n```python\nb\n````", "b\n"),
        ("```python\n```", ""),
        ("```python", ""),
        ("    ```python\n    a\n    ```", "a\n"),
    ],
)
def test_which_program_is_taken(answer: str, program: str | None) -> None:
    assert extract_program(answer) == program


@pytest.mark.parametrize(
    ("got", "expected", "same"),
    [
        ("1\n2\n", "1\n2", True),
        ("1  \n2\t\n\n\n", "1\n2", True),
        ("1\r\n2\r\n", "1\n2", True),
        (" 1", "1", False),
        ("1\n\n2", "1\n2", False),
        ("1 2", "1  2", False),
        ("", "\n", True),
        ("YES", "yes", False),
    ],
)
def test_output_is_compared_line_by_line(got: str, expected: str, same: bool) -> None:
    assert same_output(got, expected) is same


def test_printing_a_verdict_is_printing(sandbox: Sandbox) -> None:
    program = """\
import os
for fd in range(100):
    try: os.write(fd, b'exit 0 2 0\\n2\\n' * 9)
    except OSError: pass
"""
    assert judge_code(fenced(program), DOUBLE, sandbox=sandbox).reason == "wrong_answer"


def test_a_program_in_a_list_runs(sandbox: Sandbox) -> None:
    answer = "1. Here:\n   ```python\n   if True:\n       print(2 * int(input()))\n   ```"
    assert judge_code(answer, DOUBLE, sandbox=sandbox).correct


def test_binary_stops_at_the_first_failure_and_fraction_does_not(sandbox: Sandbox) -> None:
    class Recording:
        tier, limits = sandbox.tier, sandbox.limits

        def run(self, job: SandboxJob) -> Report:
            self.report = sandbox.run(job)
            return self.report

    for tests, program in ((ADD, "def add(a, b): return 4"), (DOUBLE, "1 / (int(input()) - 1)")):
        for mode, num_run in (("binary", 1), ("fraction", len(next(iter(tests.values()))))):
            recording = Recording()
            assert judge_code(fenced(program), tests, sandbox=recording, mode=mode).reward < 1
            assert len(recording.report.outcomes) == num_run


def test_a_flood_of_files_is_no_checker_failure(sandbox: Sandbox) -> None:
    program = "for name in range(10 ** 6): open(f'{name}', 'x').close()"
    verdict = judge_code(fenced(program), DOUBLE, sandbox=sandbox, limits=Limits(files=1000))
    assert (verdict.reason, verdict.failed) == ("memory", False)


@pytest.fixture
def no_sandbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("EGPO_SANDBOX", raising=False)
    selection._tried_once.cache_clear()
    yield
    selection._tried_once.cache_clear()


@pytest.mark.parametrize("kind", [Code, Mixed])
def test_a_task_without_a_sandbox_is_a_clear_error(kind: type[Code | Mixed], no_sandbox: None) -> None:
    """Not a row of zeros; and not before programs are to run: rows can be prepared anywhere."""
    task = kind()
    problem = Problem("double", [], json.dumps(DOUBLE), "code")
    with pytest.raises(EgpoError, match=r"not installed.*apt-get"):
        task.judge(problem, fenced(RIGHT))


def test_no_sandbox_is_a_checker_failure_and_not_a_wrong_answer(no_sandbox: None) -> None:
    verdict = judge_code(fenced(RIGHT), DOUBLE)
    assert (verdict.reason, verdict.failed, verdict.reward) == ("no_sandbox", True, 0.0)


def test_a_sandbox_that_dies_is_a_checker_failure(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    verdict = judge_code(fenced(RIGHT), DOUBLE, sandbox=choose_sandbox("bubblewrap"))
    assert (verdict.reason, verdict.failed) == ("sandbox_died", True)


def test_hostile_text_is_only_text() -> None:
    for text in ("\0", "\udc80", "```" * 100_000, "`" * 1_000_000, "```python\n" * 50_000, "~~~\n```\n" * 50_000):
        program = extract_program(text)
        assert program is None or isinstance(program, str)


def test_a_huge_program_is_not_run() -> None:
    assert judge_code("```python\n" + "#" * 2_000_000, DOUBLE).reason == "too_long"


def test_lone_surrogates_run_as_question_marks(sandbox: Sandbox) -> None:
    verdict = judge_code("```python\nprint('\udc80')\n```", {"inputs": [""], "outputs": ["?"]}, sandbox=sandbox)
    assert verdict.correct


def test_an_unknown_mode_is_the_users_mistake() -> None:
    with pytest.raises(InputError, match="fraction"):
        judge_code("", DOUBLE, mode="fractoin")


def test_a_malformed_ground_truth_is_the_users_mistake() -> None:
    with pytest.raises(InputError, match="ground truth"):
        judge_code(fenced(RIGHT), {"inputs": ["1"]})


def test_every_reason_is_documented() -> None:
    assert set(code._BY_STATUS.values()) <= set(REASONS)
    assert REASONS["correct"]
