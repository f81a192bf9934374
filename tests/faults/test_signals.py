"""Every signal that schedulers and terminals send, to every long verb, at every kind of moment.

The suite runs a selection, in which every verb and every signal occurs; EGPO_FAULTS=1 runs all of them.

After each: the documented exit code, the command that continues, no process and no temporary folder, both counted. The
same command then gives the bytes of a run that nobody stopped (`tests/local/test_train.py`, `test_kills.py`).
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from egpo.errors import NOTICES, USER_STOPS
from egpo.files import UNFINISHED
from egpo.processes.table import running_processes
from tests.local.conftest import model_folder  # noqa: F401  (a fixture)
from tests.local.runs import RECIPE as TRAINING
from tests.local.runs import REPOSITORY
from tests.waiting import LIMIT_S, becomes_true

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="counts processes in /proc")
SIGNALS = [signal.SIGHUP, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGQUIT]
ALL = bool(os.environ.get("EGPO_FAULTS"))
MARK = "EGPO_TEST_MARK"


def one_of(cases, *usual):
    """Decorate a test with all cases, or with those of the usual suite, of which there may be none."""
    return pytest.mark.parametrize("signum", cases if ALL else usual, ids=lambda signum: signum.name)


def _has(pid, variable):
    try:
        return variable.encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


class Verb:
    """A verb in a process of its own, with a folder for temporary files, and a mark that all its processes inherit."""

    def __init__(self, folder, *words, prelude=""):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.words, self.temporary = folder, [str(word) for word in words], folder / "temporary"
        self.temporary.mkdir()
        self.mark = f"{MARK}={os.getpid()}-{time.monotonic_ns()}"
        self.screen = folder / "screen.txt"
        path = os.pathsep.join(filter(None, [str(REPOSITORY), str(folder), os.environ.get("PYTHONPATH")]))
        name, _, value = self.mark.partition("=")
        self.environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CI": "1", "COLUMNS": "200"}
        self.environment |= {"TMPDIR": str(self.temporary), "PYTHONUNBUFFERED": "1", name: value}
        self.prelude, self._seen = prelude, set()

    def start(self):
        with self.screen.open("wb") as screen:
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"{self.prelude}\nfrom egpo.__main__ import main\nmain()", *self.words],
                cwd=self.folder,
                env=self.environment,
                stdout=screen,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def said(self):
        return self.screen.read_text()

    def all_said(self):
        """With what the experiments of `--parallel` and of a board said."""
        return "\n".join([self.said, *(path.read_text() for path in self.folder.rglob("output.log"))])

    def running(self):
        """The processes of the verb: those with the mark in their environment, whoever their parent is now, and those
        that were its descendants when this was last called. Programs in the sandbox have no mark."""
        table = list(running_processes())
        self._seen &= {one.id for one in table}
        self._seen |= {one.id for one in table if one.id.pid == self.process.pid or _has(one.id.pid, self.mark)}
        while found := {one.id for one in table if one.parent in {seen.pid for seen in self._seen}} - self._seen:
            self._seen |= found
        return [one.pid for one in self._seen]

    def leftovers(self):
        """What a stopped verb must not leave: temporary files of the system, and unfinished ones of ours."""
        ours = [path for path in self.folder.rglob(f"{UNFINISHED}*") if self.temporary not in path.parents]
        return [*self.temporary.iterdir(), *ours]

    def stop(self, *signals, within_s=LIMIT_S):
        """Send the signals, one after the other has been seen, and return the exit code."""
        self.running()
        for number, signum in enumerate(signals):
            if number:
                assert becomes_true(lambda: "send the signal again to stop at once" in self.said or not self.is_alive())
            self.process.send_signal(signum)
        return self.process.wait(within_s)

    def is_alive(self):
        return self.process.poll() is None

    def reaches(self, condition):
        """Wait for a moment of the verb. If it ends before, that is a fault of the test."""
        is_there = becomes_true(lambda: condition() or not self.is_alive())
        assert is_there, self.all_said()
        assert self.is_alive(), self.all_said()


@contextmanager
def started(folder, *words, prelude=""):
    """Start a verb, after some lines of Python if there is a prelude. At the end, all its processes are killed."""
    verb = Verb(folder, *words, prelude=prelude)
    verb.start()
    try:
        yield verb
    finally:
        for pid in verb.running():
            os.kill(pid, signal.SIGKILL)
        verb.process.wait()


def clean(verb):
    """Nothing is left: no process, no temporary file."""
    assert becomes_true(lambda: not verb.running(), within_s=20), verb.running()
    assert verb.leftovers() == []
    assert "Traceback" not in verb.said
    return True


# ---- verbs that save nothing while they run, or save as they go


def lines_of(path):
    return path.read_bytes().count(b"\n") if path.is_file() else 0


SLOW_TASK = """
import time
from pathlib import Path
from tests.local.run_tasks import Sparse
class Slow(Sparse):
    def judge(self, problem, text):
        Path("judging").touch()
        time.sleep(600)
class SlowTest(Sparse):
    "Only validation and evaluation are slow."
    def judge(self, problem, text):
        if problem.key.startswith("test") and Path("slow").exists():
            Path("judging").touch()
            while Path("slow").exists():
                time.sleep(0.05)
        return super().judge(problem, text)
class Program(Sparse):
    "Runs a program that sleeps in the sandbox."
    def judge(self, problem, text):
        from egpo.rewards.sandbox.jobs import Limits, SandboxJob, Scripts
        from egpo.rewards.sandbox.selection import choose_sandbox
        Path("judging").touch()
        limits = Limits(wall_s=500, total_s=500)
        choose_sandbox().run(SandboxJob("import time; time.sleep(600)", Scripts((b"",)), limits))
        return super().judge(problem, text)
"""


@pytest.fixture
def training(model_folder, tmp_path):  # noqa: F811
    """The words of a training with a task of SLOW_TASK."""

    def words(task, *more):
        (tmp_path / "slow_tasks.py").write_text(SLOW_TASK)
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(TRAINING.format(model=model_folder(), device="device: cpu"))
        return [recipe, f"task.name=slow_tasks:{task}", *more]

    return words


def prepare_words(training, folder):
    """The command line, and the moment to send a signal."""
    words = ["prepare", "countdown", "--out", "data", "--train", "100000000"]
    return words, lambda: any((folder / "data").glob(f"{UNFINISHED}*"))


def eval_words(training, folder):
    model = training("Slow")[0].read_text().partition("path: ")[2].partition(",")[0]
    words = ["eval", model, "--task", "slow_tasks:Slow", "--max-tokens", "4", "--out", "evals"]
    return words, (folder / "judging").exists


VERBS = {"prepare": (prepare_words, signal.SIGHUP), "eval": (eval_words, signal.SIGINT)}
"""Verbs that save nothing while they run, each with its signal of the usual suite."""


@pytest.mark.parametrize(
    ("verb", "signum"),
    [(verb, signum) for verb, (_, usual) in VERBS.items() for signum in (SIGNALS if ALL else [usual])],
)
def test_a_verb_ends_in_good_order(verb, signum, training, tmp_path):
    words, moment = VERBS[verb][0](training, tmp_path)
    with started(tmp_path, *words) as process:
        process.reaches(moment)
        assert process.stop(signum) == 128 + signum
        again = shlex.join(["egpo", *map(str, words)])
        assert process.said.splitlines()[-1] == f"egpo: stopped by {signum.name}; run the same command again: {again}"
        assert clean(process)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("delay_s", [0.15, 0.6, 1.5, 3.0] if ALL else [0.6])
def test_a_signal_during_the_start(training, tmp_path, delay_s):
    """Before the verb is known, while typer is imported, while torch is imported."""
    with started(tmp_path, "train", *training("Slow")) as process:
        time.sleep(delay_s)
        assert process.stop(signal.SIGTERM) in (143, -signal.SIGTERM)
        assert clean(process)


# ---- training


@one_of(SIGNALS)
def test_training_saves_the_steps_and_says_how_to_continue(signum, training, tmp_path):
    words = training("SlowTest", "steps=200", "checkpoints.every=0", "validation.every=0")
    with started(tmp_path, "train", *words) as process:
        process.reaches(lambda: lines_of(tmp_path / "runs/tiny/metrics.jsonl") > 2)
        assert process.stop(signum) == 128 + signum
        step = re.search(
            r"stopped after step (\d+), which is saved; continue with: egpo train runs/tiny/config.yaml --resume\n$",
            process.said,
        )
        assert step, process.said
        assert (tmp_path / f"runs/tiny/checkpoints/global_step_{step[1]}").is_dir()
        assert clean(process)


@pytest.mark.parametrize("task", ["Slow", "Program"] if ALL else ["Program"])
def test_training_is_stopped_while_a_judge_or_a_program_hangs(task, training, tmp_path):
    """The step has changed nothing yet: it is abandoned at once."""
    with started(tmp_path, "train", *training(task, "validation.every=0")) as process:
        process.reaches((tmp_path / "judging").exists)
        if task == "Program":
            process.reaches(lambda: len(process.running()) > 2)  # the verb, and the sandbox's two or more
        assert process.stop(signal.SIGUSR1) == 128 + signal.SIGUSR1
        assert "stopped before the first step was done; continue with: egpo train" in process.said
        assert clean(process)


@one_of(SIGNALS, signal.SIGQUIT)
def test_a_validation_is_finished_before_the_checkpoint(signum, training, tmp_path):
    """Its figures belong to the step. A second signal does not wait for it, and loses the step."""
    words = training("SlowTest", "steps=9", "checkpoints.every=0", "validation.every=3")
    metrics = tmp_path / "runs/tiny/metrics.jsonl"
    with started(tmp_path, "train", *words) as process:
        process.reaches(lambda: lines_of(metrics) > 1)
        (tmp_path / "slow").touch()
        process.reaches((tmp_path / "judging").exists)
        process.process.send_signal(signum)
        process.reaches(lambda: "stopping after saving" in process.said)
        (tmp_path / "slow").unlink()
        assert process.process.wait(LIMIT_S) == 128 + signum
        assert re.search(r"stopped after step [369], which is saved", process.said)
        assert clean(process)


SLOW_SAVE = """
import time
from pathlib import Path
from egpo.local.checkpoints import checkpoint
real = checkpoint.Checkpoints.save
def save(self, *given):
    Path("saving").touch()
    while Path("slow").exists():
        time.sleep(0.05)
    return real(self, *given)
checkpoint.Checkpoints.save = save
"""


@one_of(SIGNALS, signal.SIGHUP)
def test_a_checkpoint_is_written_to_its_end(signum, training, tmp_path):
    """A second SIGHUP, which a terminal and its shell both send, does not cut it short."""
    (tmp_path / "slow").touch()
    words = training("SlowTest", "steps=9", "checkpoints.every=2", "validation.every=0")
    with started(tmp_path, "train", *words, prelude=SLOW_SAVE) as process:
        process.reaches((tmp_path / "saving").exists)
        for _ in range(2 if signum in NOTICES else 1):
            process.process.send_signal(signum)
            process.reaches(lambda: "stopping after saving" in process.said)
        (tmp_path / "slow").unlink()
        assert process.process.wait(LIMIT_S) == 128 + signum
        assert "stopped after step 2, which is saved" in process.said
        assert (tmp_path / "runs/tiny/checkpoints/latest_checkpointed_iteration.txt").read_text() == "2"
        assert clean(process)


@one_of([one for one in SIGNALS if one in USER_STOPS])
def test_a_second_signal_ends_training_at_once(signum, training, tmp_path):
    """Even while the first one waits for a checkpoint that is never written."""
    (tmp_path / "slow").touch()
    words = training("SlowTest", "checkpoints.every=2", "validation.every=0")
    with started(tmp_path, "train", *words, prelude=SLOW_SAVE) as process:
        process.reaches((tmp_path / "saving").exists)
        assert process.stop(signum, signum) == -signum
        assert becomes_true(lambda: not process.running(), within_s=20)


SFT = """
name: tiny
epochs: 5000
model: {{path: {model}, device: cpu}}
data: {{path: rows.jsonl}}
checkpoints: {{every: 0}}
"""


@one_of(SIGNALS)
def test_sft_saves_the_steps_and_says_how_to_continue(signum, model_folder, tmp_path):  # noqa: F811
    turn = '{"messages": [{"role": "user", "content": "say"}, {"role": "assistant", "content": "yes"}]}\n'
    (tmp_path / "rows.jsonl").write_text(turn * 8)
    (tmp_path / "sft.yaml").write_text(SFT.format(model=model_folder()))
    with started(tmp_path, "sft", "sft.yaml") as process:
        process.reaches(lambda: lines_of(tmp_path / "runs/tiny/metrics.jsonl") > 2)
        assert process.stop(signum) == 128 + signum
        assert re.search(
            r"stopped after step \d+, which is saved; continue with: egpo sft \S+ --resume\n$", process.said
        )
        assert clean(process)


# ---- whole experiments

EXPERIMENT = """
name: tiny
steps: 5000
model: {{path: {model}, device: cpu}}
task: {{name: countdown, settings: {{train: 12, test: 6, max_numbers: 3}}}}
rollout: {{prompts: 2, n: 2, max_response_tokens: 6}}
update: {{lr: 1e-3}}
checkpoints: {{every: 0}}
validation: {{every: 0}}
"""


@pytest.fixture
def experiment(model_folder, tmp_path):  # noqa: F811
    path = tmp_path / "experiment.yaml"
    path.write_text(EXPERIMENT.format(model=model_folder()))
    return path


@one_of(SIGNALS)
def test_a_stage_of_a_run_says_how_to_continue(signum, experiment, tmp_path):
    with started(tmp_path, "run", experiment, "--only", "prepare,train") as process:
        process.reaches(lambda: lines_of(tmp_path / "runs/tiny/metrics.jsonl") > 2)
        assert process.stop(signum) == 128 + signum
        assert "run the same command again to continue" in process.said
        assert clean(process)


@one_of(SIGNALS)
def test_the_experiments_of_a_run_save_and_end(signum, experiment, tmp_path):
    words = ("run", experiment, "--seeds", "0,1", "--parallel", "2", "--only", "prepare,train")
    with started(tmp_path, *words) as process:
        process.reaches(lambda: all(lines_of(tmp_path / f"runs/tiny-s{i}/metrics.jsonl") > 1 for i in (0, 1)))
        assert process.stop(signum) == 128 + signum
        assert process.said.count("stopping after saving") == 2
        assert "run the same command again to continue" in process.said
        for seed in (0, 1):
            assert list((tmp_path / f"runs/tiny-s{seed}/checkpoints").glob("global_step_*"))
        assert clean(process)


BOARD = """
name: tiny
folder: board
tasks: {countdown: {recipe: experiment.yaml}}
methods: [grpo, egpo]
seeds: [0]
parallel: 2
"""


@one_of(SIGNALS)
def test_the_runs_of_a_board_save_and_end(signum, experiment, tmp_path):
    (tmp_path / "board.yaml").write_text(BOARD)
    with started(tmp_path, "board", "board.yaml") as process:
        runs = [tmp_path / f"board/runs/countdown-{method}-s0" for method in ("grpo", "egpo")]
        process.reaches(lambda: all(lines_of(run / "metrics.jsonl") > 1 for run in runs))
        assert process.stop(signum) == 128 + signum
        assert "run the same command again to continue" in process.said
        assert all(list((run / "checkpoints").glob("global_step_*")) for run in runs)
        assert clean(process)


def test_both_kinds_of_signal_are_sent():
    assert {one in NOTICES for one in SIGNALS} == {True, False}
