"""A run folder is read as far as it was written; a missing file is empty, a damaged one an error that names it."""

import gzip
import json
import subprocess
import sys

import pytest

from egpo.errors import InputError
from egpo.runs import MetricStream, RunFolder
from egpo.runs.stored import StoredRun, checkpoint_at, checkpoints_in, distinct_names, latest_step, stored_runs

CONFIG = "name: a\nsteps: 10\nalgorithm: {estimator: egpo}\n"


@pytest.fixture
def run(tmp_path):
    with RunFolder.create(tmp_path / "runs" / "a", CONFIG):
        pass
    return StoredRun.at(tmp_path / "runs" / "a")


def test_a_run_that_has_only_its_config(run):
    assert (run.name, run.planned_steps, run.last_step) == ("a", 10, 0)
    assert (run.setting("algorithm", "estimator"), run.setting("algorithm", "lr"), run.setting("task", "name")) == (
        "egpo",
        "",
        "",
    )
    assert (run.provenance, run.probe) == (None, None)
    assert not any([run.metrics, run.timings, run.notes, run.rollout_steps, run.checkpoints, run.evaluations])


def test_what_was_written_is_read(run):
    MetricStream(run.folder.metrics).append(3, {"critic/score/mean": 0.5})
    run.folder.evals.mkdir()
    (run.folder.evals / "countdown-n8-seed1-step3.json").write_text('{"label": "m", "step": 3, "sampling": {"n": 8}}')
    (run.folder.evals / "list.json").write_text("[]")
    run.folder.probe.write_text('{"pass_rates": [0.5]}')
    run.folder.rollouts.mkdir()
    for name in ("step_10.jsonl", "step_9.jsonl", "step_x.jsonl"):
        (run.folder.rollouts / name).touch()
    assert run.last_step == 3
    assert run.rollout_steps == [9, 10]
    assert run.probe == {"pass_rates": [0.5]}
    evaluation, other = run.evaluations
    assert (evaluation.label, evaluation.step, evaluation.exam) == ("m", 3, "countdown-n8")
    assert (evaluation.section("sampling"), evaluation.section("label")) == ({"n": 8}, {})
    assert (other.label, other.step, other.is_evaluation) == ("list", None, False)


def test_files_are_read_on_first_use(run):
    run.folder.evals.mkdir()
    (run.folder.evals / "cut.json").write_text("{")
    assert run.last_step == 0
    with pytest.raises(InputError, match=r"cut\.json: the file cannot be read"):
        _ = run.evaluations


@pytest.mark.parametrize(
    ("content", "message"), [(b"a: [", "config.yaml: the config is not YAML"), (b"\xff", "cannot be read")]
)
def test_a_damaged_config_is_named(run, content, message):
    run.folder.config.write_bytes(content)
    with pytest.raises(InputError, match=message):
        _ = run.config


def test_checkpoints_are_ordered_by_number_and_found_by_every_folder(run):
    for step in (10, 9):
        (run.folder.checkpoint_of(step) / "actor" / "huggingface").mkdir(parents=True)
    (run.folder.checkpoints / "global_step_x").mkdir()
    assert list(run.checkpoints) == [9, 10] == list(checkpoints_in(run.folder.checkpoints))
    assert latest_step(run.folder.checkpoints, [9, 10]) == 10
    run.folder.latest.write_text("9")
    assert latest_step(run.folder.checkpoints, [9, 10]) == 9
    step = run.folder.checkpoint_of(9)
    for path in (step, step / "actor", step / "actor" / "huggingface"):
        found = checkpoint_at(path)
        assert (found.step, found.run.path, found.is_sharded) == (9, run.folder.path.resolve(), False)
    (step / "actor" / "model_world_size_1_rank_0.pt").touch()
    assert run.checkpoints[9].is_sharded
    assert checkpoint_at(run.folder.path) is None


def test_runs_have_distinct_names_and_are_opened_once(tmp_path):
    paths = [tmp_path / parent / "seed" for parent in ("a", "b")]
    for path in paths:
        with RunFolder.create(path, CONFIG):
            pass
    assert [run.name for run in stored_runs([*paths, paths[0]])] == ["a/seed", "b/seed"]
    assert distinct_names([]) == []
    with pytest.raises(InputError, match="not a run folder; give the runs inside the folder"):
        stored_runs([tmp_path / "a"])


def test_a_run_without_config_can_be_reported_but_not_compared(run):
    MetricStream(run.folder.metrics).append(1, {"x": 1.0})
    run.folder.config.unlink()
    assert [found.config for found in stored_runs([run.folder.path])] == [{}]
    with pytest.raises(InputError, match="not a run folder"):
        stored_runs([run.folder.path], need_config=True)


def test_reading_a_run_needs_no_torch(run):
    run.folder.evals.mkdir()
    run.folder.probe.write_text(json.dumps({"pass_rates": []}))
    code = (
        "import sys; from pathlib import Path; from egpo.runs.stored import StoredRun; "
        f"StoredRun.at(Path({str(run.folder.path)!r})).probe; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_compressed_lines_are_read_like_plain_ones(tmp_path):
    with RunFolder.create(tmp_path / "a", "name: a\nsteps: 2\n") as folder:
        for stream in (MetricStream(folder.metrics), MetricStream(folder.timings)):
            for step in (1, 2):
                stream.append(step, {"critic/score/mean": step / 3})
    before = StoredRun.at(folder.path)
    metrics, timings = before.metrics, before.timings
    for path in (folder.metrics, folder.timings):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    after = StoredRun.at(folder.path)
    assert (after.metrics, after.timings, after.last_step) == (metrics, timings, 2)
    packed = folder.metrics.with_name("metrics.jsonl.gz")
    for broken in (packed.read_bytes()[:-9], b"no gzip", packed.read_bytes()[:12] + b"x" * 20):
        packed.write_bytes(broken)
        with pytest.raises(InputError, match=r"metrics\.jsonl\.gz: the file is not valid gzip"):
            StoredRun.at(folder.path).metrics  # noqa: B018
