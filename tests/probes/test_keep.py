"""Filtered data and its control: the same shape, the same size, and proof of both."""

import json

import pytest

from egpo.data import read_manifest, read_rows
from egpo.errors import InputError
from egpo.probes.keep import PassRange, require_free_folders, write_kept
from egpo.probes.probe import probe
from egpo.tasks import load_task
from tests.probes.scripted import Scripted, paper_of

SETTINGS = {"train": 20, "test": 5, "max_number": 20}


@pytest.fixture(scope="module")
def probed():
    """Twenty problems of which the i-th is solved in i of 20 responses, and a half in none; n is 20."""
    paper = paper_of(None, 20, task="countdown", **SETTINGS)
    times = {problem.key: place for place, problem in enumerate(paper.problems)}
    gold = {problem.key: paper.task.gold(problem) for problem in paper.problems}
    said = Scripted(lambda problem, sample: gold[problem.key] if sample < times[problem.key] else "none")
    return probe(said, paper), paper


def keys(directory, split="train"):
    return [problem.key for problem in load_task("countdown", source=str(directory)).problems(split)]


def test_kept_are_the_problems_in_the_range_and_the_control_is_as_large(probed, tmp_path):
    outcome, paper = probed
    done = write_kept(outcome, paper, PassRange(0.25, 0.5), tmp_path)
    assert keys(done.kept) == [problem.key for problem in paper.problems[5:11]]
    control = keys(done.control)
    assert len(control) == len(set(control)) == done.num_kept == 6
    assert set(control) <= {problem.key for problem in paper.problems}
    assert any(not 0.25 <= outcome.pass_rates[key] <= 0.5 for key in control)
    assert keys(done.kept, "test") == keys(done.control, "test") == [p.key for p in paper.task.problems("test")]


def test_rows_are_those_of_prepare(probed, tmp_path):
    outcome, paper = probed
    write_kept(outcome, paper, PassRange(0, 1), tmp_path)
    rows = list(read_rows(tmp_path / "kept" / "train.parquet"))
    assert [row.prompt for row in rows] == [problem.messages for problem in paper.problems]
    assert {row.data_source for row in rows} == {"countdown"}


def test_manifests_say_what_was_kept_and_the_same_probe_gives_the_same_bytes(probed, tmp_path):
    outcome, paper = probed
    for name in ("one", "two"):
        write_kept(outcome, paper, PassRange(0.1, 0.9), tmp_path / name)
    kept, control = (read_manifest(tmp_path / "one" / part) for part in ("kept", "control"))
    assert (kept.kind, control.kind) == ("probe kept", "probe control")
    assert kept.settings == control.settings
    assert kept.settings["keep"] == "0.1:0.9"
    assert kept.source_sha256 == control.source_sha256 == outcome.evaluation.data
    for part in ("kept/train.parquet", "control/train.parquet", "kept/manifest.json"):
        assert (tmp_path / "one" / part).read_bytes() == (tmp_path / "two" / part).read_bytes()
    assert json.loads((tmp_path / "one" / "kept" / "manifest.json").read_text())["files"]["train.parquet"]["rows"] == 17


def test_none_in_the_range_writes_nothing(probed, tmp_path):
    with pytest.raises(InputError, match=r"--keep 0.96:1: none of the 20 probed problems .* multiples of 1/20"):
        write_kept(*probed, PassRange(0.96, 1), tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_replaced_only_by_force(probed, tmp_path):
    require_free_folders(tmp_path, force=False)
    write_kept(*probed, PassRange(0, 1), tmp_path)
    with pytest.raises(InputError, match=r"already holds .*--force"):
        require_free_folders(tmp_path, force=False)
    with pytest.raises(InputError, match="already holds"):
        write_kept(*probed, PassRange(0, 0.5), tmp_path)
    assert len(keys(tmp_path / "kept")) == 20
    write_kept(*probed, PassRange(0, 0.5), tmp_path, force=True)
    assert len(keys(tmp_path / "kept")) == 11


@pytest.mark.parametrize("text", ["", "0.1", "0.1:0.2:0.3", "a:b", "0.9:0.1", "-1:0.5", "0:2", "nan:1"])
def test_a_range_is_two_shares(text):
    with pytest.raises(InputError, match=r"--keep: .*0\.1:0\.9"):
        PassRange.parse(text)
    assert PassRange.parse("0.1:1") == PassRange(0.1, 1.0)
