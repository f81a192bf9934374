"""The one order in which every run is opened: nothing is written before all is loaded, nothing removed before."""

import json
from types import SimpleNamespace

import pytest

from egpo.errors import InputError
from egpo.runs.folder import RunFolder
from egpo.runs.metrics import MetricStream, read_metrics
from egpo.runs.opening import LaunchProvenance, RunOpening, opened
from egpo.runs.provenance import describe_launch, read_provenance


class Config(SimpleNamespace):
    def model_dump(self, *, mode, exclude_defaults=False):
        return {"name": self.name}


class Checkpoints:
    def __init__(self, calls, steps=()):
        self.calls, self.steps = calls, list(steps)

    def choose(self, step):
        self.calls.append("choose")
        return max(self.steps, default=0) if step is None else step

    def forget_after(self, step):
        self.calls.append("forget checkpoints")
        self.steps = [one for one in self.steps if one <= step]


class Opening(RunOpening[str]):
    """Notes each call, and that the folder's metrics are still there when it comes."""

    def __init__(self, path, steps=(), data="digest", broken=""):
        self.calls, self.data, self.broken = [], data, broken
        config = Config(name="a", seed=3, watch=SimpleNamespace(trackers=[]))
        super().__init__(RunFolder(path), Checkpoints(self.calls, steps), config, "name: a\n")

    def _note(self, name):
        self.calls.append(name)
        if name == self.broken:
            raise InputError(f"{name} fails")

    def clear_leftovers(self):
        self._note("clear")

    def read_checkpoint(self, step):
        self._note(f"read {step}")

    def load(self):
        self._note("load")
        return "model"

    def restore(self, loaded, step):
        self._note(f"restore {loaded} {step}")

    def describe(self, loaded, step):
        self._note("describe")
        return LaunchProvenance(describe_launch(after_step=step), {"train": self.data})

    def require_disk_room(self, loaded):
        self._note("disk")


@pytest.fixture
def trained(tmp_path):
    """A run of three steps."""
    path = tmp_path / "a"
    with opened(Opening(path)):
        for step in (1, 2, 3):
            MetricStream(RunFolder(path).metrics).append(step, {"loss": 1.0})
    return path


def test_a_new_run_is_loaded_and_checked_before_its_folder_is_made(tmp_path):
    opening = Opening(tmp_path / "a")
    with opened(opening) as run:
        assert (run.loaded, run.start) == ("model", 0)
        assert opening.folder.config.read_text() == "name: a\n"
    assert opening.calls == ["load", "disk", "describe"]
    assert read_provenance(opening.folder.provenance).seed == 3


@pytest.mark.parametrize("broken", ["load", "disk"])
def test_a_recipe_that_fails_leaves_no_folder(tmp_path, broken):
    with pytest.raises(InputError, match="fails"), opened(Opening(tmp_path / "a", broken=broken)):
        pass
    assert not (tmp_path / "a").exists()


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_loaded(trained):
    opening = Opening(trained)
    with pytest.raises(InputError, match="already contains a run"), opened(opening):
        pass
    assert opening.calls == []


def test_a_resumed_run_removes_later_steps_last_and_checkpoints_first(trained):
    opening = Opening(trained, steps=[1, 2])
    with opened(opening, resume=True) as run:
        assert run.start == 2
    order = ["clear", "choose", "read 2", "load", "restore model 2", "describe", "forget checkpoints", "disk"]
    assert opening.calls == order
    assert [line["step"] for line in read_metrics(opening.folder.metrics)] == [1, 2]
    assert [one.after_step for one in read_provenance(opening.folder.provenance).resumptions] == [2]


def test_a_run_without_a_checkpoint_begins_again(trained):
    opening = Opening(trained)
    with opened(opening, resume=True) as run:
        assert run.start == 0
    assert opening.calls == ["clear", "choose", "load", "describe", "forget checkpoints", "disk"]
    assert read_metrics(opening.folder.metrics) == []


@pytest.mark.parametrize("broken", ["read 1", "load", "restore model 1", "describe"])
def test_a_resumption_that_fails_removes_nothing(trained, broken):
    opening = Opening(trained, steps=[1, 2], broken=broken)
    with pytest.raises(InputError, match="fails"), opened(opening, resume_from=1):
        pass
    assert opening.checkpoints.steps == [1, 2]
    assert len(read_metrics(opening.folder.metrics)) == 3


def test_other_data_is_refused_before_anything_is_removed(trained):
    opening = Opening(trained, steps=[1], data="other")
    with pytest.raises(InputError, match="the data has changed since the run started"), opened(opening, resume=True):
        pass
    assert len(read_metrics(opening.folder.metrics)) == 3


def test_metrics_with_a_gap_are_refused_before_loading_unless_the_kind_of_run_allows_it(trained):
    folder = RunFolder(trained)
    lines = folder.metrics.read_text().splitlines()
    folder.metrics.write_text("\n".join(line for line in lines if json.loads(line)["step"] != 1) + "\n")
    opening = Opening(trained, steps=[2])
    with pytest.raises(InputError), opened(opening, resume=True):
        pass
    assert "load" not in opening.calls
    opening = Opening(trained, steps=[2])
    opening.allows_gaps = True
    with opened(opening, resume=True) as run:
        assert run.start == 2
