"""A run through the launcher, with a process in verl's place that fails in every way that verl can."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from egpo.errors import EgpoError, InputError
from egpo.processes.launches import LaunchedProcesses
from egpo.processes.table import process_title
from egpo.runs.folder import RunFolder
from egpo.runs.metrics import read_metrics
from egpo.runs.provenance import read_provenance
from egpo.serving import engine_options
from egpo.serving.engine_options import ParsedCommand
from egpo.verl.launch import watch
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.processes import LaunchRecord
from egpo.verl.launch.train import train
from tests.verl.launch.recipes import SMALL, small
from tests.waiting import LIMIT_S, becomes_true

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
STAND_IN = Path(__file__).with_name("stand_in.py")


@pytest.fixture
def overrides(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    return [f"verl.python={python}", f"runs={tmp_path / 'runs'}", "name=run", "checkpoints.every=2", "steps=6"]


def folder_of(config):
    return RunFolder(Path(config.runs) / config.name)


def steps_of(folder):
    return [line["step"] for line in read_metrics(folder.metrics)]


def starts_of(folder):
    return [json.loads(line) for line in VerlPlaces(folder).starts.read_text().splitlines()]


def test_a_run_to_its_end_lies_in_our_folder(overrides):
    config = small(*overrides, "watch.rollouts_every=3", "checkpoints.keep_last=1", "checkpoints.keep_best=1")
    folder = folder_of(config)
    assert train(config) == folder.checkpoint_of(6)
    assert steps_of(folder) == [0, 1, 2, 3, 4, 5, 6]
    assert [line["timing_s/step"] for line in read_metrics(folder.timings)[1:]] == [0.1] * 6
    assert sorted(path.name for path in folder.rollouts.iterdir()) == ["step_1.jsonl", "step_3.jsonl", "step_6.jsonl"]
    kept = sorted(path.name for path in folder.checkpoints.glob("global_step_*"))
    assert kept == ["global_step_2", "global_step_6"], "the last, and the best by validation"
    provenance = read_provenance(folder.provenance)
    assert set(provenance.data) == {"train", "test"}
    assert provenance.start.versions["verl"] == "0.9.1"
    left = {path.name for path in VerlPlaces(folder).root.iterdir()}
    assert left <= {"data", "rollouts", "starts.jsonl"}, "what only the launch needed is gone"
    (start,) = starts_of(folder)
    assert start["step"] == 0, "the validation before training"
    assert 0 <= start["stages"]["start Ray"] <= start["seconds"] < LIMIT_S


def test_a_failure_is_told_by_its_cause_and_the_run_goes_on_from_its_checkpoint(overrides, monkeypatch, capsys):
    config = small(*overrides)
    monkeypatch.setenv("STAND_IN", "crash@5")
    with pytest.raises(
        EgpoError, match=r"ended with code 1 after step 5 of 6; the newest checkpoint is that of step 4"
    ):
        train(config)
    assert "ValueError: the reward is broken" in capsys.readouterr().out
    monkeypatch.setenv("STAND_IN", "")
    train(config, resume=True)
    folder = folder_of(config)
    assert steps_of(folder) == [0, 1, 2, 3, 4, 5, 6], "step 5 was taken again, and stands there once"
    assert [launch.after_step for launch in read_provenance(folder.provenance).resumptions] == [4]


def test_responses_that_nobody_took_over_are_kept_up_to_the_checkpoint(overrides, monkeypatch):
    """verl dumps a step after it saved it, and before it logs it."""
    config = small(*overrides)
    folder = folder_of(config)
    monkeypatch.setenv("STAND_IN", "crash@5")
    with pytest.raises(EgpoError):
        train(config)
    for step in (4, 5):
        (VerlPlaces(folder).rollouts / f"{step}.jsonl").write_text("left\n")
    monkeypatch.setenv("STAND_IN", "")
    train(config, resume=True)
    assert folder.rollouts_of(4).read_text() == "left\n"
    assert not folder.rollouts_of(5).exists(), "after the checkpoint: step 5 was taken again, and is not one to dump"


def test_a_hang_is_an_end(overrides, monkeypatch):
    monkeypatch.setenv("STAND_IN", "hang@3")
    with pytest.raises(
        EgpoError, match=r"no step for 0\.25 minutes after step 3.*checkpoint is that of step 2.*--resume"
    ):
        train(small(*overrides, "verl.patience_minutes=0.25"))


def test_an_early_end_without_an_error_is_an_error(overrides, monkeypatch):
    monkeypatch.setenv("STAND_IN", "exit@3")
    with pytest.raises(EgpoError, match="ended with code 0 after step 3 of 6"):
        train(small(*overrides))


def started(overrides, *words, **environment):
    command = [sys.executable, "-m", "egpo", "train", *SMALL, *overrides, *words]
    with open(Path(overrides[1].partition("=")[2]).parent / "screen.txt", "w") as screen:
        return subprocess.Popen(command, stdout=screen, stderr=subprocess.STDOUT, env=os.environ | environment)


def wait_for_step(folder, step, process):
    def is_there():
        assert process.poll() is None
        return folder.metrics.exists() and step in steps_of(folder)

    assert becomes_true(is_there)


def recorded(folder, process):
    """The launch's record, once it names the driver and the worker that left the session."""

    def of_both():
        assert process.poll() is None
        path = VerlPlaces(folder).launch
        return path.exists() and len((record := LaunchRecord.read(path)).processes) == 2 and record

    record = becomes_true(of_both)
    assert record
    return record


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_a_signal_ends_it_with_nobody_left(overrides, tmp_path, signum, code):
    folder = folder_of(small(*overrides))
    process = started(overrides, STAND_IN="hang@3")
    wait_for_step(folder, 3, process)
    record = recorded(folder, process)
    process.send_signal(signum)
    assert process.wait(timeout=LIMIT_S) == code
    said = (tmp_path / "screen.txt").read_text()
    assert "stopped after step 3; the newest checkpoint is that of step 2; continue with: egpo train" in said
    assert LaunchedProcesses(record.launch_id, record.processes).look() == set()


def test_a_checkpoint_that_is_there_gets_its_figures_before_the_end(overrides, tmp_path):
    """verl saves a step before it logs it: stopped in between, the resumed run would have a hole in its curve."""
    folder = folder_of(small(*overrides))
    process = started(overrides, STAND_IN="slow@4")
    wait_for_step(folder, 3, process)
    assert becomes_true(lambda: folder.latest.exists() and folder.latest.read_text() == "4")
    assert 4 not in steps_of(folder)
    process.send_signal(signal.SIGINT)
    screen = tmp_path / "screen.txt"
    assert becomes_true(lambda: "waiting for its metrics" in screen.read_text())
    folder.checkpoint_of(4).with_name("log-it").touch()
    assert process.wait(timeout=LIMIT_S) == 130
    assert steps_of(folder)[:5] == [0, 1, 2, 3, 4]


def test_what_verl_saves_while_it_is_ended_does_not_count(overrides, tmp_path):
    """Its workers go on for a while after the signal: a step saved then is never logged. It takes the place of no
    other, or with it gone none would be left to go on from."""
    overrides += ["checkpoints.keep_last=1", "checkpoints.keep_best=0"]
    folder = folder_of(small(*overrides))
    process = started(overrides, STAND_IN="late@2")
    wait_for_step(folder, 2, process)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=LIMIT_S) == 130
    said = (tmp_path / "screen.txt").read_text()
    assert "stopped after step 3; the newest checkpoint is that of step 2" in said
    assert not folder.checkpoint_of(4).exists()
    assert folder.latest.read_text() == "2"
    train(small(*overrides), resume=True)
    assert steps_of(folder) == [0, 1, 2, 3, 4, 5, 6]


def test_what_a_killed_launcher_left_is_ended_by_the_next_one(overrides, capsys):
    config = small(*overrides)
    folder = folder_of(config)
    process = started(overrides, STAND_IN="hang@3")
    wait_for_step(folder, 3, process)
    record = recorded(folder, process)
    process.kill()
    process.wait()
    assert LaunchedProcesses(record.launch_id, record.processes).look(), "the worker that left the session"
    train(config, resume=True)
    assert LaunchedProcesses(record.launch_id, record.processes).look() == set()
    assert "an earlier launcher of this run was killed" in capsys.readouterr().out
    assert steps_of(folder) == [0, 1, 2, 3, 4, 5, 6]


def test_a_killed_driver_is_named_and_the_run_goes_on(overrides, tmp_path):
    folder = folder_of(small(*overrides))
    process = started(overrides, STAND_IN="hang@3")
    wait_for_step(folder, 3, process)
    record = recorded(folder, process)
    driver = next(one.pid for one in record.processes if "verl.trainer.main_ppo" in process_title(one.pid))
    os.kill(driver, signal.SIGKILL)
    assert process.wait(timeout=LIMIT_S) == 1
    assert LaunchedProcesses(record.launch_id, record.processes).look() == set()
    said = " ".join((tmp_path / "screen.txt").read_text().split())
    assert "verl's driver was ended by SIGKILL after step 3 of 6; the newest checkpoint is that of step 2; " in said
    train(small(*overrides), resume=True)
    assert steps_of(folder) == [0, 1, 2, 3, 4, 5, 6]


def test_a_driver_that_aborts_is_told_with_its_last_lines(overrides, monkeypatch, capsys):
    monkeypatch.setenv("STAND_IN", "abort@3")
    with pytest.raises(EgpoError, match="verl's driver was ended by SIGABRT after step 3 of 6"):
        train(small(*overrides))
    assert "NCCL WARN Cuda failure" in capsys.readouterr().out


def test_a_process_that_verl_waits_for_in_vain_ends_the_run(overrides, monkeypatch, capsys):
    """verl may wait for a dead process for ever: its launcher does not, and does not wait for `patience_minutes`."""
    monkeypatch.setattr(watch, "_GRACE_S", 1.0)
    monkeypatch.setenv("STAND_IN", "lost@3")
    with pytest.raises(EgpoError) as caught:
        train(small(*overrides))
    said = str(caught.value)
    assert re.search(
        r"process \d+ of verl \(SimpleStorageUnit, which keeps the batches\) died after step 3 of 6: ", said
    )
    assert "the newest checkpoint is that of step 2; continue with: egpo train" in said
    assert "All checks passed" in capsys.readouterr().out, "the last lines of the log"


def test_an_unknown_option_of_vllm_is_refused_before_anything_is_written(overrides, monkeypatch):
    """verl's own vLLM would say so minutes later, in one of a dozen processes."""
    parsed = ParsedCommand(("max-num-seqs", "swap-space"), "", 1, 1, 1, 0.9)
    monkeypatch.setattr(engine_options, "ask_parser", lambda python, words: parsed)
    config = small(*overrides, "verl.actor_rollout_ref.rollout.engine_kwargs.vllm.max_seqs=3")
    with pytest.raises(
        InputError, match=r"engine_kwargs\.vllm: vLLM has no option `max_seqs`; did you mean `max-num-se"
    ):
        train(config)
    assert not folder_of(config).path.exists()


@pytest.mark.parametrize(
    ("chosen", "fault"),
    [
        ("rollout.max_response_tokens=1000000", "the model's context is"),
        ("rollout.max_prompt_tokens=1", "0 of 32 train prompts have 1 tokens or fewer"),
        ("verl.ray_kwargs.ray_init.dashboard_port={port}", r"port \d+ cannot be used"),
    ],
)
def test_a_launch_that_is_refused_leaves_no_folder(overrides, chosen, fault):
    """A folder would have to be removed by hand: with another setting the run could be neither started nor resumed."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        config = small(*overrides, chosen.format(port=taken.getsockname()[1]))
        with pytest.raises(InputError, match=fault):
            train(config)
    assert not folder_of(config).path.exists()


def test_another_config_is_refused_and_its_differences_shown(overrides, monkeypatch):
    monkeypatch.setenv("STAND_IN", "exit@2")
    with pytest.raises(EgpoError):
        train(small(*overrides))
    monkeypatch.setenv("STAND_IN", "")
    with pytest.raises(InputError, match=r"update.lr: 1.0e-06 -> 0.5"):
        train(small(*overrides, "update.lr=0.5"), resume=True)
    with pytest.raises(InputError, match="no complete checkpoint of step 3; available steps: 2"):
        train(small(*overrides), resume_from=3)
    train(small(*overrides, "verl.patience_minutes=5"), resume=True)


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({}, r"verl is not installed; to get such an environment: make verl"),
        ({"verl": "0.8.0"}, r"verl 0\.8\.0 is not supported; 0\.9\.1 is"),
        ({"verl": "0.9.1", "egpo": "1"}, "`ray` is not installed beside verl"),
    ],
)
def test_the_wrong_verl_is_refused_before_anything_is_written(overrides, monkeypatch, versions, said):
    monkeypatch.setenv("STAND_IN_VERSIONS", json.dumps(versions))
    config = small(*overrides)
    with pytest.raises(InputError, match=said):
        train(config)
    assert not folder_of(config).path.exists()


def test_no_gpu_is_told_with_the_way_out(overrides):
    with pytest.raises(InputError, match=r"2 GPUs are needed.*none.*verl\.device=cpu"):
        train(small(*overrides, "verl.device=cuda", "verl.gpus=2"))


def test_more_nodes_need_a_cluster(overrides):
    with pytest.raises(InputError, match=r"2 nodes need a cluster to join.*verl\.address=host:6379"):
        train(small(*overrides, "verl.nodes=2"))


def test_no_interpreter_there(overrides):
    with pytest.raises(InputError, match="`/nothing` cannot be run"):
        train(small(*overrides, "verl.python=/nothing"))
