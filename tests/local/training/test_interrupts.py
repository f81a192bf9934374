"""The first signal ends a run in good order, the second at once."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from egpo.errors import RunInterruptedError
from egpo.local.training.interrupts import Interrupts, StepAbandoned
from egpo.verl.launch.watch import StopSignals

BOTH = pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
FROM_SCHEDULERS = pytest.mark.parametrize("signum", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU])
ALL = [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU]


def send(signum, reached=None):
    os.kill(os.getpid(), signum)
    if reached is not None:
        reached.append("after")


@pytest.mark.parametrize("signum", ALL)
def test_a_step_that_changed_nothing_is_abandoned_at_once(signum, capfd):
    reached = []
    with Interrupts() as interrupts:
        interrupts.allow_abandoning(True)
        with pytest.raises(StepAbandoned):
            send(signum, reached)
    assert (reached, interrupts.signum) == ([], signum)
    assert capfd.readouterr().err == "egpo: stopping after saving; send the signal again to stop at once\n"


@pytest.mark.parametrize("signum", ALL)
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
    before = [signal.getsignal(signum) for signum in ALL]
    with Interrupts():
        send(signal.SIGTERM)
    assert [signal.getsignal(signum) for signum in ALL] == before


@BOTH
def test_the_second_signal_ends_the_process_in_the_middle_of_anything(signum):
    code = (
        "import os, signal, sys\nfrom egpo.local.training.interrupts import Interrupts\n"
        "with Interrupts():\n"
        f"    os.kill(os.getpid(), {int(signum)})\n    print('first', flush=True)\n"
        f"    os.kill(os.getpid(), {int(signum)})\n    print('second', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("first\n", -signum)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_exit_codes_are_those_that_shells_expect(signum, code):
    assert RunInterruptedError(signum, "stopped").exit_code == code


@FROM_SCHEDULERS
def test_a_terminal_or_a_scheduler_that_says_it_twice_does_not_cut_the_saving_short(signum):
    with Interrupts() as interrupts:
        send(signum)
        send(signum)
        assert interrupts.signum == signum


def test_under_nohup_a_run_outlives_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            send(signal.SIGHUP)
            assert interrupts.signum is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("signum", ALL)
def test_verl_is_ended_by_the_same_signals(signum):
    with StopSignals() as stops:
        send(signum)
        assert (stops.signum, stops.hurried) == (signum, False)
        send(signum)
        assert stops.hurried == (signum in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT))
