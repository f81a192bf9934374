"""Every run is in the table, whatever state it is in."""

import pytest

from egpo.comparisons.results_table import COLUMNS, read_results
from egpo.errors import InputError
from tests.comparisons.folders import drawn, write_run, write_run_evaluation


def by_name(entries):
    return {entry.name: entry for entry in entries}


def test_a_finished_run_has_its_figures(tmp_path):
    run = write_run(tmp_path / "grpo", seed=3)
    write_run_evaluation(run, [[True, False], [True, True], [False, False], [True, False]])
    (entry,) = read_results(tmp_path)
    assert (entry.method, entry.base, entry.data, entry.seed) == ("grpo", "egpo-tiny", "countdown aaaaaaaa", "3")
    assert (entry.evaluation, entry.mean, entry.evaluations) == ("countdown-n4-t1", "50.0", "75.0 25.0")
    assert entry.status == "finished"
    assert len(entry.date) == len("2026-11-15")
    assert len(entry.cells) == len(COLUMNS)


def test_evaluations_of_one_exam_share_a_line_and_exams_do_not(tmp_path):
    run = write_run(tmp_path / "grpo")
    for seed, share in enumerate((0.25, 0.5, 0.75)):
        right = [[place < 20 * share] for place in range(20)]
        write_run_evaluation(run, right, name=f"bfcl-base-run{seed}-step10")
    write_run_evaluation(run, drawn(0.5, 0), name="countdown-greedy-step10")
    write_run_evaluation(run, drawn(0.0, 0), name="countdown-greedy-step5", step=5)
    bfcl, greedy = read_results(tmp_path)
    assert (bfcl.evaluation, bfcl.mean, bfcl.evaluations) == ("bfcl-base", "50.0", "25.0 50.0 75.0")
    assert float(greedy.mean) > 0


def test_nothing_is_left_out(tmp_path):
    write_run(tmp_path / "fresh", done=4)
    write_run(tmp_path / "unproved", provenance=False)
    (write_run(tmp_path / "garbled") / "config.yaml").write_text("a: [b")
    (write_run(tmp_path / "cut") / "provenance.json").write_text("{")
    broken = write_run(tmp_path / "broken")
    write_run_evaluation(broken, drawn(0.5, 0)).write_text("{")
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "group" / "inner")
    found = by_name(read_results(tmp_path))
    assert set(found) == {"fresh", "unproved", "garbled", "cut", "broken", "empty", "group/inner"}
    assert found["fresh"].status == "step 4 of 10, not evaluated"
    assert found["unproved"].status == "finished, not evaluated"
    assert found["unproved"].date == ""
    assert found["empty"].status == "not a run: no config.yaml"
    for name in ("garbled", "cut", "broken"):
        assert found[name].status.startswith("unreadable: ")
    assert "config.yaml: the config is not YAML" in found["garbled"].status


def test_a_folder_with_a_probe_alone_is_not_a_failed_run(tmp_path):
    (tmp_path / "planned" / "evals").mkdir(parents=True)
    (tmp_path / "planned" / "evals" / "probe.json").write_text("{}")
    (entry,) = read_results(tmp_path)
    assert (entry.name, entry.status) == ("planned", "probed, not trained")


def test_the_table_is_read_from_the_folders_every_time(tmp_path):
    run = write_run(tmp_path / "grpo", done=4)
    before = read_results(tmp_path)
    write_run_evaluation(run, drawn(0.5, 0))
    assert read_results(tmp_path) != before
    assert read_results(tmp_path) == read_results(tmp_path)


def test_a_supervised_run_is_listed_by_its_data(tmp_path):
    run = write_run(tmp_path / "cold")
    (run / "config.yaml").write_text("name: cold\nseed: 0\nmodel: {path: m}\ndata: {path: chats.jsonl}\n")
    (entry,) = read_results(tmp_path)
    assert (entry.method, entry.data, entry.status) == ("sft", "chats.jsonl aaaaaaaa", "step 10, not evaluated")


@pytest.mark.parametrize(("make", "message"), [(False, "no such folder"), (True, "no runs in this folder")])
def test_no_runs_no_table(tmp_path, make, message):
    place = tmp_path / "runs"
    if make:
        place.mkdir()
    with pytest.raises(InputError, match=message):
        read_results(place)


def test_a_run_itself_is_no_folder_of_runs(tmp_path):
    run = write_run(tmp_path / "runs" / "grpo")
    with pytest.raises(
        InputError, match=f"this folder is a run; give the folder that contains the run: {tmp_path / 'runs'}"
    ):
        read_results(run)


def test_links_list_nothing_twice(tmp_path):
    write_run(tmp_path / "grpo")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / "endless").symlink_to("endless")
    write_run(tmp_path.parent / f"{tmp_path.name}-elsewhere" / "far")
    (tmp_path / "far").symlink_to(tmp_path.parent / f"{tmp_path.name}-elsewhere" / "far")
    assert [entry.name for entry in read_results(tmp_path)] == ["far", "grpo"]


HOSTILE = {
    "a step that is no number": ("metrics.jsonl", '{"step": "x"}\n'),
    "digests in a list": ("provenance.json", '{"seed": 0, "data": [], "start": {}, "resumptions": []}'),
    "settings in settings": ("config.yaml", "[" * 5000),
}


@pytest.mark.parametrize(("file", "text"), HOSTILE.values(), ids=HOSTILE)
def test_whatever_a_run_holds_the_others_are_listed(tmp_path, file, text):
    write_run(tmp_path / "sound")
    (write_run(tmp_path / "odd") / file).write_text(text)
    found = by_name(read_results(tmp_path))
    assert found["sound"].status == "finished, not evaluated"
    assert found["odd"].status.startswith("unreadable: ")
