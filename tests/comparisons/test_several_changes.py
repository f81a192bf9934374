"""A comparison names methods that change several things at once."""

from egpo.comparisons.comparison import ComparisonOptions, compare_runs
from egpo.methods import METHODS
from tests.comparisons.folders import drawn, write_run, write_run_evaluation


def written(place, name, settings=""):
    run = write_run(place / name)
    (run / "config.yaml").write_text((run / "config.yaml").read_text().replace("update: {", f"update: {{{settings}"))
    write_run_evaluation(run, drawn(0.4, 1))
    return run


def notes(runs):
    return [note for note in compare_runs(runs, ComparisonOptions(["update"])).notes if "several things" in note]


def test_a_method_that_changes_several_things_is_named(tmp_path):
    gspo = METHODS["gspo"]
    assert len(gspo.changes) > 1
    settings = "".join(f"{key.removeprefix('update.')}: {value}, " for key, value in gspo.settings.items())
    plain, other = written(tmp_path, "plain"), written(tmp_path, "other", settings)
    (note,) = notes([plain, other])
    assert "gspo" in note
    assert all(change in note for change in gspo.changes)


def test_one_changed_setting_is_not(tmp_path):
    assert notes([written(tmp_path, "plain"), written(tmp_path, "other", "clip: 0.1, ")]) == []
