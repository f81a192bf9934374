"""What a program is charged beside others that have the processors."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from egpo.rewards.code import judge_code
from egpo.rewards.sandbox import Limits, Report, Sandbox, SandboxJob, Scripts, charged_time, launch
from egpo.rewards.sandbox.charged_time import ChargedTime, Process, Times
from egpo.tasks.protocol import TIMEOUT_S

COMPUTES = "import time\nwhile time.process_time() < {}: pass\n"
SLEEPS = "import time\ntime.sleep({})\n"


@contextmanager
def on_a_busy_processor(num_busy: int = 3) -> Iterator[None]:
    """Keep this thread and its later children on one processor, which busy processes share with them."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    # Sessions of their own: Linux may share a processor between sessions.
    busy = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) for _ in range(num_busy)
    ]
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        for process in busy:
            process.kill()
            process.wait()


def run_timed(
    sandbox: Sandbox, program: str, limits: Limits, stdins: tuple[bytes, ...] = (b"",)
) -> tuple[Report, float]:
    start = time.monotonic()
    report = sandbox.run(SandboxJob(program, Scripts(stdins), limits))
    return report, time.monotonic() - start


def test_a_program_is_not_late_because_others_have_the_processor(sandbox: Sandbox) -> None:
    with on_a_busy_processor():
        report, wall_s = run_timed(sandbox, COMPUTES.format(0.6) + "print('done')", Limits(wall_s=1.0))
    assert [outcome.output for outcome in report.outcomes] == [b"done\n"], report
    assert wall_s > 1.0, "the program had to wait, or this shows nothing"
    assert report.charged_s < 1.0


def test_a_function_is_not_late_because_others_have_the_processor(sandbox: Sandbox) -> None:
    program = f"def f():\n    {COMPUTES.format('start + 0.6').replace(chr(10), chr(10) + '    ')}return 7"
    program = program.replace("import time", "import time; start = time.process_time()")
    with on_a_busy_processor():
        start = time.monotonic()
        verdict = judge_code(
            f"```python\n{program}\n```", {"assert": ["assert f() == 7"]}, sandbox=sandbox, limits=Limits(wall_s=1.0)
        )
        assert time.monotonic() - start > 1.0, "the program had to wait, or this shows nothing"
    assert verdict.correct, verdict


def test_sleep_is_charged_on_a_busy_machine_too(sandbox: Sandbox) -> None:
    with on_a_busy_processor():
        report, wall_s = run_timed(sandbox, SLEEPS.format(60), Limits(wall_s=1.0))
    assert [outcome.status for outcome in report.outcomes] == ["timeout"]
    assert report.charged_s > 0.8
    assert wall_s < 30


def test_waiting_without_end_is_a_failed_verdict(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not the program's fault, so that it must not be a timeout."""
    monkeypatch.setattr(launch, "_SPARE_S", 0.1)
    monkeypatch.setattr(launch, "_MOST_WAITED_S", 0.3)
    with on_a_busy_processor():
        report, _ = run_timed(sandbox, COMPUTES.format(0.9), Limits(wall_s=1.0))
    assert "waited for a processor" in report.failure


def test_a_program_cannot_choose_to_fail_by_keeping_itself_from_running(
    sandbox: Sandbox, can_fork: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Children that end between two looks at them have the processor for which the patient parent waits."""
    monkeypatch.setattr(launch, "_SPARE_S", 0.1)
    monkeypatch.setattr(launch, "_MOST_WAITED_S", 1.0)
    program = """\
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if os.fork() == 0:
    while True:
        if os.fork() == 0:
            end = time.monotonic() + 0.03
            while time.monotonic() < end: pass
            os._exit(0)
        time.sleep(0.03)
os.nice(19)
while True: pass
"""
    report, _ = run_timed(sandbox, program, Limits(wall_s=1.0))
    assert not report.failure
    assert report.stopped == "timeout" or [outcome.status for outcome in report.outcomes] == ["timeout"]


def test_a_program_that_prints_the_supervisors_question_gets_no_answer(sandbox: Sandbox) -> None:
    program = "print('late 0 0 0\\n' * 1000, end='')\nimport time\ntime.sleep(1.2)\nprint('late 0 0 0')"
    report, _ = run_timed(sandbox, program, Limits(wall_s=60.0), (b"", b""))
    assert [outcome.output for outcome in report.outcomes] == [b"late 0 0 0\n" * 1001] * 2
    assert not report.failure


def test_all_time_is_charged_where_linux_does_not_count_waiting(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charged_time, "_processes", lambda pid: iter(()))
    with on_a_busy_processor():
        report, _ = run_timed(sandbox, COMPUTES.format(0.9), Limits(wall_s=1.0))
    assert [outcome.status for outcome in report.outcomes] == ["timeout"]


def test_the_longest_run_ends_before_the_judges_own_limit() -> None:
    """Otherwise the thread of the judge counts as hanging, and three of them end a run."""
    longest_s = launch._START_S + Limits().total_s + launch._SPARE_S + launch._MOST_WAITED_S
    assert longest_s < TIMEOUT_S


@pytest.mark.parametrize(
    ("ran_s", "waited_s", "charged_s"),
    [
        (3.0, 0.0, 10.0),  # 3 s of computing, 7 s of sleep
        (3.0, 7.0, 3.0),
        (3.0, 5.0, 5.0),
        (12.0, 9.0, 10.0),  # two processors at once: never more than the clock
        (6.0, 9.0, 6.0),  # never less than the processor time
    ],
)
def test_what_ten_seconds_are_charged(ran_s: float, waited_s: float, charged_s: float) -> None:
    start = Times(100.0, 1.0, 2.0)
    assert Times(110.0, 1.0 + ran_s, 2.0 + waited_s).charged_since(start) == pytest.approx(charged_s)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[[float, list[Process]], None]:
    """Set the clock, and the counters of the processes."""
    now, found = [0.0], list[Process]()

    def be(clock_s: float, processes: list[Process]) -> None:
        now[0], found[:] = clock_s, processes

    monkeypatch.setattr(charged_time.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(charged_time, "_processes", lambda pid: iter(found))
    return be


def test_tasks_that_wait_for_each_other_count_once(machine: Callable[[float, list[Process]], None]) -> None:
    """Eight threads take turns on one processor, an eighth of a second each, then the program sleeps: it is charged at
    least half of its time."""
    machine(0.0, [])
    charged = ChargedTime(1, supervisor_depth=1)
    charged.start()
    for second in range(1, 11):
        threads = {str(thread): second * 7 / 16 for thread in range(8)}
        machine(float(second), [Process(3, 2, second * 0.5, threads)])
        charged.look()
    assert charged.charged_s == pytest.approx(10 * (1 - 7 / 16))


def test_waiting_of_the_supervisor_and_of_the_program_add_up(machine: Callable[[float, list[Process]], None]) -> None:
    """They take turns: while one waits for a processor, the other waits for it."""
    machine(0.0, [])
    charged = ChargedTime(1, supervisor_depth=1)
    charged.start()
    for tenth in range(1, 101):
        s = tenth / 10
        machine(s, [Process(2, 1, 0.1 * s, {"2": 0.4 * s}), Process(3, 2, 0.1 * s, {"3": 0.4 * s})])
        charged.look()
    assert charged.charged_s == pytest.approx(2.0)


def test_waiting_in_one_test_is_not_credited_to_the_next(machine: Callable[[float, list[Process]], None]) -> None:
    machine(0.0, [])
    charged = ChargedTime(1, supervisor_depth=1)
    charged.start()
    for second in range(1, 6):
        machine(float(second), [Process(3, 2, 0.1 * second, {"3": 0.9 * second})])
        charged.look()
    assert charged.waited_in_test_s() == pytest.approx(4.5)
    charged.start_test()
    machine(7.0, [Process(3, 2, 0.5, {"3": 4.5})])
    assert charged.waited_in_test_s() == pytest.approx(0.0)
    assert charged.charged_s == pytest.approx(2.5)
