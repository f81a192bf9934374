"""Whole programs: one run for each input."""

import pytest

from egpo.errors import InputError
from egpo.rewards.sandbox import Limits, ProgramOutcome, Sandbox, SandboxJob, Scripts
from egpo.rewards.sandbox.jobs import Place
from egpo.rewards.sandbox.launch import launch

PATIENT = Limits(wall_s=30, cpu_s=5)
"""On a machine that is busy, an interpreter alone may take a second to start."""
QUICK = Limits(wall_s=1.0, cpu_s=5)


def run(
    sandbox: Sandbox, program: str, *stdins: bytes, limits: Limits = PATIENT, stop_early: bool = False
) -> list[ProgramOutcome]:
    report = sandbox.run(SandboxJob(program, Scripts(stdins or (b"",)), limits, stop_early))
    assert not report.failure, report.failure
    return list(report.outcomes)


def test_each_input_gets_its_own_run(sandbox: Sandbox) -> None:
    outcomes = run(sandbox, "x = int(input())\nprint(x * x)", b"3\n", b"-4", b"5\r\n")
    assert [outcome.output for outcome in outcomes] == [b"9\n", b"16\n", b"25\n"]
    assert {outcome.status for outcome in outcomes} == {"exit"}


@pytest.mark.parametrize(
    ("program", "output", "code"),
    [
        ("import sys\nprint('a')\nsys.exit(3)", b"a\n", 3),
        ("print('a')\nexit()", b"a\n", 0),
        ("raise SystemExit('bad')", b"", 1),
        ("print('a', end='')\n1 / 0", b"a", 1),
        ("import os\nos.write(1, b'raw')\nos._exit(7)", b"raw", 7),
        ("import atexit\natexit.register(print, 'end')\nprint('start')", b"start\nend\n", 0),
        ("import threading\nthreading.Thread(target=lambda: print(input())).start()", b"in\n", 0),
        ("if __name__ == '__main__': print('main')", b"main\n", 0),
        ("import sys\nprint(sys.argv, sys.stdin.read())", b"['solution.py'] in\n\n", 0),
        ("print(open('/dev/stdin').read(), end='')", b"in\n", 0),
        ("print(open(0).read(), end='')", b"in\n", 0),
        ("import sys\nfor line in sys.stdin: print(line.strip())", b"in\n", 0),
        ("print('é', '\\udc80')", "é ".encode() + b"\x80\n", 0),
        ("x: int = 1\nprint(__annotations__)", b"{'x': <class 'int'>}\n", 0),
        ("from __future__ import annotations\nx: int = 1\nprint(__annotations__)", b"{'x': 'int'}\n", 0),
        ("class A:\n    pass\nimport pickle\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)", b"A\n", 0),
        ("def f(n): return n and f(n - 1)\nimport sys\nsys.setrecursionlimit(10**6)\nprint(f(100000))", b"0\n", 0),
        ("print({'a', 'b', 'c', 'd'} == set('abcd'), hash('x') == hash('x'))", b"True True\n", 0),
        ("import os\nprint(os.path.basename(__file__), open(__file__).read(6))", b"solution.py import\n", 0),
        ("import inspect\ndef f(x): return x\nprint(inspect.getsource(f))", b"def f(x): return x\n\n", 0),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    print('ran')\nasyncio.run(f())", b"ran\n", 0),
        ("out = open(1, 'w')\nout.write('unflushed')", b"unflushed", 0),
        ("import io, sys\nsys.__stdout__.write('a')\nsys.stdout = io.StringIO()\nprint('lost')", b"a", 0),
        ("class A:\n    def __del__(self): print('gone')\na = A()", b"gone\n", 0),
        ("open('a.txt', 'w').write('kept')\nprint(open('a.txt').read())", b"kept\n", 0),
    ],
)  # fmt: skip
def test_a_program_behaves_as_in_a_bare_interpreter(sandbox: Sandbox, program: str, output: bytes, code: int) -> None:
    (outcome,) = run(sandbox, program, b"in\n", limits=Limits(wall_s=20))
    assert (outcome.status, outcome.code, outcome.output) == ("exit", code, output), outcome.error


def test_two_runs_print_sets_in_the_same_order(sandbox: Sandbox) -> None:
    program = "print({str(i) for i in range(50)})"
    assert run(sandbox, program) == run(sandbox, program)


def test_runs_do_not_see_each_others_files_in_the_way(sandbox: Sandbox) -> None:
    program = "import os\nprint(os.listdir('.'))\nopen('out.txt', 'x').close()"
    assert [outcome.output for outcome in run(sandbox, program, b"", b"")] == [b"['solution.py']\n"] * 2


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("while True: pass", "timeout"),
        ("import time\ntime.sleep(60)", "timeout"),
        ("import os, time\nos.close(1)\nos.close(2)\ntime.sleep(60)", "timeout"),
        ("import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)", "timeout"),
        ("while True: print('x' * 10000)", "output"),
        ("import os\nos.kill(os.getpid(), 11)", "signal"),
        ("import os\nos.abort()", "signal"),
    ],
)
def test_how_programs_end(sandbox: Sandbox, program: str, status: str) -> None:
    (outcome,) = run(sandbox, program, limits=QUICK if status == "timeout" else PATIENT)
    assert outcome.status == status


def test_processor_time_is_bounded_apart_from_the_clock(sandbox: Sandbox) -> None:
    (outcome,) = run(sandbox, "while True: pass", limits=Limits(wall_s=60, cpu_s=1))
    assert (outcome.status, outcome.code) == ("signal", 24)


def test_errors_in_endless_supply_cost_nothing(sandbox: Sandbox) -> None:
    (outcome,) = run(
        sandbox, "import sys\nfor _ in range(3000): sys.stderr.write('e' * 1000)\nprint('done')", limits=Limits()
    )
    assert outcome.output == b"done\n"
    assert len(outcome.error) <= 2000


def test_a_program_can_have_children(sandbox: Sandbox, can_fork: None) -> None:
    program = "import multiprocessing as m\nwith m.Pool(2) as p: print(p.map(abs, [-1, 2]))"
    (outcome,) = run(sandbox, program, limits=Limits(wall_s=20))
    assert outcome.output == b"[1, 2]\n", outcome.error


_ENDLESS_ERRORS = """\
import threading
def complain():
    while True: os.write(2, bytes(60000))
for _ in range(4): threading.Thread(target=complain, daemon=True).start()
"""


def test_files_without_content_are_bounded(sandbox: Sandbox) -> None:
    """Also where errors never end and the supervisor is busy reading them; and in /dev, where it can be written."""
    for start in ("", "if os.access('/dev', os.W_OK): os.chdir('/dev')", _ENDLESS_ERRORS):
        program = f"import os\n{start}\nfor name in range(10 ** 6): open(f'{{name}}', 'x').close()"
        (outcome,) = run(sandbox, program, limits=Limits(files=500, wall_s=30, cpu_s=30))
        assert outcome.status == "files"


def test_files_may_be_made_up_to_the_limit(sandbox: Sandbox) -> None:
    program = "import time\nfor name in range(900): open(f'{name}', 'x').close()\ntime.sleep(0.1)\nprint('done')"
    (outcome,) = run(sandbox, program, limits=Limits(files=1000))
    assert outcome.output == b"done\n"


def test_one_file_is_bounded_apart_from_all(sandbox: Sandbox) -> None:
    program = (
        "import errno\ntry: open('a', 'wb').write(bytes(2 << 20))\nexcept OSError as e: print(errno.errorcode[e.errno])"
    )
    assert run(sandbox, program, limits=Limits(file_mb=1, tmp_mb=32))[0].output == b"EFBIG\n"
    assert run(sandbox, program, limits=Limits(file_mb=16, tmp_mb=1))[0].output == b"ENOSPC\n"


def test_open_files_are_bounded(sandbox: Sandbox) -> None:
    program = """\
import errno, os
try:
    for made in range(100): os.dup(0)
except OSError as e: print(made, errno.errorcode[e.errno])
"""
    # The streams take three.
    assert run(sandbox, program, limits=Limits(open_files=20))[0].output == b"17 EMFILE\n"


def test_a_child_that_keeps_the_output_open_does_not_hold_up_the_end(sandbox: Sandbox) -> None:
    program = "import os, time\nprint('done', flush=True)\nif os.fork() == 0: time.sleep(60)"
    (outcome,) = run(sandbox, program, limits=Limits(wall_s=20))
    assert (outcome.status, outcome.output) == ("exit", b"done\n")


def test_leftovers_are_killed_between_runs(sandbox: Sandbox, can_fork: None) -> None:
    program = """\
import os, time
def beat(): return open('/tmp/heartbeat').read() if os.path.exists('/tmp/heartbeat') else ''
if input() == 'start':
    if os.fork() == 0:
        os.setsid()
        os.umask(0)
        while True:
            with open('/tmp/next', 'w') as file: file.write(str(time.time()))
            os.replace('/tmp/next', '/tmp/heartbeat')
            time.sleep(0.01)
    while not beat(): time.sleep(0.01)
    first = beat()
    while first == beat(): time.sleep(0.01)
    print('beats')
else:
    first = beat()
    time.sleep(0.2)
    print(first != '', first == beat())
"""
    started, later = run(sandbox, program, b"start\n", b"look\n", limits=Limits(wall_s=20))
    assert started.output == b"beats\n", "while its run lasts"
    assert later.output == b"True True\n", "and no longer"


def test_stop_early_stops_at_the_first_sure_failure(sandbox: Sandbox) -> None:
    outcomes = run(sandbox, "print(1 / int(input()))", b"1", b"0", b"1", stop_early=True)
    assert [outcome.code for outcome in outcomes] == [0, 1]


def test_large_input_and_output(sandbox: Sandbox) -> None:
    text = b"0123456789" * 300_000
    report = sandbox.run(SandboxJob("print(input())", Scripts((text, text), longest_output=len(text)), Limits()))
    assert [outcome.output.strip() == text for outcome in report.outcomes] == [True, True]


@pytest.mark.parametrize("program", ["\0", "x = '\udc80'", "(" * 100_000, "x = " + "-" * 50_000 + "1", "if" * 10])
def test_what_is_no_program_ends_as_any_other(sandbox: Sandbox, program: str) -> None:
    (outcome,) = run(sandbox, program, limits=Limits())
    assert outcome.status in ("exit", "signal")


def test_a_program_that_takes_the_place_of_its_input_harms_itself_only(sandbox: Sandbox) -> None:
    program = "import os\ntry:\n    os.unlink('/dev/stdin')\n    os.mkdir('/dev/stdin')\nexcept OSError: pass\nprint(1)"
    outcomes = run(sandbox, program, b"1", b"2", limits=Limits())
    assert len(outcomes) == 2


@pytest.mark.parametrize("limits", [{"wall_s": 0}, {"memory_mb": -1}, {"cpu_s": float("nan")}, {"processes": True}])
def test_limits_are_positive_numbers(limits: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(limits))):
        Limits(**limits)


def test_a_sandbox_that_does_not_start_in_time_is_a_failure_of_the_checker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("egpo.rewards.sandbox.launch._START_S", 0.2)
    report = launch(["sleep", "60"], SandboxJob("", Scripts((b"",)), Limits()), Place("/tmp", "/tmp/in"))
    assert (report.failure, report.stopped) == ("the sandbox did not start within 0 s", "")


def test_time_is_the_programs_once_the_sandbox_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that took: the supervisor here says that it is ready after a second, and nothing more."""
    monkeypatch.setattr("egpo.rewards.sandbox.launch._SPARE_S", 0.1)
    command = ["sh", "-c", "sleep 1; echo ready 0 0 0; exec sleep 60"]
    report = launch(command, SandboxJob("", Scripts((b"",)), Limits(wall_s=0.5)), Place("/tmp", "/tmp/in"))
    assert (report.failure, report.stopped, report.outcomes) == ("", "timeout", ())
