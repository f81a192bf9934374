"""Checkpoints: complete or invisible, verified when read, kept as asked."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from egpo.errors import EgpoWarning, InputError
from egpo.local.checkpoints.checkpoint import LATEST, Checkpoints, SaveError, Snapshot, kept_steps, room_for
from egpo.runs.checkpoint_manifest import CHANGED_SETTINGS

COMMAND = "egpo train runs/x/config.yaml"


def checkpoints(root, *, keep_last=2, keep_best=0, identity=f"{CHANGED_SETTINGS}one"):
    return Checkpoints(root, identity=identity, command=COMMAND, keep_last=keep_last, keep_best=keep_best)


def snapshot(step, score=None):
    return Snapshot(step, {"m.weight": torch.full((3, 2), step / 7)}, {"position": step * 10}, score)


def export(folder):
    (folder / "model.safetensors").write_bytes(b"weights" * 100)
    (folder / "config.json").write_text("{}")


def listing(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def test_what_was_saved_is_read_to_the_bit(tmp_path):
    ours = checkpoints(tmp_path)
    ours.save(snapshot(3, score=0.5), export)
    again = checkpoints(tmp_path).read(3)
    assert torch.equal(again.tensors["m.weight"], snapshot(3).tensors["m.weight"])
    assert (again.step, again.state, again.score) == (3, {"position": 30}, 0.5)
    assert (tmp_path / LATEST).read_text() == "3"
    assert ours.model_folder(3) == tmp_path / "global_step_3" / "actor" / "huggingface"
    assert {path.name for path in tmp_path.iterdir()} == {LATEST, "global_step_3"}


def test_the_same_snapshot_gives_the_same_bytes(tmp_path):
    for name in "ab":
        checkpoints(tmp_path / name).save(snapshot(3), export)
    assert listing(tmp_path / "a") == listing(tmp_path / "b")


def test_others_may_read_a_checkpoint(tmp_path):
    """Temporary folders are for their owner alone; what is made in them must not stay so."""
    checkpoints(tmp_path).save(snapshot(1), export)
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "global_step_1").stat().st_mode & 0o777 == 0o777 & ~umask


@given(st.dictionaries(st.integers(1, 60), st.none() | st.floats(0, 1)), st.integers(1, 4), st.integers(0, 4))
def test_the_last_and_the_best_stay(score_of, keep_last, keep_best):
    kept = kept_steps(score_of, keep_last=keep_last, keep_best=keep_best)
    assert kept <= set(score_of)
    assert set(sorted(score_of)[-keep_last:]) <= kept
    scored = {step: score for step, score in score_of.items() if score is not None}
    best = [step for step in kept if step in scored]
    assert len(best) >= min(keep_best, len(scored))
    assert len(kept) <= keep_last + keep_best
    if keep_best and scored:
        highest = max(scored.values())
        assert max(step for step, score in scored.items() if score == highest) in kept


def test_the_best_list_is_built_up_step_by_step_and_survives_a_resume(tmp_path):
    for step, score in enumerate([0.1, 0.9, 0.2, 0.9, 0.3, 0.4], start=1):
        checkpoints(tmp_path, keep_last=1, keep_best=1).save(snapshot(step, score), export)
    assert checkpoints(tmp_path).steps() == [4, 6]


def test_a_score_that_is_not_finite_is_none(tmp_path):
    for step, score in ((1, 0.5), (2, float("nan")), (3, float("inf"))):
        checkpoints(tmp_path, keep_last=1, keep_best=1).save(snapshot(step, score), export)
    assert checkpoints(tmp_path).steps() == [1, 3]
    assert checkpoints(tmp_path).read(3).score is None


@pytest.mark.filterwarnings("always::egpo.errors.EgpoWarning")
def test_a_checkpoint_that_stands_is_saved_whatever_comes_after(tmp_path):
    (tmp_path / LATEST).mkdir()
    with pytest.warns(EgpoWarning, match="could not be removed"):
        checkpoints(tmp_path).save(snapshot(1), export)
    assert checkpoints(tmp_path).read(1).step == 1


def test_a_foreign_folder_is_never_removed_to_make_room(tmp_path):
    (tmp_path / "global_step_1" / "actor").mkdir(parents=True)
    for step in (2, 3, 4):
        checkpoints(tmp_path, keep_last=1).save(snapshot(step), export)
    assert checkpoints(tmp_path).steps() == [1, 4]


def break_file(name, change):
    def apply(folder):
        change(folder / "actor" / name)

    return apply


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (
            break_file("resume.safetensors", lambda p: p.write_bytes(p.read_bytes()[:-1])),
            "bytes, but 104 were written",
        ),
        (break_file("huggingface/model.safetensors", flip), "its digest differs"),
        (break_file("state.json", flip), "its digest differs"),
        (break_file("huggingface/config.json", Path.unlink), "No such file"),
        (break_file("manifest.json", Path.unlink), "not a checkpoint of the embedded engine"),
        (break_file("manifest.json", lambda p: p.write_text("{")), "cannot be read"),
        (break_file("manifest.json", lambda p: p.write_text('{"format": 99}')), "format 99"),
        (break_file("manifest.json", lambda p: p.write_text('{"format": 1}')), "cannot be read"),
        (break_file("manifest.json", lambda p: p.write_text("[]")), "cannot be read"),
    ],
)
def test_a_corrupt_checkpoint_is_named_and_the_one_before_it_offered(tmp_path, harm, said):
    ours = checkpoints(tmp_path)
    ours.save(snapshot(10), export)
    ours.save(snapshot(20), export)
    harm(tmp_path / "global_step_20")
    with pytest.raises(InputError, match=said) as caught:
        ours.read(20)
    assert "global_step_20" in caught.value.faults[0].where
    assert caught.value.faults[0].fix.endswith(f"{COMMAND} --resume-from 10")
    assert ours.read(10).step == 10


def test_only_a_whole_checkpoint_is_offered(tmp_path):
    ours = checkpoints(tmp_path, keep_last=3)
    for step in (10, 20, 30):
        ours.save(snapshot(step), export)
    flip(ours.folder(30) / "state.json")
    flip(ours.folder(20) / "state.json")
    with pytest.raises(InputError, match="--resume-from 10"):
        ours.read(30)
    flip(ours.folder(10) / "state.json")
    with pytest.raises(InputError, match="start a new run"):
        ours.read(30)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    checkpoints(tmp_path, identity=f"{CHANGED_SETTINGS}other").save(snapshot(10), export)
    with pytest.raises(InputError, match="other settings"):
        checkpoints(tmp_path).read(10)
    (tmp_path / "global_step_10").rename(tmp_path / "global_step_11")
    with pytest.raises(InputError, match="contains a checkpoint of step 10"):
        checkpoints(tmp_path, identity=f"{CHANGED_SETTINGS}other").read(11)


def test_a_checkpoint_from_before_a_setting_existed_is_read(tmp_path):
    """Its digest covers every setting of its time, and no later version can compute it again."""
    checkpoints(tmp_path, identity="a digest of all settings").save(snapshot(10), export)
    assert checkpoints(tmp_path).read(10).step == 10


def test_steps_to_be_taken_again_are_forgotten(tmp_path):
    ours = checkpoints(tmp_path, keep_last=4)
    for step in (10, 20, 30):
        ours.save(snapshot(step), export)
    ours.forget_after(10)
    assert ours.steps() == [10]
    assert (tmp_path / LATEST).read_text() == "10"
    assert {path.name for path in tmp_path.iterdir()} == {LATEST, "global_step_10"}


def test_what_a_killed_save_left_goes_with_the_next_one(tmp_path):
    left = tmp_path / ".egpo-abandoned"
    left.mkdir()
    (left / "half").write_text("x")
    (tmp_path / f".egpo-{LATEST}-1234").write_text("1")
    assert checkpoints(tmp_path).steps() == []
    checkpoints(tmp_path).save(snapshot(1), export)
    assert {path.name for path in tmp_path.iterdir()} == {LATEST, "global_step_1"}


def disk_full(folder):
    (folder / "half").write_bytes(b"x" * 100)
    raise OSError(28, "No space left on device")


def test_a_save_that_fails_leaves_everything_as_it_was(tmp_path):
    ours = checkpoints(tmp_path)
    ours.save(snapshot(1), export)
    before = listing(tmp_path)
    with pytest.raises(SaveError, match=r"step 2 could not be written \(No space left on device\)"):
        ours.save(snapshot(2), disk_full)
    assert listing(tmp_path) == before
    ours.save(snapshot(2), export)
    assert ours.steps() == [1, 2]


SAVE = """
import sys
from pathlib import Path
from tests.local.checkpoints.test_checkpoint import checkpoints, export, snapshot
root = Path(sys.argv[1])
step = max(checkpoints(root).steps(), default=0)
while True:
    step += 1
    checkpoints(root, keep_last=2).save(snapshot(step), export)
"""


def test_tensors_over_the_file_size_limit_are_a_save_error(tmp_path):
    """The system's refusal comes through safetensors as an error of its own kind."""
    ours = checkpoints(tmp_path)
    ours.save(snapshot(1), export)
    before = listing(tmp_path)
    big = Snapshot(2, {"w": torch.zeros(1 << 16)}, {})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(SaveError, match="File too large"):
            ours.save(big, export)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert listing(tmp_path) == before


def test_a_folder_that_may_not_be_made_is_a_save_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match="Not a directory"):
        checkpoints(tmp_path / "file" / "checkpoints").save(snapshot(1), export)


def test_killed_at_any_moment_every_visible_checkpoint_is_whole(tmp_path):
    repository = Path(__file__).parents[3]
    for delay in (0.0, 0.003, 0.01, 0.02):
        process = subprocess.Popen([sys.executable, "-c", SAVE, str(tmp_path)], cwd=repository)
        seen = len(checkpoints(tmp_path).steps()), max(checkpoints(tmp_path).steps(), default=0)
        while max(checkpoints(tmp_path).steps(), default=0) <= seen[1] and process.poll() is None:
            time.sleep(0.001)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
        steps = checkpoints(tmp_path).steps()
        assert steps
        for step in steps:
            assert checkpoints(tmp_path).read(step).state == {"position": step * 10}
        latest = tmp_path / LATEST
        assert not latest.exists() or latest.read_text().isdigit()


def test_the_manifest_lists_every_file_but_itself(tmp_path):
    checkpoints(tmp_path).save(snapshot(1), export)
    folder = checkpoints(tmp_path).folder(1)
    listed = set(json.loads((folder / "manifest.json").read_text())["files"])
    assert listed | {"manifest.json"} == set(listing(folder))


def test_room_is_counted_where_the_folder_will_be(tmp_path):
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    assert room_for(tmp_path / "not" / "yet", 2 * free) == 0
    assert room_for(tmp_path / "not" / "yet", max(1, free // 4)) >= 2


def test_what_a_killed_process_left_goes_when_a_finished_run_is_resumed(tmp_path):
    """It saves no more, so nobody else would remove it."""
    ours = checkpoints(tmp_path)
    ours.save(snapshot(8), export)
    (tmp_path / ".egpo-abandoned").mkdir()
    ours.forget_after(8)
    assert {path.name for path in tmp_path.iterdir()} == {LATEST, "global_step_8"}


def test_retention_is_made_up_for_when_a_run_was_killed_right_after_a_save(tmp_path, monkeypatch):
    """The new checkpoint has its name, and the older one and the number of the latest are still as before."""
    ours = checkpoints(tmp_path, keep_last=1)
    ours.save(snapshot(1), export)
    monkeypatch.setattr(ours, "_tidy", lambda *_: None)
    ours.save(snapshot(2), export)
    assert (ours.steps(), (tmp_path / LATEST).read_text()) == ([1, 2], "1")
    checkpoints(tmp_path, keep_last=1).forget_after(2)
    assert (ours.steps(), (tmp_path / LATEST).read_text()) == ([2], "2")


def test_a_tokenizer_that_cannot_be_written_is_a_save_that_failed(tmp_path):
    """tokenizers raises a plain Exception."""

    def no_space(folder):
        export(folder)
        raise Exception("No space left on device (os error 28)")

    with pytest.raises(SaveError, match=r"could not be written \(No space left on device\)"):
        checkpoints(tmp_path).save(snapshot(1), no_space)
    with pytest.raises(ZeroDivisionError):
        checkpoints(tmp_path).save(snapshot(1), lambda folder: 1 / 0)
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_a_thread_to_give_is_a_save_that_failed(tmp_path, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(SaveError, match=r"step 1 could not be written \(can't start new thread\)"):
        checkpoints(tmp_path).save(snapshot(1), export)
    assert checkpoints(tmp_path).steps() == []
