"""However a run ends, the last thing said is one clear line, and the exit code is not 0."""

import os
import shutil
import subprocess
import sys

import pytest

from egpo.rewards.verdict import Verdict
from tests.local.run_tasks import Sparse
from tests.local.runs import REPOSITORY, write_recipe
from tests.waiting import becomes_true

CHATS = '{"messages": [{"role": "user", "content": "1+1"}, {"role": "assistant", "content": "2"}]}\n' * 8


class Leaves(Sparse):
    """Its judge leaves the interpreter, as a script does that calls `sys.exit`."""

    def judge(self, problem, text):
        sys.exit(0)


class Unreachable(Sparse):
    """Its problems cannot be had."""

    def problems(self, split):
        raise ConnectionError("no data server")


class Hangs(Sparse):
    """Its judge does not answer for some responses."""

    judge_timeout_s = 0.5

    def judge(self, problem, text):
        if problem.key.endswith("1"):
            while True:
                pass
        return Verdict(len(text) % 2, False, "parity")


@pytest.fixture
def egpo(model_folder, tmp_path):
    """`egpo("train", ...)` starts the command on a small recipe."""
    recipe = write_recipe(tmp_path / "recipe.yaml", model_folder())
    (tmp_path / "chats.jsonl").write_text(CHATS)
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CI": "1"}

    def start(verb, *words, **options):
        given = [f"model.path={model_folder()}", "model.device=cpu", "data.path=chats.jsonl", "name=tiny"]
        words = [*given, *words] if verb == "sft" else [str(recipe), "validation.every=0", *words]
        command = [sys.executable, "-m", "egpo", verb, *words]
        given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, **given)

    return start


def ending(process):
    """The exit code, and what was said last."""
    _, said = process.communicate(timeout=240)
    assert "Traceback" not in said, said
    assert "Exception ignored" not in said, said
    return process.returncode, said.splitlines()[-1]


@pytest.mark.parametrize("verb", ["train", "sft"])
def test_a_full_device_for_standard_output(egpo, verb):
    with open("/dev/full", "w") as full:
        code, said = ending(egpo(verb, stdout=full))
    assert code == 1
    assert said.startswith("egpo: standard output cannot be written (No space left on device): stopped after step 0")


def test_a_reader_that_leaves(egpo, tmp_path):
    """`egpo train ... | head -2`. What was done is saved."""
    process = egpo("train", "steps=1000", "checkpoints.every=0")
    process.stdout.readline()
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    code, said = ending(process)
    assert code == 1
    assert said.startswith("egpo: standard output cannot be written (Broken pipe): stopped after step ")
    assert said.endswith("continue with: egpo train runs/tiny/config.yaml --resume")
    step = said.split("after step ")[1].split()[0]
    assert (tmp_path / "runs/tiny/checkpoints/latest_checkpointed_iteration.txt").read_text() == step


def test_a_run_folder_that_is_removed(egpo, tmp_path):
    process = egpo("train", "steps=1000", "checkpoints.every=0")
    assert becomes_true((tmp_path / "runs/tiny/metrics.jsonl").exists)
    (tmp_path / "runs/tiny").rename(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    code, said = ending(process)
    assert (code, said) == (
        1,
        "egpo: runs/tiny: the run folder was removed or moved during the run; move it back, or start the run again",
    )
    assert not (tmp_path / "runs/tiny").exists()


def test_a_judge_that_leaves_the_interpreter(egpo):
    code, said = ending(egpo("train", "task.name=tests.local.test_endings:Leaves"))
    assert code == 1
    assert said.startswith(
        "egpo: task tests.local.test_endings:Leaves: the judge failed on all 6 responses: judge_raised"
    )


def test_a_task_whose_problems_cannot_be_had(egpo, tmp_path):
    code, said = ending(egpo("train", "task.name=tests.local.test_endings:Unreachable"))
    assert code == 2
    assert said.startswith(
        "egpo: task tests.local.test_endings:Unreachable: the task's `problems` raised ConnectionError: no data server "
    )
    assert not (tmp_path / "runs").exists()


def test_a_judge_that_hangs(egpo):
    code, said = ending(egpo("train", "task.name=tests.local.test_endings:Hangs"))
    assert code == 1
    assert said.startswith("egpo: task tests.local.test_endings:Hangs: the judge hangs in 3 threads")
    assert "problem 'train 1'" in said
