"""Which of verl's checkpoints are whole, and which one a run goes on from."""

import pytest

from egpo.errors import InputError
from egpo.runs.folder import RunFolder
from egpo.verl.launch.mirror import VerlCheckpoints
from tests.verl.launch.stand_in import save


@pytest.fixture
def folder(tmp_path):
    """Checkpoints of steps 2, 4 and 10, two ranks each; verl names the last."""
    for step in (2, 4, 10):
        save(RunFolder(tmp_path).checkpoints, step, 2)
    return RunFolder(tmp_path)


def test_the_newest_by_number_unless_one_is_named(folder):
    checkpoints = VerlCheckpoints(folder, 2)
    assert (checkpoints.choose(None), checkpoints.choose(4)) == (10, 4)
    with pytest.raises(InputError, match="no complete checkpoint of step 3; available steps: 2, 4, 10"):
        checkpoints.choose(3)


def test_what_was_cut_off_is_not_gone_on_from(folder):
    folder.latest.write_text("4")
    assert VerlCheckpoints(folder, 2).complete_steps() == [2, 4], "10 is newer than verl says"
    (folder.checkpoint_of(4) / "actor" / "model_world_size_2_rank_1.pt").unlink()
    assert VerlCheckpoints(folder, 2).choose(None) == 2


@pytest.mark.parametrize("content", ["", "\0\0", "1x"])
def test_a_crash_while_verl_wrote_the_number_loses_no_checkpoint(folder, content):
    """Taken for a run without checkpoints, it would begin again, and remove them all."""
    folder.latest.write_text(content)
    (folder.checkpoint_of(10) / "data.pt").unlink()
    assert VerlCheckpoints(folder, 2).complete_steps() == [2, 4]


def test_later_ones_go_when_a_run_goes_on_from_an_earlier_one(folder):
    checkpoints = VerlCheckpoints(folder, 2)
    checkpoints.forget_after(4)
    assert (checkpoints.complete_steps(), folder.latest.read_text()) == ([2, 4], "4")
    checkpoints.forget_after(0)
    assert (checkpoints.choose(None), folder.latest.exists()) == (0, False)
