"""Trackers: the real ones, offline, and one that breaks."""

import os
import signal
import subprocess
import sys

import pytest

from egpo.errors import EgpoWarning, InputError, forget_warnings
from egpo.runs import RunFolder, Trackers, open_trackers
from egpo.runs import trackers as module
from egpo.runs.trackers import OPENERS, Tracker

METRICS = {"critic/score/mean": 0.25, "actor/pg_loss": float("nan")}


def log_three_steps(name, folder, *steps):
    opened = open_trackers([name], "a-run", {"rollout": {"n": 8}}, folder)
    for step in steps or (1, 2, 3):
        opened.log(step, METRICS | {"critic/score/mean": step / 4})
    opened.close()


def test_tensorboard_gets_every_step_and_a_resumed_run_goes_on(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    folder = RunFolder(tmp_path)
    log_three_steps("tensorboard", folder)
    log_three_steps("tensorboard", folder, 4)
    events = EventAccumulator(str(folder.trackers / "tensorboard"))
    events.Reload()
    assert events.Tags()["tensors"] == ["critic/score/mean"]
    found = [(one.step, make_ndarray(one.tensor_proto).item()) for one in events.Tensors("critic/score/mean")]
    assert found == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]


@pytest.mark.parametrize("name", ["wandb", "trackio", "swanlab"])
def test_the_others_take_a_run_offline_and_its_resumption(tmp_path, name):
    """In a process of their own: they leave threads and services behind."""
    pytest.importorskip(name)
    code = f"""
import signal, warnings
from pathlib import Path
from egpo.errors import EgpoWarning
from egpo.runs import RunFolder, open_trackers
warnings.simplefilter("error", EgpoWarning)
signal.signal(signal.SIGINT, lambda *_: None)
ours = signal.getsignal(signal.SIGINT)
for steps in ((1, 2, 3), (3, 4)):
    opened = open_trackers([{name!r}], "a-run", {{"rollout": {{"n": 8}}}}, RunFolder(Path({str(tmp_path)!r})))
    for step in steps:
        opened.log(step, {{"critic/score/mean": step / 4, "x": float("nan")}})
    assert signal.getsignal(signal.SIGINT) is ours
    opened.close()
    assert signal.getsignal(signal.SIGINT) is ours
"""
    offline = {"WANDB_MODE": "offline", "SWANLAB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio")}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | offline, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "id.txt"]
    assert written


@pytest.mark.parametrize("name", OPENERS)
def test_a_missing_package_is_told_with_the_command_that_installs_it(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "tensorboard.summary" if name == "tensorboard" else name, None)
    with pytest.raises(InputError, match=rf"`{name}` is not installed .*; pip install {name}"):
        open_trackers([name], "a-run", {}, RunFolder(tmp_path))


def test_an_unknown_tracker_is_told_before_any_is_opened(tmp_path):
    with pytest.raises(InputError, match="did you mean `wandb`"):
        open_trackers(["tensorboard", "wandbb"], "a-run", {}, RunFolder(tmp_path))
    assert list(tmp_path.iterdir()) == []


def broken(*_):
    raise ConnectionError("no route")


def test_one_that_cannot_be_opened_stops_the_run_before_it_starts(tmp_path, monkeypatch):
    monkeypatch.setitem(module.OPENERS, "wandb", broken)
    with pytest.raises(InputError, match=r"`wandb` cannot be opened \(ConnectionError: no route\)"):
        open_trackers(["wandb"], "a-run", {}, RunFolder(tmp_path))


def test_one_that_breaks_later_is_left_out_and_the_others_go_on():
    logged, closed = [], []
    good = Tracker("good", lambda step, metrics: logged.append((step, metrics)), lambda: closed.append("good"))
    trackers = Trackers([Tracker("bad", broken, broken), good])
    with pytest.warns(EgpoWarning, match=r"bad failed \(ConnectionError: no route\)"):
        trackers.log(1, METRICS)
    forget_warnings()  # a second warning would now be an error
    for step in (2, 3):
        trackers.log(step, METRICS)
    trackers.close()
    assert logged == [(step, {"critic/score/mean": 0.25}) for step in (1, 2, 3)]
    assert closed == ["good"]


def test_one_that_breaks_at_the_end_is_a_warning():
    with pytest.warns(EgpoWarning, match="bad failed"):
        Trackers([Tracker("bad", lambda *_: None, broken)]).close()


def test_an_interrupt_is_no_failure_of_a_tracker():
    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Trackers([Tracker("slow", interrupted, broken)]).log(1, METRICS)


def test_a_tracker_that_takes_the_interrupts_does_not_keep_them():
    before = signal.getsignal(signal.SIGINT)
    greedy = Tracker("greedy", lambda *_: signal.signal(signal.SIGINT, signal.SIG_IGN), lambda: None)
    Trackers([greedy]).log(1, METRICS)
    assert signal.getsignal(signal.SIGINT) is before


def test_none_asked_for_leaves_nothing_behind(tmp_path):
    trackers = open_trackers([], "a-run", {}, RunFolder(tmp_path))
    trackers.log(1, METRICS)
    trackers.close()
    assert list(tmp_path.iterdir()) == []
