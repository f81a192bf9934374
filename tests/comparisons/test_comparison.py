"""Runs in, verdicts out: conditions, fairness, words, and what is refused."""

import json

import numpy as np
import pytest

from egpo.comparisons.comparison import ComparisonOptions, compare_runs
from egpo.comparisons.mcnemar import BOOTSTRAP, MCNEMAR
from egpo.comparisons.seeds import METHOD
from egpo.errors import ConfigError, InputError
from egpo.fingerprints import sealed
from egpo.runs.json_lines import encoded, read_lines
from tests.comparisons.folders import drawn, two_conditions, write_run, write_run_evaluation


def test_runs_that_differ_in_their_seed_alone_are_one_condition(tmp_path):
    found = compare_runs(two_conditions(tmp_path, seeds=(0, 1, 2), other=0.6))
    assert [(row.label, len(row.runs)) for row in found.conditions] == [("grpo", 3), ("egpo", 3)]
    (contrast,) = found.contrasts
    assert (contrast.base, contrast.other, contrast.method, contrast.finding) == ("grpo", "egpo", METHOD, "better")
    assert contrast.verdict.startswith("egpo is better than grpo: difference +")
    assert not found.unfair


def test_one_run_each_is_compared_problem_by_problem(tmp_path):
    runs = two_conditions(tmp_path, other=0.6)
    assert compare_runs(runs).contrasts[0].method == BOOTSTRAP
    assert "Each condition has one training run" in compare_runs(runs).notes[0]
    (single,) = compare_runs(two_conditions(tmp_path / "single", other=0.6, n=1)).contrasts
    assert (single.method, single.finding) == (MCNEMAR, "better")


def test_the_order_of_runs_decides_who_is_the_base(tmp_path):
    grpo, egpo = two_conditions(tmp_path, other=0.6)
    there, back = (compare_runs(order).contrasts[0] for order in ([grpo, egpo], [egpo, grpo]))
    assert (there.finding, back.finding) == ("better", "worse")
    assert there.delta == pytest.approx(-back.delta)
    assert there.detectable == pytest.approx(back.detectable)


def test_equal_models_are_not_distinguishable_and_the_words_say_what_could_have_been_seen(tmp_path):
    (contrast,) = compare_runs(two_conditions(tmp_path, base=0.5, other=0.5)).contrasts
    assert contrast.finding == "not distinguishable"
    sees = f"{100 * contrast.detectable:.1f}"
    assert contrast.verdict.endswith(f"; smallest detectable difference: {sees} points (80 % power)")
    assert f"[{100 * contrast.low:+.1f}, {100 * contrast.high:+.1f}]" in contrast.verdict


def test_a_design_does_not_see_a_difference_that_shares_cannot_have(tmp_path):
    """Two seeds that lie far apart against one run: the formula says some hundreds of points."""
    low, high, alone = (
        write_run(tmp_path / f"{estimator}-{seed}", estimator=estimator, seed=seed)
        for estimator, seed in (("grpo", 0), ("grpo", 1), ("egpo", 0))
    )
    for run, share in ((low, 0.2), (high, 0.7), (alone, 0.5)):
        write_run_evaluation(run, drawn(share, 1))
    share, score = compare_runs([low, high, alone], ComparisonOptions(metrics=["accuracy", "score"])).contrasts
    assert share.detectable is None
    assert share.verdict.endswith("smallest detectable difference: unknown")
    assert score.detectable > 1


def test_more_than_two_conditions_and_metrics_are_one_family(tmp_path):
    runs = two_conditions(tmp_path, other=0.5)
    third = write_run(tmp_path / "third", estimator="egpo_calibrated")
    write_run_evaluation(third, drawn(0.5, 9))
    found = compare_runs([*runs, third], ComparisonOptions(metrics=["accuracy", "pass@4", "score"]))
    assert [(c.base, c.other) for c in found.contrasts[:3]] == [
        ("grpo", "egpo"),
        ("grpo", "egpo_calibrated"),
        ("egpo", "egpo_calibrated"),
    ]
    assert len(found.contrasts) == 9
    smallest = min(found.contrasts, key=lambda contrast: contrast.p_value)
    assert smallest.adjusted_p == pytest.approx(min(1, 9 * smallest.p_value))
    alone = compare_runs(runs).contrasts[0]
    assert found.contrasts[0].detectable > alone.detectable
    assert (found.contrasts[0].low, found.contrasts[0].high) == (alone.low, alone.high)


def test_a_difference_that_the_correction_takes_away_is_said_to_be_one_of_many(tmp_path):
    base = np.array([[True]] * 40 + [[False]] * 60)
    other = base.copy()
    other[90:96] = True  # six won, none lost: p = 0.016
    runs = [write_run(tmp_path / name, estimator=name) for name in ("grpo", "egpo", "egpo_calibrated")]
    for run, right in zip(runs, (base, other, base), strict=True):
        write_run_evaluation(run, right)
    assert compare_runs(runs[:2]).contrasts[0].finding == "better"
    found = compare_runs(runs, ComparisonOptions(metrics=["accuracy", "score"])).contrasts[0]
    assert found.finding == "not distinguishable"
    assert "are not distinguishable among 6 comparisons" in found.verdict


def test_evaluations_again_are_judged_together_and_their_spread_is_told(tmp_path):
    runs = two_conditions(tmp_path, n=1)
    for run in runs:
        for seed in (1, 2):
            write_run_evaluation(run, drawn(0.4, [seed, 5], n=1), name=f"countdown-n1-t1-seed{seed}-step10", seed=seed)
    found = compare_runs(runs)
    (row,) = found.conditions[0].runs
    assert row.num_evaluations == len(row.evaluations) == 3
    assert row.mean == pytest.approx(np.mean(row.evaluations))
    assert row.evaluation_sd == pytest.approx(np.std(row.evaluations, ddof=1))
    assert found.contrasts[0].method == BOOTSTRAP
    assert found.contrasts[0].num_problems == 100


def test_the_latest_checkpoint_counts_and_the_base_is_nobodys_run(tmp_path):
    runs = two_conditions(tmp_path, other=0.9)
    for run in runs:
        write_run_evaluation(run, drawn(0.1, 1), name="countdown-n4-t1-step5", step=5)
        write_run_evaluation(run, drawn(0.2, 2), name="egpo-tiny-countdown-n4-t1", step=None)
    assert compare_runs(runs).conditions[1].mean > 0.8


def test_a_path_to_the_same_data_is_no_difference(tmp_path):
    runs = two_conditions(tmp_path)
    for run, root in zip(runs, ("/here", "/there"), strict=True):
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("mode: binary", f"mode: binary, source: {root}"))
    assert not compare_runs(runs).unfair


UNFAIR = {
    "another setting": ({"lr": 2e-6}, {}, "setting update.lr: 1e-06 (grpo); 2e-06 (egpo)"),
    "another reward": ({"mode": "graded"}, {}, "reward task.settings.mode: binary (grpo); graded (egpo)"),
    "other data": ({"train": "b" * 64}, {}, "data train: aaaaaaaaaaaa (grpo); bbbbbbbbbbbb (egpo)"),
    "no proof": ({"provenance": False}, {}, "data train: aaaaaaaaaaaa (grpo); unproved (egpo)"),
    "no digests": ({"train": None}, {}, "data train: aaaaaaaaaaaa (grpo); unproved (egpo)"),
    "another sampling": ({}, {"temperature": 0.7}, "evaluation sampling.temperature: 1.0 (grpo); 0.7 (egpo)"),
    "another step": ({}, {"step": 20}, "evaluation step: 10 (grpo); 20 (egpo)"),
    "other problems": ({}, {"data": "other"}, "evaluation data: digest (grpo); other (egpo)"),
}


@pytest.mark.parametrize(("changed", "evaluated", "message"), UNFAIR.values(), ids=UNFAIR)
def test_what_is_not_fair_is_refused_with_the_difference_or_flagged(tmp_path, changed, evaluated, message):
    grpo = write_run(tmp_path / "grpo")
    egpo = write_run(tmp_path / "egpo", estimator="egpo", **changed)
    write_run_evaluation(grpo, drawn(0.5, 0))
    write_run_evaluation(egpo, drawn(0.5, 1), **evaluated)
    with pytest.raises(ConfigError) as refused:
        compare_runs([grpo, egpo])
    assert message in str(refused.value)
    assert "--factor KEY" in str(refused.value)
    allowed = compare_runs([grpo, egpo], ComparisonOptions(allow=True))
    assert [str(found) for found in allowed.unfair] == [message]


def test_the_declared_factor_is_what_may_differ(tmp_path):
    runs = [write_run(tmp_path / f"lr{lr}", lr=lr) for lr in (1e-6, 2e-6)]
    for place, run in enumerate(runs):
        write_run_evaluation(run, drawn(0.5, place))
    assert [row.label for row in compare_runs(runs, ComparisonOptions(["update.lr"])).conditions] == [
        "1e-06",
        "2e-06",
    ]
    assert [row.label for row in compare_runs(runs, ComparisonOptions(["update"])).conditions] == [
        "1e-06",
        "2e-06",
    ]
    with pytest.raises(ConfigError):
        compare_runs(runs)


def test_one_seed_twice_is_no_second_seed(tmp_path):
    runs = two_conditions(tmp_path, seeds=(0, 1))
    twin = write_run(tmp_path / "twin", seed=0)
    write_run_evaluation(twin, drawn(0.4, 3))
    with pytest.raises(ConfigError, match=r"seed twice in grpo: 0 \(grpo-0, twin\)"):
        compare_runs([*runs, twin])


def test_only_shared_problems_count_and_the_overlap_is_said(tmp_path):
    grpo, egpo = (write_run(tmp_path / name, estimator=name) for name in ("grpo", "egpo"))
    write_run_evaluation(grpo, drawn(0.5, 0))
    write_run_evaluation(egpo, drawn(0.5, 1), first=60, data="other")
    found = compare_runs([grpo, egpo], ComparisonOptions(allow=True))
    assert found.contrasts[0].num_problems == 40
    assert "All runs share 40 problems (grpo 100, egpo 100); only those are compared." in found.notes
    write_run_evaluation(egpo, drawn(0.5, 1), first=100, data="other")
    with pytest.raises(InputError, match=r"share no problems \(of grpo 100, egpo 100\)"):
        compare_runs([grpo, egpo], ComparisonOptions(allow=True))


def test_different_tasks_are_refused_whatever_is_allowed(tmp_path):
    grpo, egpo = (write_run(tmp_path / name, estimator=name) for name in ("grpo", "egpo"))
    write_run_evaluation(grpo, drawn(0.5, 0))
    write_run_evaluation(egpo, drawn(0.5, 1), task="gsm8k")
    with pytest.raises(InputError, match=r"different tasks \(grpo: countdown, egpo: gsm8k\)"):
        compare_runs([grpo, egpo], ComparisonOptions(allow=True))


def test_several_evaluations_must_be_chosen_from(tmp_path):
    runs = two_conditions(tmp_path)
    for run in runs:
        write_run_evaluation(run, drawn(0.5, 3, n=1), name="countdown-greedy-step10")
    with pytest.raises(
        InputError, match="choose one with --eval, before you look at any results: countdown-greedy, countdown-n4-t1"
    ):
        compare_runs(runs)
    assert compare_runs(runs, ComparisonOptions(exam="*-greedy")).contrasts[0].method == MCNEMAR
    with pytest.raises(InputError, match="no evaluation `gsm8k`; choose from: countdown-greedy, countdown-n4-t1"):
        compare_runs(runs, ComparisonOptions(exam="gsm8k"))


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda run: [path.unlink() for path in (run / "evals").iterdir()], "this run has no evaluation; make one"),
        (lambda run: (run / "config.yaml").unlink(), "not a run folder; give a folder that `egpo train` wrote"),
        (lambda run: (run / "config.yaml").write_text("a: [b"), "the stored config is not YAML"),
        (lambda run: (run / "provenance.json").write_text("{"), "cannot be read"),
        (lambda run: next((run / "evals").glob("*.json")).write_text("{"), "cannot be read"),
        (lambda run: next((run / "evals").glob("*.jsonl")).unlink(), "the responses of this evaluation are missing"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named(tmp_path, break_it, message):
    runs = two_conditions(tmp_path)
    break_it(runs[1])
    with pytest.raises(InputError, match=message):
        compare_runs(runs)


@pytest.mark.parametrize(
    ("runs", "wanted", "message"),
    [
        (lambda runs: [], ComparisonOptions(), "fewer than two runs to compare"),
        (lambda runs: runs[:1], ComparisonOptions(), "fewer than two runs to compare: "),
        (lambda runs: [runs[0], runs[0]], ComparisonOptions(), "fewer than two runs to compare: "),
        (lambda runs: runs[:2], ComparisonOptions(), "the 2 runs form one condition"),
        (
            lambda runs: runs,
            ComparisonOptions(metrics=["acuracy"]),
            "unknown metric `acuracy`; did you mean `accuracy`?",
        ),
        (lambda runs: runs, ComparisonOptions(metrics=["pass@9"]), "pass@9 cannot be computed for any problem"),
        (
            lambda runs: runs,
            ComparisonOptions(factors=["algoritm"]),
            "no run has a setting `algoritm`; did you mean `algorithm`?",
        ),
        (lambda runs: [*runs, runs[0].parent / "none"], ComparisonOptions(), "no such folder"),
    ],
)
def test_mistakes_are_told(tmp_path, runs, wanted, message):
    made = two_conditions(tmp_path, seeds=(0, 1))
    with pytest.raises(InputError) as told:
        compare_runs(runs(made), wanted)
    assert message in str(told.value)
    assert told.value.exit_code == 2


def test_hostile_headers_are_no_evaluations(tmp_path):
    runs = two_conditions(tmp_path)
    (runs[0] / "evals" / "probe.json").write_text(json.dumps({"pass_rates": [0.1]}))
    (runs[0] / "evals" / "list.json").write_text("[]")
    assert len(compare_runs(runs).contrasts) == 1


def rewrite_samples(run, change):
    (path,) = (run / "evals").glob("*.jsonl")
    lines = [line.value for line in read_lines(path)]
    path.write_bytes(b"".join(encoded(line | change(place)) for place, line in enumerate(lines)))


def test_failures_and_scores_that_are_none_are_said_and_not_only_left_out(tmp_path):
    runs = two_conditions(tmp_path)
    rewrite_samples(runs[1], lambda place: {"failed": place < 200, "score": None if place == 300 else 0.5})
    found = compare_runs(runs, ComparisonOptions(metrics=["accuracy", "score"]))
    assert [contrast.num_problems for contrast in found.contrasts] == [50, 49]
    assert "200 of 400 responses of egpo-0 could not be judged and are left out." in found.notes
    assert any("50 problems with a value of accuracy (grpo-0 100, egpo-0 50)" in note for note in found.notes)
    assert any("49 problems with a value of score (grpo-0 100, egpo-0 49)" in note for note in found.notes)


def test_a_served_evaluation_is_not_one_of_the_embedded_engine(tmp_path):
    runs = two_conditions(tmp_path)
    (path,) = (runs[0] / "evals").glob("*.json")
    path.write_text(json.dumps(sealed(json.loads(path.read_text()) | {"entropy": {"response": {"value": 0.3}}})))
    with pytest.raises(ConfigError, match=r"evaluation engine: embedded \(grpo-0\); server \(egpo-0\)"):
        compare_runs(runs)
