"""Evaluations as `egpo eval` writes them."""

import json

import pytest

from egpo.errors import InputError
from egpo.reports.curves import read_runs
from egpo.reports.evaluations import evaluation_tables, read_evaluations
from tests.reports.folders import write_run


def write_evaluation(run, name, label, step, accuracy, **sampling):
    """Through the real writer: the figures of 20 problems, of which so many are right."""
    from egpo.evals.evaluate import Evaluation, Exam, Origin
    from egpo.evals.evaluate import write_evaluation as write
    from egpo.evals.figures import figures_of
    from egpo.evals.responses import SampleRecord, Sampling

    right = [number < 20 * accuracy for number in range(20)]
    samples = tuple(
        SampleRecord(f"p{number}", 0, "", "", None, float(is_right), is_right, "x")
        for number, is_right in enumerate(right)
    )
    exam = Exam("countdown", sampling=Sampling(**sampling))
    evaluation = Evaluation(label, exam, figures_of(samples), samples, 0, "digest")
    write(run / "evals", name, evaluation, Origin("model", step))


@pytest.fixture
def runs(tmp_path):
    paths = [write_run(tmp_path / name) for name in ("a", "b")]
    for path in paths:
        write_evaluation(path, "base", "the base", None, 0.25, n=1, temperature=0.0)
        write_evaluation(path, "final", f"{path.name} step 12", 12, 0.75, n=1, temperature=0.0)
    write_evaluation(paths[1], "sampled", "b step 12", 12, 0.5, n=4)
    return read_runs(paths)


def test_exams_stand_apart_and_the_base_comes_once_and_first(runs):
    greedy, sampled = evaluation_tables(read_evaluations(runs))
    assert greedy.title == "countdown (test), 20 problems, greedy"
    assert sampled.title == "countdown (test), 20 problems, 4 responses each at temperature 1"
    accuracy = greedy.figures[0]
    assert [(row.label, row.place, row.value) for row in accuracy.rows] == [
        ("the base", None, "25.0 %"),
        ("a step 12", 0, "75.0 %"),
        ("b step 12", 1, "75.0 %"),
    ]


def test_intervals_lie_about_their_value_and_within_the_axis(runs):
    for table in evaluation_tables(read_evaluations(runs)):
        for figure in table.figures:
            for row in figure.rows:
                assert 0 <= row.low_at <= row.at <= row.high_at <= 100


def test_no_evaluations_no_tables(tmp_path):
    assert read_evaluations(read_runs([write_run(tmp_path / "a")])) == []


@pytest.mark.parametrize("content", ["[]", "{}", '{"accuracy": null}', '{"accuracy": {"value": "x"}}'])
def test_files_without_figures_are_passed_over(tmp_path, content):
    run = write_run(tmp_path / "a")
    (run / "evals").mkdir()
    (run / "evals" / "x.json").write_text(content)
    assert read_evaluations(read_runs([run])) == []


def test_a_file_that_is_cut_off_is_named(tmp_path):
    run = write_run(tmp_path / "a")
    (run / "evals").mkdir()
    (run / "evals" / "x.json").write_text(json.dumps({"accuracy": 1})[:-3])
    with pytest.raises(InputError, match=r"x\.json"):
        read_evaluations(read_runs([run]))
