"""Trackers: the real ones, offline, and one that breaks."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import get_args

import pytest

from egpo.config.sections.training import SHOW_TABLES, TrackerName
from egpo.errors import EgpoWarning, InputError, forget_warnings
from egpo.runs import RolloutRecord, RunFolder, Trackers, open_trackers
from egpo.runs import trackers as module
from egpo.runs.sample_table import MOST_CHARACTERS, bounded, read_sample_table, sample_table
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


OFFLINE = {"WANDB_MODE": "offline", "SWANLAB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "true"}


def run_offline(name, folder):
    """Log a run and its resumption, with tables. In a process of its own: trackers leave threads and services."""
    reason = f"{name} is not installed (an optional extra that is not in requirements.lock, docs/dependencies.md)"
    pytest.importorskip(name, reason=reason)
    code = f"""
import signal, warnings
from pathlib import Path
from egpo.errors import EgpoWarning
from egpo.runs import RolloutRecord, RunFolder, open_trackers
from egpo.runs.sample_table import sample_table
warnings.simplefilter("error", EgpoWarning)
signal.signal(signal.SIGINT, lambda *_: None)
ours = signal.getsignal(signal.SIGINT)
def record(step, sample):
    return RolloutRecord("2 + 2 =", f"|4| <b>é</b> {{sample}}", 4, 0.5, step, True, "correct", "p0", sample)
config = {{"rollout": {{"n": 8, "stop": []}}, **{{f"key{{i}}": "x" * 900 for i in range(150)}}}}
for steps in ((1, 2, 3), (3, 4)):
    opened = open_trackers([{name!r}], "a-run", config, RunFolder(Path({str(folder)!r})))
    for step in steps:
        opened.log(step, {{"val-core/x/acc/mean@1": step / 4, "x": float("nan")}})
        opened.log_samples(step, sample_table([record(step, sample) for sample in range(9)], 2))
    assert signal.getsignal(signal.SIGINT) is ours
    opened.close()
    assert signal.getsignal(signal.SIGINT) is ours
"""
    places = {"TRACKIO_DIR": str(folder / "trackio"), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | OFFLINE | places, cwd=folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["wandb", "trackio", "swanlab"])
def test_the_others_take_a_run_offline_and_its_resumption(tmp_path, name):
    run_offline(name, tmp_path)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "id.txt"]
    assert written
    if name in SHOW_TABLES:
        text = "".join(path.read_bytes().decode("utf-8", "replace") for path in written)
        assert json.dumps("|4| <b>é</b> 1")[1:-1] in text or "|4| <b>é</b> 1" in text
        assert "</b> 2" not in text  # two rows were asked for


def test_mlflow_keeps_one_run_with_its_settings_metrics_and_tables(tmp_path):
    """`mean@1` is `mean_1` there; a resumed run continues its curve; values of settings are shortened."""
    run_offline("mlflow", tmp_path)
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    [run] = client.search_runs([client.get_experiment_by_name("egpo").experiment_id])
    assert (run.info.run_name, run.info.status) == ("a-run", "FINISHED")
    assert run.data.params["rollout.n"] == "8"
    assert run.data.params["rollout.stop"] == "[]"
    assert (len(run.data.params), len(run.data.params["key149"])) == (152, 500)
    history = client.get_metric_history(run.info.run_id, "val-core/x/acc/mean_1")
    assert [(one.step, one.value) for one in history] == [(1, 0.25), (2, 0.5), (3, 0.75), (3, 0.75), (4, 1.0)]
    assert set(run.data.metrics) == {"val-core/x/acc/mean_1"}
    names = sorted(one.path for one in client.list_artifacts(run.info.run_id, "samples"))
    assert names == [f"samples/step_{step}.json" for step in (1, 2, 3, 4)]
    stored = json.loads(Path(client.download_artifacts(run.info.run_id, names[-1])).read_text())
    rows = [dict(zip(stored["columns"], row, strict=True)) for row in stored["data"]]
    assert [(row["step"], row["reward"], row["response"]) for row in rows[:2]] == [
        (4, 0.5, "|4| <b>é</b> 0"),
        (4, 0.5, "|4| <b>é</b> 1"),
    ]
    assert len(rows) == 2


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
    with pytest.warns(EgpoWarning, match=r"`bad` failed \(ConnectionError: no route\)"):
        trackers.log(1, METRICS)
    forget_warnings()  # a second warning would now be an error
    for step in (2, 3):
        trackers.log(step, METRICS)
    trackers.close()
    assert logged == [(step, {"critic/score/mean": 0.25}) for step in (1, 2, 3)]
    assert closed == ["good"]


def test_one_that_breaks_at_the_end_is_a_warning():
    with pytest.warns(EgpoWarning, match="`bad` failed"):
        Trackers([Tracker("bad", lambda *_: None, broken)]).close()


def test_an_interrupt_is_no_failure_of_a_tracker():
    def interrupted(*_):
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Trackers([Tracker("slow", interrupted, broken)]).log(1, METRICS)


def test_a_tracker_cannot_take_the_interrupts():
    """SwanLab replaces the handler of SIGINT if it is opened in the main thread."""
    before, threads = signal.getsignal(signal.SIGINT), []
    Trackers([Tracker("one", lambda *_: threads.append(threading.current_thread()), lambda: None)]).log(1, METRICS)
    greedy = Tracker("greedy", lambda *_: signal.signal(signal.SIGINT, signal.SIG_IGN), lambda: None)
    with pytest.warns(EgpoWarning, match="`greedy` failed"):
        Trackers([greedy]).log(1, METRICS)
    assert signal.getsignal(signal.SIGINT) is before
    assert threads != [threading.main_thread()]


def record(problem="p0", sample=0, **more):
    values = {"input": "prompt", "output": "text", "gts": 1, "score": 1.0, "step": 7, "acc": True, "reason": "correct"}
    return RolloutRecord(**(values | {"problem": problem, "sample": sample} | more))


def test_the_schema_names_the_trackers_and_which_of_them_take_tables():
    assert set(OPENERS) == set(get_args(TrackerName))
    assert set(SHOW_TABLES) < set(OPENERS)


def test_a_table_takes_a_response_of_every_problem_before_the_next_of_any():
    records = [record(f"p{place}", sample) for place in range(3) for sample in range(4)]
    table = sample_table(records, 5)
    problem, sample = table.columns.index("problem"), table.columns.index("sample")
    assert [(row[problem], row[sample]) for row in table.rows] == [
        ("p0", 0),
        ("p0", 1),
        ("p1", 0),
        ("p1", 1),
        ("p2", 0),
    ]
    assert len(sample_table(records, 100).rows) == 12
    assert sample_table([], 5).rows == ()


def test_a_response_that_was_not_judged_has_no_reward():
    [row] = sample_table([record(failed=True, score=0.0)], 1).rows
    table = dict(zip(sample_table([], 0).columns, row, strict=True))
    assert (table["reward"], table["correct"]) == (None, None)


@pytest.mark.parametrize("length", [0, MOST_CHARACTERS, MOST_CHARACTERS + 1, 10**6])
def test_a_cell_is_bounded_and_keeps_both_ends(length):
    text = "".join(chr(ord("a") + place % 26) for place in range(length))
    kept = bounded(text)
    assert len(kept) < MOST_CHARACTERS + 60
    assert (kept == text) == (length <= MOST_CHARACTERS)
    assert (kept[:900], kept[-900:]) == (text[:900], text[-900:])


def test_a_step_without_rollouts_has_no_table(tmp_path):
    assert read_sample_table(tmp_path / "step_3.jsonl", 4).rows == ()


def test_a_tracker_that_refuses_a_table_still_gets_metrics():
    logged, tables = [], []
    picky = Tracker("picky", lambda step, _: logged.append(step), lambda: None, broken)
    good = Tracker("good", lambda *_: None, lambda: None, lambda step, table: tables.append((step, len(table.rows))))
    plain = Tracker("plain", lambda *_: None, lambda: None)
    trackers = Trackers([picky, good, plain])
    with pytest.warns(
        EgpoWarning, match=r"the tracker `picky` did not take the table of samples \(ConnectionError: no route\)"
    ):
        trackers.log_samples(1, sample_table([record()], 1))
    forget_warnings()  # a second warning would now be an error
    for step in (2, 3):
        trackers.log(step, METRICS)
        trackers.log_samples(step, sample_table([record()], 1))
    trackers.log_samples(4, sample_table([], 1))
    assert logged == [2, 3]
    assert tables == [(1, 1), (2, 1), (3, 1)]


def test_none_asked_for_leaves_nothing_behind(tmp_path):
    trackers = open_trackers([], "a-run", {}, RunFolder(tmp_path))
    trackers.log(1, METRICS)
    trackers.close()
    assert list(tmp_path.iterdir()) == []
