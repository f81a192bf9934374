"""One folder a run, one process a folder, one config a run."""

import os
import subprocess
import sys

import pytest

from egpo.config import config_to_yaml, load_config
from egpo.errors import ConfigError, InputError
from egpo.files import UNFINISHED
from egpo.runs import Difference, RunFolder, config_differences

BASE = ["model.path=tiny", "task.name=countdown"]


def yaml_of(*overrides):
    return config_to_yaml(load_config(overrides=[*BASE, *overrides]))


def create(path, *overrides):
    with RunFolder.create(path, yaml_of(*overrides)) as folder:
        return folder


def resume(path, *overrides):
    with RunFolder.resume(path, yaml_of(*overrides)) as folder:
        return folder


def test_the_layout_is_the_documented_one(tmp_path):
    folder = RunFolder(tmp_path)
    paths = [
        folder.config, folder.provenance, folder.metrics, folder.timings, folder.health, folder.rollouts_of(7),
        folder.checkpoint_of(7), folder.latest, folder.evals, folder.report,
    ]  # fmt: skip
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        "config.yaml", "provenance.json", "metrics.jsonl", "timings.jsonl", "health.jsonl", "rollouts/step_7.jsonl",
        "checkpoints/global_step_7", "checkpoints/latest_checkpointed_iteration.txt", "evals", "report.html",
    ]  # fmt: skip


def test_a_new_run_holds_its_config(tmp_path):
    folder = create(tmp_path / "runs" / "a")
    assert folder.config.read_text() == yaml_of()


def test_a_folder_that_holds_a_run_is_refused_with_what_to_do(tmp_path):
    create(tmp_path / "a", "update.lr=1e-5")
    with pytest.raises(
        InputError, match=r"a: the folder already contains a run; continue that run with --resume, or .*name="
    ):
        create(tmp_path / "a")
    assert RunFolder(tmp_path / "a").config.read_text() == yaml_of("update.lr=1e-5")


def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match=r"the folder is not empty and not a run \(it contains thesis\.tex\)"):
        create(tmp_path)
    with pytest.raises(InputError, match="is a file"):
        create(tmp_path / "thesis.tex")
    assert not (tmp_path / "config.yaml").exists()


def test_a_run_that_was_killed_before_it_had_a_config_may_be_created_again(tmp_path):
    (tmp_path / ".lock").write_text("1")
    (tmp_path / f"{UNFINISHED}config.yaml-1234").write_text("name:")
    create(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "config.yaml"}


def test_there_must_be_a_run_to_resume(tmp_path):
    with pytest.raises(InputError, match="no run to resume; leave out --resume"):
        resume(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_resuming_with_the_same_config_removes_what_a_killed_process_left(tmp_path):
    folder = create(tmp_path)
    folder.rollouts.mkdir()
    (folder.rollouts / f"{UNFINISHED}step_1.jsonl-1234").write_text("x")
    (folder.rollouts / "step_1.jsonl").write_text("x")
    resume(tmp_path)
    assert [path.name for path in folder.rollouts.iterdir()] == ["step_1.jsonl"]


@pytest.mark.parametrize(
    "override",
    [
        "checkpoints.every=7", "watch.rollouts_every=3", "watch.trackers=[wandb]", "runs=elsewhere", "steps=200",
    ],
)  # fmt: skip
def test_what_changes_no_arithmetic_may_change_on_resume_and_is_written(tmp_path, override):
    create(tmp_path)
    folder = resume(tmp_path, override)
    assert folder.config.read_text() == yaml_of(override)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("update.lr", "1e-5"), ("update.micro_tokens", "4096"), ("validation.every", "3"), ("rollout.n", "4"),
        ("seed", "1"), ("model.path", "other"), ("algorithm.estimator", "egpo"), ("task.settings", "{train: 3}"),
    ],
)  # fmt: skip
def test_another_training_is_refused_and_the_difference_shown(tmp_path, key, value):
    create(tmp_path)
    with pytest.raises(ConfigError, match=rf"{tmp_path}: this run has a different config \({key}.* -> ") as caught:
        resume(tmp_path, f"{key}={value}", "checkpoints.every=7")
    assert "checkpoints" not in str(caught.value)
    assert "name=" in str(caught.value)
    assert RunFolder(tmp_path).config.read_text() == yaml_of()


def test_the_number_of_steps_counts_where_the_schedule_depends_on_it(tmp_path):
    create(tmp_path, "update.schedule=cosine")
    with pytest.raises(ConfigError, match=r"steps: 100 -> 200"):
        resume(tmp_path, "update.schedule=cosine", "steps=200")


def test_differences_are_dotted_and_say_what_is_absent():
    old, new = "a: 1\nb: {c: x, d: [1, 2]}\n", "b: {c: '1', d: [1, 2], e: {}}\na: 1\n"
    assert config_differences(old, new) == [Difference("b.c", "x", "'1'"), Difference("b.e", "nothing", "{}")]
    assert config_differences(new, old) == [Difference("b.c", "'1'", "x"), Difference("b.e", "{}", "nothing")]
    assert config_differences(old, old) == []


@pytest.mark.parametrize("enter", [RunFolder.create, RunFolder.resume])
def test_two_processes_never_write_one_run(tmp_path, enter):
    with RunFolder.create(tmp_path, yaml_of()):
        second = enter(tmp_path, yaml_of())
        with pytest.raises(InputError, match=rf"process {os.getpid()} is writing this run; wait"):
            second.__enter__()
    resume(tmp_path)


def test_the_lock_ends_with_its_process_however_that_ends(tmp_path):
    code = f"""
import time
from pathlib import Path
from egpo.runs import RunFolder
with RunFolder.create(Path({str(tmp_path)!r}), {yaml_of()!r}):
    print("held", flush=True)
    time.sleep(100)
"""
    holder = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(InputError, match=rf"process {holder.pid} is writing"):
        resume(tmp_path)
    holder.kill()
    holder.wait()
    resume(tmp_path)


def test_an_error_inside_the_block_frees_the_folder(tmp_path):
    with pytest.raises(KeyboardInterrupt), RunFolder.create(tmp_path, yaml_of()):
        raise KeyboardInterrupt
    resume(tmp_path)


def test_no_torch_is_needed():
    code = "import sys, egpo.runs; assert not {'torch', 'transformers', 'numpy', 'wandb'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_is_said_about_verl_counts_for_a_run_on_verl(tmp_path):
    create(tmp_path / "local")
    resume(tmp_path / "local", "verl.gpus=8")
    create(tmp_path / "verl", "engine=verl")
    resume(tmp_path / "verl", "engine=verl", "verl.patience_minutes=5", "verl.python=python3")
    with pytest.raises(ConfigError, match=r"verl\.gpus: 1 -> 8"):
        resume(tmp_path / "verl", "engine=verl", "verl.gpus=8")
    with pytest.raises(ConfigError, match="engine: local -> verl"):
        resume(tmp_path / "local", "engine=verl")


def test_a_run_that_is_older_than_a_setting_resumes_at_its_default(tmp_path):
    folder = create(tmp_path / "a")
    without = [line for line in folder.config.read_text().splitlines() if "max_refills" not in line]
    folder.config.write_text("\n".join(without) + "\n")

    def resume_with(*overrides):
        config = load_config(overrides=[*BASE, *overrides])
        changed = config.model_dump(mode="json", exclude_defaults=True)
        with RunFolder.resume(folder.path, config_to_yaml(config), changed):
            pass

    with pytest.raises(ConfigError, match=r"algorithm\.max_refills: nothing -> 7"):
        resume_with("algorithm.max_refills=7")
    resume_with()
    assert folder.config.read_text() == yaml_of()
