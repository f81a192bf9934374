"""The first signal ends a run in good order, the second at once."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from egpo.local.sessions.interrupts import Interrupts, StepAbandoned
from egpo.runs.interruption import RunInterruptedError

BOTH = pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])


def send(signum, reached=None):
    os.kill(os.getpid(), signum)
    if reached is not None:
        reached.append("after")


@BOTH
def test_a_step_that_changed_nothing_is_abandoned_at_once(signum, capfd):
    reached = []
    with Interrupts() as interrupts:
        interrupts.allow_abandoning(True)
        with pytest.raises(StepAbandoned):
            send(signum, reached)
    assert (reached, interrupts.signum) == ([], signum)
    assert capfd.readouterr().err == "egpo: stopping in good order; once more to leave at once\n"


@BOTH
def test_an_update_under_way_is_finished_first(signum):
    with Interrupts() as interrupts:
        interrupts.allow_abandoning(True)
        interrupts.allow_abandoning(False)
        send(signum)
        assert interrupts.signum == signum
        with pytest.raises(StepAbandoned):
            interrupts.allow_abandoning(True)


def test_no_boundary_for_failures_swallows_it():
    def guarded():
        with suppress(Exception):
            send(signal.SIGTERM)

    with Interrupts() as interrupts:
        interrupts.allow_abandoning(True)
        with pytest.raises(StepAbandoned):
            guarded()


def test_what_listened_before_listens_again():
    before = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        send(signal.SIGTERM)
    assert [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)] == before


@BOTH
def test_the_second_signal_ends_the_process_in_the_middle_of_anything(signum):
    code = (
        "import os, signal, sys\nfrom egpo.local.sessions.interrupts import Interrupts\n"
        "with Interrupts():\n"
        f"    os.kill(os.getpid(), {int(signum)})\n    print('first', flush=True)\n"
        f"    os.kill(os.getpid(), {int(signum)})\n    print('second', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("first\n", -signum)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_exit_codes_are_those_that_shells_expect(signum, code):
    assert RunInterruptedError(signum, "stopped").exit_code == code
