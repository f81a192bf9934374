"""`egpo run --parallel`: the same results as one after the other, shared work done once, failures and signals kept."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from egpo.experiments.parallel import ExperimentsFailedError, _Child, _fault, _follow
from egpo.experiments.pipeline import LOCKS, run_experiments, run_stages
from egpo.experiments.screen import plain_screen
from egpo.experiments.stage_jobs import prepare_jobs
from egpo.experiments.stages import Selection
from egpo.experiments.validate import load_experiments
from egpo.runs.folder import LOCK_NAME, locked
from tests.waiting import becomes_true

pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
NAMES = ["tiny-s0", "tiny-s1"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", "CI": "1"}


def egpo_run(recipe, *words, cwd):
    cwd.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "egpo", "run", str(recipe), *words]
    return subprocess.Popen(
        command, cwd=cwd, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def results(folder):
    """The bytes that a run leaves and that do not depend on the clock or the folder."""
    paths = [folder / "metrics.jsonl", folder / "config.yaml", *sorted((folder / "evals").glob("*.jsonl"))]
    return {path.name: path.read_bytes() for path in paths}


def test_parallel_runs_equal_sequential_ones_and_share_their_work(recipe, tmp_path):
    for cwd, words in (("one", ()), ("two", ("--parallel", "2"))):
        process = egpo_run(recipe, "--seeds", "0,1", *words, cwd=tmp_path / cwd)
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said
        assert "report of all runs" in said
    for name in NAMES:
        assert results(tmp_path / "one/runs" / name) == results(tmp_path / "two/runs" / name)
    own = [(tmp_path / "two/runs" / name / "output.log").read_text() for name in NAMES]
    for job in ("prepare", "eval: base"):
        reused = [re.search(rf"^  {job}: (copied|there already, from)", text, re.M) is not None for text in own]
        assert sorted(reused) == [False, True], job
    assert all(f"{name}: finished" in said and f"{name}: train: at step 2" in said for name in NAMES)


def test_a_failed_experiment_does_not_stop_the_others(recipe):
    experiments = load_experiments([str(recipe)], seeds=[0, 1])
    folder = experiments[0].run.path
    folder.mkdir(parents=True)
    said = []
    with (
        locked(folder, f"{LOCK_NAME}-stages"),
        pytest.raises(ExperimentsFailedError, match=rf"tiny-s0: ended with code 2: .*process {os.getpid()}") as raised,
    ):
        run_experiments(experiments, Selection.of(["prepare", "train"]), plain_screen(said.append), parallel=2)
    assert raised.value.exit_code == 2
    assert len(raised.value.faults) == 1
    assert experiments[1].run.checkpoint_of(2).is_dir()
    assert "tiny-s0: failed" in said


def ended_child(folder, program):
    """A child process that has run this program, and the lines that were printed of it."""
    log, said = folder / "output.log", []
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=output, stderr=output)
        process.wait(60)
    child = _Child("tiny-s0", process, log, 0)
    with plain_screen(said.append).watched("") as bar:
        _follow(child, bar)
    return child, said


NOTICE = "from egpo.errors import notify_once; notify_once('the chat template is old')"
WARNING = "import warnings; warnings.warn('halved', stacklevel=1)"


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        (f"{NOTICE}; raise SystemExit('egpo: mine.yaml: unknown key')", ": mine.yaml: unknown key"),
        (f"print('egpo: first\\negpo: second'); {NOTICE}; {WARNING}; exit(1)", ": first"),
        (f"{WARNING}\ndef f():\n  raise ValueError('no room')\ntry: f()\nfinally: {NOTICE}", ": ValueError: no room"),
        (f"{NOTICE}; {WARNING}; exit(1)", ""),
        (f"{NOTICE}; print('last words'); {WARNING}; exit(1)", ": last words"),
    ],
)
def test_a_notice_or_a_warning_is_not_the_cause_of_a_failure(tmp_path, program, cause):
    child, _ = ended_child(tmp_path, program)
    assert _fault(child).what == f"ended with code 1{cause}"


def test_only_lines_about_stages_are_printed_of_a_child(tmp_path):
    program = tmp_path / "halve.py"
    program.write_text("import warnings\nprint('  train: at step 2')\nfor _ in '1':\n  warnings.warn('halved')\n")
    words = "print('  eval: base: 3 of 4\\n  training\\n  budget.halve(failed)\\nprepare: no')"
    child, said = ended_child(tmp_path, f"import runpy; runpy.run_path({str(program)!r}); {words}")
    assert any(line.startswith("  warnings.warn(") for line in child.lines)
    assert said == ["tiny-s0: train: at step 2", "tiny-s0: eval: base: 3 of 4"]


def test_an_interrupted_command_continues_to_the_same_bytes(recipe, tmp_path):
    one_by_one = ("steps=12", "--seeds", "0,1", "--only", "prepare,train")
    whole, words = egpo_run(recipe, *one_by_one, cwd=tmp_path / "whole"), (*one_by_one, "--parallel", "2")
    said, _ = whole.communicate(timeout=240)
    assert whole.returncode == 0, said
    stopped = egpo_run(recipe, *words, cwd=tmp_path / "stopped")
    paths = [tmp_path / "stopped/runs" / name / "metrics.jsonl" for name in NAMES]
    assert becomes_true(lambda: any(path.is_file() and path.read_bytes().count(b"\n") >= 2 for path in paths))
    stopped.send_signal(signal.SIGINT)
    said, _ = stopped.communicate(timeout=120)
    assert stopped.returncode == 130, said
    assert "run the same command again to continue" in said
    assert ": stopped" in said
    assert ": failed" not in said
    again = egpo_run(recipe, *words, cwd=tmp_path / "stopped")
    said, _ = again.communicate(timeout=240)
    assert again.returncode == 0, said
    for name in NAMES:
        assert results(tmp_path / "whole/runs" / name) == results(tmp_path / "stopped/runs" / name)


def test_a_shared_job_waits_for_the_process_that_does_it(recipe):
    (experiment,) = load_experiments([str(recipe)])
    (job,) = prepare_jobs(experiment, plain_screen(print))
    folder, said = experiment.run.path.parent / LOCKS, []
    folder.mkdir(parents=True)
    run = threading.Thread(
        target=run_stages, args=(experiment, Selection.of(["prepare"]), plain_screen(said.append)), daemon=True
    )
    with locked(folder, f"{LOCK_NAME}-{job.digest[:16]}"):
        run.start()
        assert becomes_true(lambda: any(f"waiting for process {os.getpid()}" in line for line in said))
        assert not experiment.data.folder.exists()
    run.join(60)
    assert (experiment.data.folder / "train.parquet").is_file()


def test_steps_as_json_and_parallel_are_refused_together(recipe, tmp_path):
    process = egpo_run(recipe, "--seeds", "0,1", "--parallel", "2", "--json", cwd=tmp_path / "refused")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "output.log" in said
