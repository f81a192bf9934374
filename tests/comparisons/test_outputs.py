"""JSON, Markdown and CSV say the same, and each says what was not fair."""

import csv
import json

import pytest
from typer.testing import CliRunner

from egpo.cli.main import app
from egpo.comparisons.comparison import ComparisonOptions, compare_runs
from egpo.comparisons.fairness import together
from egpo.comparisons.outputs import as_csv, as_json, as_markdown, csv_text, verdict_lines, write_json
from tests.comparisons.folders import drawn, two_conditions, write_run, write_run_evaluation


@pytest.fixture
def unfair(tmp_path):
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", estimator="egpo", lr=2e-6)]
    for place, run in enumerate(runs):
        write_run_evaluation(run, drawn(0.4 + 0.2 * place, place))
    return compare_runs(runs, ComparisonOptions(allow=True))


def test_all_three_flag_what_was_not_fair(unfair):
    assert json.loads(as_json(unfair))["unfair"][0]["key"] == "update.lr"
    assert "**Not a fair comparison:**" in as_markdown(unfair)
    assert "update.lr: 1e-06 (a); 2e-06 (b)" in as_markdown(unfair)
    assert next(csv.DictReader(as_csv(unfair).splitlines()))["fair"] == "false"


def test_they_hold_the_same_figures(tmp_path):
    found = compare_runs(two_conditions(tmp_path, seeds=(0, 1)), ComparisonOptions(metrics=["accuracy", "score"]))
    told = json.loads(as_json(found))
    lines = list(csv.DictReader(as_csv(found).splitlines()))
    assert [float(line["delta"]) for line in lines] == [contrast["delta"] for contrast in told["contrasts"]]
    assert all(line["fair"] == "true" for line in lines)
    assert f"| egpo - grpo | accuracy | {100 * told['contrasts'][0]['delta']:+.1f} |" in as_markdown(found)
    assert [run["seed"] for run in told["conditions"][0]["runs"]] == [0, 1]


def test_a_name_cannot_break_a_table_or_be_a_formula():
    assert csv_text(["a"], [["=1+1"], ["x,y"], [-1.5]]) == 'a\n\'=1+1\n"x,y"\n-1.5\n'
    assert csv_text(["a"], [["\t=1+1"]]) == "a\n'\t=1+1\n"


def test_markdown_of_a_label_with_a_bar_stays_a_table(unfair):
    from dataclasses import replace

    hostile = replace(unfair, conditions=[replace(unfair.conditions[0], label="a | <b>\n|")], notes=["<script>"])
    text = as_markdown(hostile)
    assert "| a \\| &lt;b> \\| |" in text
    assert "<script>" not in text


def test_markdown_of_a_name_is_no_link_and_its_backslash_saves_no_bar(unfair):
    from dataclasses import replace

    hostile = replace(unfair, conditions=[replace(unfair.conditions[0], label="\\|[x](http://y) *z* `")])
    assert "| \\\\\\|\\[x\\](http://y) \\*z\\* \\` |" in as_markdown(hostile)


def test_it_is_written_whole_into_a_folder_that_need_not_be_there(unfair, tmp_path):
    path = write_json(unfair, tmp_path / "new" / "place")
    assert path.name == "compare.json"
    assert json.loads(path.read_text())["format"] == 1


def test_one_contrast_has_its_verdict_and_many_are_counted(tmp_path):
    (single,) = compare_runs(two_conditions(tmp_path / "two", other=0.6)).contrasts
    assert verdict_lines([single]) == [single.verdict, f"Test: {single.method}."]
    runs = []
    for place, (estimator, share) in enumerate(
        (("grpo", 0.4), ("egpo", 0.4), ("egpo_calibrated", 0.7), ("other", 0.7))
    ):
        for seed in range(5):
            run = write_run(tmp_path / f"{estimator}-s{seed}", estimator=estimator, seed=seed)
            write_run_evaluation(run, drawn(share, [place, seed]))
            runs.append(run)
    found = compare_runs(runs)
    rest = [one.detectable for one in found.contrasts if one.finding == "not distinguishable"]
    assert len(rest) == 2
    assert verdict_lines(found.contrasts)[:2] == [
        "4 of 6 contrasts are different from zero",
        "2 of 6 contrasts are not distinguishable from zero; smallest detectable difference: "
        f"{100 * min(rest):.1f} to {100 * max(rest):.1f} points (80 % power)",
    ]
    three = compare_runs(runs[:15])
    better = [one.verdict for one in three.contrasts if one.finding != "not distinguishable"]
    assert len(better) == 2
    assert verdict_lines(three.contrasts)[:2] == better
    assert "Holm's correction for 3 contrasts" in verdict_lines(three.contrasts)[-1]
    shown = CliRunner().invoke(app, ["compare", *map(str, runs[:15])], env={"COLUMNS": "100"}).stdout
    assert max(map(len, shown.splitlines())) <= 100
    assert len(shown.splitlines()) < 25, "fifteen runs fit on one screen"


def test_runs_of_several_seeds_are_one_name():
    assert together(["grpo", "egpo"]) == ["grpo", "egpo"]
    assert together(["a-s0", "a-s1"]) == ["a-s0", "a-s1"]
    assert together(["a-s0", "b", "a-s1", "a-s10"]) == ["a-s{0,1,10}", "b"]
    assert together(["7b-s0", "7b-s1", "7b-s2"]) == ["7b-s{0,1,2}"]
