"""The opening of a report: base against trained with an interval, or what is known without an evaluation."""

import re

import pytest

from egpo.comparisons.comparison import compare_runs
from egpo.comparisons.outputs import write_json
from egpo.reports import render_report
from egpo.reports.curves import read_runs
from egpo.reports.evaluations import read_evaluations
from egpo.reports.verdict import verdicts_of
from tests.comparisons.folders import two_conditions
from tests.reports.folders import HOSTILE, note, write_run
from tests.reports.test_evaluations import write_evaluation


def verdicts(*paths):
    runs = read_runs(paths)
    return verdicts_of(runs, read_evaluations(runs))


def greedy(run, name, label, step, accuracy):
    write_evaluation(run, name, label, step, accuracy, n=1, temperature=0.0)


def evaluated(path, base, trained):
    run = write_run(path)
    greedy(run, "base", "the base", None, base)
    greedy(run, "final", f"{path.name} step 12", 12, trained)
    return run


@pytest.mark.parametrize(
    ("base", "trained", "finding", "change"),
    [
        (0.25, 0.75, "better", "accuracy 25.0 % → 75.0 %, +50.0 points ["),
        (0.75, 0.25, "worse", "accuracy 75.0 % → 25.0 %, -50.0 points ["),
        (0.5, 0.55, "not distinguishable", "accuracy 50.0 % → 55.0 %, +5.0 points ["),
    ],
)
def test_base_against_trained_with_interval(tmp_path, base, trained, finding, change):
    (exam,) = verdicts(evaluated(tmp_path / "a", base, trained))
    (entry,) = exam.entries
    assert entry.finding == finding
    assert entry.change.startswith(change)
    assert entry.change.endswith("against the base")
    assert entry.certainty.startswith("p ")
    assert ("smallest detectable difference" in entry.certainty) == (finding == "not distinguishable")
    assert exam.summary.startswith(f"countdown (test), 20 problems, greedy: a is {finding}")


def test_the_interval_is_that_of_a_comparison(tmp_path):
    """The same test as `egpo compare` makes of the same evaluations."""
    run = evaluated(tmp_path / "a", 0.25, 0.75)
    (contrast,) = compare_runs([run / "evals" / "base.json", run]).contrasts
    entry = verdicts(run)[0].entries[0]
    low, high = (float(end) for end in re.search(r"\[(.*),\s(.*)\]", entry.change).groups())
    assert low == pytest.approx(100 * contrast.low, abs=0.05)
    assert high == pytest.approx(100 * contrast.high, abs=0.05)


def test_several_runs_are_counted_and_corrected_together(tmp_path):
    runs = [evaluated(tmp_path / name, 0.25, accuracy) for name, accuracy in (("a", 0.75), ("b", 0.8), ("c", 0.25))]
    (exam,) = verdicts(*runs)
    assert exam.summary == (
        "countdown (test), 20 problems, greedy: 2 of 3 runs better than the base model (+50.0 to +55.0 points), "
        "1 of 3 runs not distinguishable from the base model (+0.0 points)."
    )
    assert all("Holm's correction for 3 tests" in entry.certainty for entry in exam.entries)


def test_each_exam_has_its_own_verdict(tmp_path):
    run = evaluated(tmp_path / "a", 0.25, 0.75)
    for name, label, step, accuracy in (("b4", "the base", None, 0.5), ("f4", "a step 12", 12, 0.5)):
        write_evaluation(run, name, label, step, accuracy, n=4)
    found = {exam.summary.partition(":")[0]: exam.entries[0].finding for exam in verdicts(run)}
    assert found == {
        "countdown (test), 20 problems, greedy": "better",
        "countdown (test), 20 problems, 4 responses each at temperature 1": "not distinguishable",
    }


def test_the_latest_checkpoint_counts(tmp_path):
    run = evaluated(tmp_path / "a", 0.25, 0.75)
    greedy(run, "early", "a step 4", 4, 0.3)
    assert "→ 75.0 %" in verdicts(run)[0].entries[0].change


def test_without_an_evaluation_the_training_metrics_are_told_without_an_interval(tmp_path):
    (group,) = verdicts(write_run(tmp_path / "a"))
    assert group.summary.startswith("Not measured by an evaluation")
    (entry,) = group.entries
    assert entry.finding == "not measured"
    assert entry.change.startswith("in training: Validation accuracy 0% → 100%; Reward 0.292 → 0.792")
    assert entry.certainty.startswith("no interval: no evaluation was made; `egpo eval ")


def test_an_evaluation_without_its_base(tmp_path):
    run = write_run(tmp_path / "a")
    greedy(run, "final", "a step 12", 12, 0.75)
    (entry,) = verdicts(run)[0].entries
    assert entry.change.startswith("evaluated: accuracy 75.0 % [")
    assert "no evaluation of its base model on the same exam is stored" in entry.certainty


def test_several_other_models_are_not_taken_for_the_base(tmp_path):
    run = evaluated(tmp_path / "a", 0.25, 0.75)
    greedy(run, "teacher", "a teacher", None, 0.9)
    assert verdicts(run)[0].entries[0].finding == "not measured"


def test_responses_that_are_gone_leave_two_intervals_and_no_test(tmp_path):
    run = evaluated(tmp_path / "a", 0.25, 0.75)
    (run / "evals" / "base.jsonl").unlink()
    (entry,) = verdicts(run)[0].entries
    assert entry.finding == "not measured"
    assert re.fullmatch(r"accuracy 25.0 % \[.*\] → 75.0 % \[.*\] against the base", entry.change)
    assert "no paired test" in entry.certainty


def test_a_run_that_has_only_begun(tmp_path):
    run = write_run(tmp_path / "new", steps=0, dumps=())
    (run / "metrics.jsonl").unlink()
    (run / "timings.jsonl").unlink()
    assert verdicts(run)[0].entries[0].change == "no step is recorded yet"


def test_the_page_opens_with_it(tmp_path):
    run = evaluated(tmp_path / "a", 0.25, 0.75)
    page = render_report([run]).decode()
    assert re.findall(r'<section id="([a-z]+)"', page)[0] == "verdict"
    assert "accuracy 25.0 % → 75.0 %, +50.0 points" in page
    noted = render_report([write_run(tmp_path / "b", notes=[note()])]).decode()
    assert "1 health warning, 1 severe" in noted


def test_verdicts_between_conditions_stand_in_the_opening(tmp_path):
    runs = two_conditions(tmp_path)
    found = compare_runs(runs)
    write_json(found, tmp_path)
    opening = re.search(r'<section id="verdict".*?</section>', render_report(runs).decode(), re.DOTALL)[0]
    assert found.contrasts[0].verdict in opening


def test_a_base_that_was_sampled_otherwise_is_not_compared(tmp_path):
    run = write_run(tmp_path / "a")
    write_evaluation(run, "base", "the base", None, 0.25, n=4, top_p=0.5)
    write_evaluation(run, "final", "a step 12", 12, 0.75, n=4)
    assert verdicts(run)[0].entries[0].finding == "not measured"


def test_hostile_names_stay_text(tmp_path):
    run = write_run(tmp_path / "a")
    greedy(run, "base", HOSTILE[1], None, 0.25)
    greedy(run, "final", HOSTILE[0], 12, 0.75)
    page = render_report([run]).decode()
    assert HOSTILE[0] not in page
    assert HOSTILE[1] not in page
    assert page.count("<script") == page.count("</script>")
