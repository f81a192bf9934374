"""Which checkpoint a folder means."""

import pytest

from egpo.errors import InputError
from egpo.merges.places import find_checkpoint


@pytest.fixture
def run(tmp_path):
    """A run of verl's with checkpoints of steps 9, 10 and 100."""
    for step in (9, 10, 100):
        actor = tmp_path / "checkpoints" / f"global_step_{step}" / "actor"
        (actor / "huggingface").mkdir(parents=True)
        (actor / "model_world_size_1_rank_0.pt").touch()
    (tmp_path / "config.yaml").touch()
    return tmp_path


def test_every_folder_of_a_run_leads_to_its_checkpoint(run):
    checkpoints = run / "checkpoints"
    step = checkpoints / "global_step_10"
    for folder in (step, step / "actor", step / "actor" / "huggingface"):
        place = find_checkpoint(folder)
        assert (place.actor, place.step) == (step / "actor", 10)
    for folder in (run, checkpoints):
        assert find_checkpoint(folder, 10).actor == step / "actor"
    assert find_checkpoint(step, 10).run.path == run


def test_the_latest_is_so_by_number_and_not_by_name(run):
    assert find_checkpoint(run).step == 100
    assert find_checkpoint(run / "checkpoints").step == 100


def test_the_latest_is_the_one_that_was_finished(run):
    """verl writes the number when all ranks have saved: a killed run leaves a later folder, half full."""
    pointer = run / "checkpoints" / "latest_checkpointed_iteration.txt"
    pointer.write_text("10")
    assert find_checkpoint(run).step == 10
    for nonsense in ("11", "", "many", "²"):
        pointer.write_text(nonsense)
        assert find_checkpoint(run).step == 100


def test_an_actor_outside_a_run_has_no_step(run, tmp_path):
    alone = tmp_path / "elsewhere"
    (run / "checkpoints" / "global_step_9" / "actor").rename(alone)
    place = find_checkpoint(alone)
    assert (place.step, place.run) == (None, None)


def fault(path, step=None):
    with pytest.raises(InputError) as caught:
        find_checkpoint(path, step)
    return str(caught.value)


def test_a_step_that_is_not_there(run):
    assert "there is no checkpoint of step 11; available steps: 9, 10, 100" in fault(run, 11)
    assert "not the checkpoint of step 10: it is that of step 9" in fault(run / "checkpoints" / "global_step_9", 10)


def test_what_is_no_checkpoint(run, tmp_path):
    assert "the folder does not exist" in fault(tmp_path / "none")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "not a checkpoint (it contains nothing)" in fault(empty)
    (empty / "notes.txt").touch()
    assert "not a checkpoint (it contains notes.txt)" in fault(empty)
    (empty / "config.json").touch()
    assert "the folder is already a model" in fault(empty)
    (tmp_path / "fresh" / "checkpoints").mkdir(parents=True)
    assert "the run has no checkpoint yet" in fault(tmp_path / "fresh")
    (tmp_path / "fresh" / "checkpoints" / "global_step_1").mkdir()
    assert "global_step_1: the folder is not a checkpoint" in fault(tmp_path / "fresh")
