"""Checkpoints that are written while training goes on: the bytes of a save that is waited for, one at a time."""

import shutil
import threading
from pathlib import Path

import pytest
import torch

from egpo.config.sections.training import Lora, Optimization
from egpo.local import memory
from egpo.local.checkpoints import background, checkpoint
from egpo.local.checkpoints.background import BackgroundWriter, FinishedWrite
from egpo.local.checkpoints.checkpoint import LATEST, SaveError, Snapshot
from egpo.local.checkpoints.resume import export_policy, exported_weights, learned_tensors
from egpo.local.models.lora import add_adapters
from egpo.local.updates.optimizer import Optimizer
from tests.faults.test_signals import started
from tests.local.checkpoints.test_checkpoint import checkpoints, listing, snapshot
from tests.local.conftest import CONFIGS
from tests.local.runs import contents, differing, run, write_recipe
from tests.waiting import LIMIT_S, becomes_true

FULL = OSError(28, "No space left on device")


class Gate:
    """An export that waits until it is opened, and then writes the weights, or fails."""

    def __init__(self, error=None):
        self.opened, self.error, self.entered = threading.Event(), error, threading.Event()

    def __call__(self, weights, folder):
        self.entered.set()
        assert self.opened.wait(60)
        if self.error:
            raise self.error
        (folder / "model.safetensors").write_bytes(weights["w"].numpy().tobytes())


@pytest.fixture
def policy_and_optimizer(load):
    def made(shape, dtype=torch.float32, lora=None):
        policy = load(shape)
        policy.model.to(dtype)
        if lora is not None:
            add_adapters(policy.model, lora, seed=0)
        optimizer = Optimizer(policy.model.named_parameters(), Optimization(lr=1e-2))
        changed(policy, optimizer)
        return policy, optimizer

    return made


def changed(policy, optimizer):
    """Take a step of the optimizer, so that all its tensors exist and each of them changes."""
    for weight in policy.model.parameters():
        if weight.requires_grad:
            weight.grad = torch.randn_like(weight)
    for weight, master in zip(optimizer._weights.values(), optimizer._masters.values(), strict=True):
        if master is not weight:
            master.grad = weight.grad.float()
    optimizer.step(1e-2)


@pytest.mark.parametrize(
    ("shape", "dtype", "lora"),
    [(shape, torch.float32, None) for shape in sorted(CONFIGS)]
    + [("qwen3", torch.bfloat16, None), ("qwen2", torch.bfloat16, None), ("qwen3", torch.float32, Lora(rank=4))],
)
def test_the_bytes_are_those_of_a_save_that_is_waited_for(shape, dtype, lora, policy_and_optimizer, tmp_path):
    """Even if the next update changes every weight before the first byte is written."""
    if lora is not None:
        pytest.importorskip("peft")
    policy, optimizer = policy_and_optimizer(shape, dtype, lora)
    state = Snapshot(7, learned_tensors(policy, optimizer), {"stream": {"position": 3}}, 0.5)
    checkpoints(tmp_path / "waited").save(state, lambda folder: export_policy(policy, folder))
    may_write, writer = threading.Event(), BackgroundWriter(checkpoints(tmp_path / "background"))

    def export(weights, folder):
        assert may_write.wait(60)
        export_policy(policy, folder, weights)

    assert writer.start(state, exported_weights(policy), export)
    changed(policy, optimizer)
    state.state["stream"]["position"] = 4
    may_write.set()
    assert writer.finished(wait=True) == FinishedWrite(7)
    assert listing(tmp_path / "background") == listing(tmp_path / "waited")
    checkpoints(tmp_path / "later").save(
        Snapshot(7, learned_tensors(policy, optimizer), {}), lambda folder: export_policy(policy, folder)
    )
    assert listing(tmp_path / "later") != listing(tmp_path / "waited")


def test_a_checkpoint_that_is_being_written_does_not_count(tmp_path):
    ours, gate = checkpoints(tmp_path), Gate()
    ours.save(snapshot(1), lambda folder: None)
    writer = BackgroundWriter(ours)
    assert writer.start(snapshot(2), {"w": torch.ones(3)}, gate)
    assert gate.entered.wait(60)
    assert writer.finished(wait=False) is None
    assert (ours.steps(), (tmp_path / LATEST).read_text()) == ([1], "1")
    gate.opened.set()
    assert writer.finished(wait=True) == FinishedWrite(2)
    assert (ours.steps(), (tmp_path / LATEST).read_text()) == ([1, 2], "2")
    assert writer.finished(wait=True) is None, "it is reported once"


def test_old_ones_are_removed_as_always(tmp_path):
    ours = checkpoints(tmp_path, keep_last=1, keep_best=1)
    writer = BackgroundWriter(ours)
    for step, score in enumerate([0.1, 0.9, 0.2, 0.3], start=1):
        assert writer.start(snapshot(step, score), {}, lambda weights, folder: None)
        assert writer.finished(wait=True) == FinishedWrite(step)
    assert ours.steps() == [2, 4]


def test_an_error_of_the_thread_reaches_the_run(tmp_path):
    ours = checkpoints(tmp_path)
    for error, kind in ((FULL, SaveError), (ZeroDivisionError("a fault"), ZeroDivisionError)):
        gate, writer = Gate(error), BackgroundWriter(ours)
        assert writer.start(snapshot(2), {"w": torch.ones(3)}, gate)
        gate.opened.set()
        assert becomes_true(lambda writer=writer: not writer._thread.is_alive())
        write = writer.finished(wait=False)
        assert write.step == 2
        assert isinstance(write.error, kind)
        assert list(tmp_path.iterdir()) == []


class Panic(BaseException):
    """A stand-in for the panic of a Rust library (`pyo3_runtime.PanicException`), which is not an Exception."""


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_panic_in_the_thread_is_not_taken_for_a_checkpoint(tmp_path):
    writer, gate = BackgroundWriter(checkpoints(tmp_path)), Gate(Panic())
    assert writer.start(snapshot(2), {"w": torch.ones(3)}, gate)
    gate.opened.set()
    assert isinstance(writer.finished(wait=True).error, Panic)
    assert checkpoints(tmp_path).steps() == []


def test_a_transposed_view_is_not_a_tied_tensor():
    """Same address, dtype and shape, but other numbers."""
    square = torch.arange(9.0).view(3, 3)
    [copies] = background.HostMemory().copied({"w": square, "transposed": square.T, "tied": square})
    assert torch.equal(copies["transposed"], square.T)
    assert copies["tied"] is copies["w"]


def test_memory_for_the_copy_must_be_free(monkeypatch, tmp_path):
    weights = {"w": torch.zeros(2**28 // 4)}  # 256 MiB
    writer = BackgroundWriter(checkpoints(tmp_path))
    for free, fault in ((None, "not known"), (2**29 - 1, "takes 0.2 GiB of main memory, and 0.5 GiB are free")):
        monkeypatch.setattr(background, "free_host_bytes", lambda free=free: free)
        assert fault in writer.why_not(Snapshot(1, {}, {}), weights)
    monkeypatch.setattr(background, "free_host_bytes", lambda: 2**29)
    assert writer.why_not(Snapshot(1, {}, {}), weights) is None
    assert writer.why_not(Snapshot(1, {}, {}), {**weights, "tied": weights["w"]}) is None, "tied weights count once"


def test_a_checkpoint_that_could_fill_the_disk_is_waited_for(monkeypatch, tmp_path):
    """Else the next step could not write its metrics, which ends the run."""
    usage, weights = shutil.disk_usage(tmp_path), {"w": torch.zeros(2**28 // 4)}  # 256 MiB
    writer = BackgroundWriter(checkpoints(tmp_path / "not" / "yet"))
    monkeypatch.setattr(background, "free_host_bytes", lambda: 1 << 50)
    for free, fault in ((2**29 - 1, "it could leave less than 256 MiB of the disk free"), (2**29, None)):
        monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        assert writer.why_not(Snapshot(1, {}, {}), weights) == fault


def test_memory_is_kept_for_the_next_checkpoint(monkeypatch, tmp_path):
    writer, places = BackgroundWriter(checkpoints(tmp_path)), set()
    for step in (1, 2):
        assert writer.start(snapshot(step), {"w": torch.ones(3)}, lambda weights, folder: None)
        assert writer.finished(wait=True).error is None
        places.add(writer._memory._buffer.ctypes.data)
    assert len(places) == 1
    monkeypatch.setattr(background, "free_host_bytes", lambda: 0)
    assert writer.why_not(snapshot(3), {"w": torch.ones(3)}) is None


def test_it_is_let_go_in_silence_at_the_end_of_the_process(monkeypatch):
    """When Python has set the names of the module to None."""
    memory = background.HostMemory()
    memory.copied({"w": torch.ones(3)})
    memory._is_locked = True
    for name in ("suppress", "torch", "_cuda"):
        monkeypatch.setattr(background, name, None)
    memory.__del__()
    memory._is_locked = False


def test_without_a_thread_the_caller_writes(monkeypatch, tmp_path):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    writer = BackgroundWriter(checkpoints(tmp_path))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert not writer.start(snapshot(1), {}, lambda weights, folder: None)
    assert writer.finished(wait=True) is None


@pytest.mark.skipif(not Path("/proc/self/cgroup").exists(), reason="reads /proc")
def test_free_memory_is_that_of_the_tightest_container(tmp_path, monkeypatch):
    free = memory.free_host_bytes()
    assert 0 < free < 1 << 50
    for folder, files in {
        "two/outer": {"memory.max": "4000", "memory.current": "3000"},
        "two/outer/inner": {"memory.max": "max", "memory.current": "2000"},
        "throttled": {"memory.max": "4000", "memory.high": "3500", "memory.current": "3000"},
        "one": {"memory.limit_in_bytes": "900", "memory.usage_in_bytes": "700"},
    }.items():
        (tmp_path / folder).mkdir(parents=True)
        for name, text in files.items():
            (tmp_path / folder / name).write_text(f"{text}\n")
        prefix = "total_" if folder == "one" else ""
        text = f"anon 1\n{prefix}inactive_file 40\n{prefix}active_file 2\n"
        (tmp_path / folder / "memory.stat").write_text(text)
    assert memory._left_in(tmp_path / "two/outer") == 1042
    assert memory._left_in(tmp_path / "two/outer/inner") == memory._left_in(tmp_path / "none") == 1 << 63
    assert memory._left_in(tmp_path / "one") == 242
    assert memory._left_in(tmp_path / "throttled") == 542, "above memory.high the process would be slowed down"
    monkeypatch.setattr(memory, "_memory_cgroups", lambda: [tmp_path / "two/outer"])
    monkeypatch.setattr(memory, "_kib_fields", lambda path: {"MemAvailable": 9000, "VmHWM": 500, "VmRSS": 300})
    assert memory.free_host_bytes() == 1042 - 200


SLOW = """
import time
from pathlib import Path
from egpo.local.checkpoints import checkpoint
real = checkpoint.Checkpoints._write
def write(self, staged, snapshot, export):
    real(self, staged, snapshot, export)
    while Path("slow").exists():
        time.sleep(0.01)
checkpoint.Checkpoints._write = write
"""


def killed_while_it_writes(verb, folder, step):
    """Wait until two steps were taken after `step`, whose checkpoint is being written, and kill the process."""
    metrics = folder / "metrics.jsonl"
    verb.reaches(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") >= step + 2)
    verb.reaches(lambda: list(folder.glob("checkpoints/.egpo-*/new/actor/manifest.json")))
    assert not (folder / f"checkpoints/global_step_{step}").exists()
    verb.process.kill()
    verb.process.wait()


def test_killed_while_the_next_steps_run_it_resumes_to_the_same_bits(model_folder, tmp_path):
    """All files are written, and only the name is missing: the checkpoint does not count."""
    words = (write_recipe(tmp_path / "recipe.yaml", model_folder()), "checkpoints.every=4", "watch.rollouts_every=1")
    whole = run(*words, "runs=whole", cwd=tmp_path)
    assert whole.code == 0, whole.err
    (tmp_path / "slow").touch()
    with started(tmp_path, "train", *words, prelude=SLOW) as verb:
        killed_while_it_writes(verb, tmp_path / "runs/tiny", 4)
    (tmp_path / "slow").unlink()
    assert len(list((tmp_path / "runs/tiny/rollouts").iterdir())) >= 5
    resumed = run(*words, "--resume", cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    assert differing(contents(tmp_path / "runs/tiny"), contents(tmp_path / "whole/tiny")) == []


@pytest.mark.parametrize("free", ["1 << 50", "0"])
def test_a_run_leaves_the_same_bytes_either_way_and_says_if_it_waits(free, model_folder, tmp_path):
    prelude = f"from egpo.local.checkpoints import background\nbackground.free_host_bytes = lambda: {free}"
    words = (write_recipe(tmp_path / "recipe.yaml", model_folder()), "checkpoints.every=1", "checkpoints.keep_last=9")
    usual = run(*words, "runs=usual", cwd=tmp_path)
    assert usual.code == 0, usual.err
    with started(tmp_path, "train", *words, prelude=prelude) as verb:
        assert verb.process.wait(LIMIT_S) == 0, verb.said
    assert differing(contents(tmp_path / "runs/tiny"), contents(tmp_path / "usual/tiny")) == []
    said = verb.said.count("training waits while a checkpoint is written (a copy takes 0.0 GiB of main memory, and 0.0")
    assert said == (1 if free == "0" else 0)
