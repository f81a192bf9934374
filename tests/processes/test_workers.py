"""A worker answers, is late, dies and ends with its parent; the pools' own tests cover the rest."""

import os
import signal
import subprocess
import sys
import time

import pytest

from egpo.processes.workers import IdleWorkers, Worker
from tests.waiting import becomes_true, is_running

WORKER = """
import os, time
def serve(parent, word):
    for message in parent.messages():
        if message == "sleep":
            time.sleep(600)
        parent.send([word, message, os.getpid()])
"""
PARENT = """
import os, signal, sys
from egpo.processes.workers import Worker
worker = Worker(sys.argv[1], "w")
worker.send("hello")
worker.receive()
print(worker.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "echo.py"
    path.write_text(WORKER)
    return str(path)


def test_a_worker_answers_in_another_process(script):
    worker = Worker(script, "w")
    assert worker.send({"a": "\ud800"})
    assert worker.receive(time.monotonic() + 60) == ["w", {"a": "\ud800"}, worker.pid]
    worker.stop()
    assert not is_running(worker.pid)


def test_a_deadline_and_a_death_are_two_errors(script):
    worker = Worker(script, "w")
    worker.send("sleep")
    with pytest.raises(TimeoutError):
        worker.receive(time.monotonic() + 0.1)
    os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(EOFError):
        worker.receive(time.monotonic() + 60)
    assert worker.exit_status() == -signal.SIGKILL
    worker.kill()


def test_idle_workers_are_used_again_and_dead_ones_replaced(script):
    workers = IdleWorkers(lambda: Worker(script, "w"))
    first = workers.take()
    workers.put_back(first)
    assert workers.take() is first
    workers.put_back(first)
    os.kill(first.pid, signal.SIGKILL)
    assert becomes_true(lambda: not is_running(first.pid))
    second = workers.take()
    assert second is not first
    workers.close()
    workers.put_back(second)
    assert not is_running(second.pid)


def test_a_worker_ends_with_a_parent_that_was_killed(script):
    done = subprocess.run([sys.executable, "-c", PARENT, script], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    assert becomes_true(lambda: not is_running(int(done.stdout)))
