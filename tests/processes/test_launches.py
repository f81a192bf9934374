"""No process of a launch is left, whatever it does: real processes, ended by identity."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from egpo.processes.launches import MARK, LaunchedProcesses, start_in_session
from egpo.processes.table import ProcessId, process_id, remove_shared_memory, shared_memory_of
from tests.waiting import becomes_true

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")

FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN if "deaf" in sys.argv else signal.default_int_handler)
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleep)                                                # a child
subprocess.Popen(sleep, start_new_session=True)                        # one that left the session
subprocess.Popen([sys.executable, "-c", "import subprocess; subprocess.Popen(%r, start_new_session=True)" % (sleep,)])
print("ready", flush=True)                                             # and one whose parent is gone
time.sleep(600)
"""


@pytest.fixture
def family(tmp_path, request):
    mark = f"test-{os.getpid()}-{request.node.name[:40]}"
    log = tmp_path / "log"
    words = (sys.executable, "-c", FAMILY, *getattr(request, "param", ()))
    verl = start_in_session(words, {MARK: mark}, log)
    processes = LaunchedProcesses(mark, driver=process_id(verl.pid))
    assert becomes_true(lambda: "ready" in log.read_text() and len(processes.look()) == 4)
    yield verl, processes
    processes.end(lambda: True)
    verl.wait()


def alive(process):
    try:
        stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(stat[19]) == process.start and stat[0] != "Z"


def test_the_whole_family_is_found_and_ended(family):
    verl, processes = family
    members = processes.look()
    assert verl.pid in {one.pid for one in members}
    processes.end()
    assert verl.wait(timeout=60) != 0
    assert [one for one in members if alive(one)] == []


@pytest.mark.parametrize("family", [("deaf",)], indirect=True)
def test_processes_that_ignore_signals_are_killed_when_hurried(family):
    verl, processes = family
    members = processes.look()
    processes.end(lambda: True)
    assert verl.wait(timeout=60) == -signal.SIGKILL
    assert [one for one in members if alive(one)] == []


def test_a_later_process_of_the_same_number_is_left_alone():
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        LaunchedProcesses("nobody", [ProcessId(bystander.pid, start=1)]).end(lambda: True)
        time.sleep(0.2)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_nobody_belongs_to_a_launch_by_chance():
    """Session 0 is that of everybody whose session began outside a container; we ourselves never belong."""
    assert LaunchedProcesses("nobody").look() == set()
    me = process_id(os.getpid())
    assert LaunchedProcesses("nobody", [me, process_id(os.getppid())]).look() == set()
    assert LaunchedProcesses("nobody", driver=ProcessId(0, 0)).look() == set()
    with pytest.raises(ValueError, match="mark"):
        LaunchedProcesses("")


LAUNCHER = """
import sys, time
from pathlib import Path
from egpo.processes.launches import start_in_session
words = (sys.argv[1], "-c", "print('ready', flush=True); import time; time.sleep(600)")
driver = start_in_session(words, {}, Path(sys.argv[2]))
print(driver.pid, flush=True)
time.sleep(600)
"""


def script(folder, line):
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
    return str(path)


def launch(python, log):
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, python, log], stdout=subprocess.PIPE, text=True)
    return launcher, process_id(int(launcher.stdout.readline()))


def test_a_launcher_killed_with_9_takes_the_driver_along(tmp_path):
    log = tmp_path / "log"
    launcher, driver = launch(sys.executable, log)
    assert becomes_true(lambda: "ready" in log.read_text())
    launcher.kill()
    launcher.wait()
    assert becomes_true(lambda: not alive(driver))


def test_a_launcher_killed_before_the_driver_runs_leaves_nobody(tmp_path):
    """A driver slow to start asks to end with its parent when it has another one already: the signal never comes."""
    slow = script(tmp_path, f'while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exec {sys.executable} "$@"')
    log = tmp_path / "log"
    launcher, driver = launch(slow, log)
    launcher.kill()
    launcher.wait()
    (tmp_path / "go").touch()
    assert becomes_true(lambda: not alive(driver))
    assert log.read_text() == "the launcher is gone\n"


CLOSES_WHAT_IT_INHERITED = "import subprocess, sys; sys.exit(subprocess.call([sys.executable, *sys.argv[1:]]))"


@pytest.mark.parametrize("line", ['{python} "$@"; exit $?', f'exec {{python}} -c "{CLOSES_WHAT_IT_INHERITED}" "$@"'])
def test_a_script_that_starts_the_interpreter_as_its_child_will_do(tmp_path, line):
    python = script(tmp_path, line.format(python=sys.executable))
    assert start_in_session((python, "-c", "print('ready')"), {}, tmp_path / "log").wait() == 0
    assert (tmp_path / "log").read_text() == "ready\n"


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="no shared memory")
def test_shared_memory_is_freed_once_nobody_uses_it():
    path = f"/dev/shm/egpo-test-{os.getpid()}"
    held = subprocess.Popen(
        [sys.executable, "-c", f"f = open({path!r}, 'w'); print('ready', flush=True); import time; time.sleep(600)"],
        stdout=subprocess.PIPE,
    )
    try:
        held.stdout.readline()
        assert path in shared_memory_of([process_id(held.pid)])
        remove_shared_memory([path])
        assert os.path.exists(path), "somebody else still has it open"
    finally:
        held.kill()
        held.wait()
    remove_shared_memory([path])
    assert not os.path.exists(path)
