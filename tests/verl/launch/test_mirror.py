"""Steps saved and steps logged, in every order that verl and a signal bring about."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from egpo.errors import EgpoWarning
from egpo.runs.dump import RolloutRecord, write_dump
from egpo.runs.folder import RunFolder
from egpo.runs.ledger import Ledger
from egpo.runs.live import LiveView
from egpo.runs.metrics import MetricStream
from egpo.runs.trackers import Tracker, Trackers, open_trackers
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.mirror import Mirror, StepFigures
from tests.verl.launch.recipes import small
from tests.verl.launch.stand_in import save


@pytest.fixture
def folder(tmp_path):
    """Steps 1 to 3 are logged, and 2 is saved."""
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        MetricStream(folder.metrics).append(step, {"critic/score/mean": 0.5})
    save(folder.checkpoints, 2, 1)
    return folder


def mirror_of(folder, start=0):
    config = small("validation.every=0", "checkpoints.keep_last=1", "checkpoints.keep_best=0")
    view = LiveView(6, "", console=Console(file=io.StringIO()))
    ledger = Ledger(folder, view, open_trackers([], "run", {}, folder))
    return Mirror(config, VerlPlaces(folder), ledger, start)


def saved(folder):
    return sorted(int(path.name.rpartition("_")[2]) for path in folder.checkpoints.glob("global_step_*"))


def logged(step):
    return [StepFigures(step, {"critic/score/mean": 0.5}, {})]


def test_one_without_figures_takes_the_place_of_none(folder):
    mirror = mirror_of(folder)
    save(folder.checkpoints, 5, 1)
    mirror.take(logged(4))
    assert saved(folder) == [2, 5]
    mirror.forget_unlogged_checkpoints()
    assert (saved(folder), folder.latest.read_text()) == ([2], "2")


def test_its_figures_make_it_the_last(folder):
    mirror = mirror_of(folder)
    save(folder.checkpoints, 4, 1)
    assert mirror.awaits_figures
    mirror.take(logged(4))
    assert (saved(folder), mirror.awaits_figures) == ([4], False)


def test_the_very_first_without_figures_leaves_none(folder):
    folder.metrics.unlink()
    mirror = mirror_of(folder)
    assert mirror.awaits_figures
    mirror.forget_unlogged_checkpoints()
    assert (saved(folder), folder.latest.exists()) == ([], False)


def test_figures_that_were_lost_are_not_waited_for(folder):
    """The run goes on from step 4, which was saved before it ended and never logged."""
    save(folder.checkpoints, 4, 1)
    mirror = mirror_of(folder, start=4)
    assert (mirror.done, mirror.awaits_figures) == (4, False)
    mirror.forget_unlogged_checkpoints()
    assert saved(folder) == [2, 4]


def test_samples_are_sent_from_the_rollouts_that_verl_wrote(folder):
    tables = []
    keeping = Tracker("wandb", lambda *_: None, lambda: None, lambda step, table: tables.append((step, table.rows)))
    places = VerlPlaces(folder)
    view = LiveView(6, "", console=Console(file=io.StringIO()))
    mirror = Mirror(small("validation.every=0"), places, Ledger(folder, view, Trackers([keeping]), num_samples=2))
    places.rollouts.mkdir(parents=True)
    record = RolloutRecord("prompt", "response", 1, 0.5, 4, True, "correct", "p0", 0)
    write_dump(places.rollouts / "4.jsonl", [record, replace(record, problem="p1")])
    mirror.take([*logged(4), *logged(5)])
    assert [(step, len(rows)) for step, rows in tables] == [(4, 2)]


def test_a_damaged_dump_is_a_warning(folder):
    view = LiveView(6, "", console=Console(file=io.StringIO()))
    folder.rollouts.mkdir()
    folder.rollouts_of(4).write_text('{"input": 1}\n')
    with pytest.warns(EgpoWarning, match="the table of samples is not sent"):
        Ledger(folder, view, Trackers([]), num_samples=2).send_samples(4)
