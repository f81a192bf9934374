"""A plain model beside runs: the base, by its evaluation alone."""

import numpy as np
import pytest

from egpo.comparisons.comparison import ComparisonOptions, compare_runs
from egpo.comparisons.seeds import compare_over_seeds
from egpo.errors import ConfigError, InputError
from tests.comparisons.folders import drawn, two_conditions, write_run_evaluation


def base(place, right_PN=None, **exam):
    right_PN = drawn(0.4, 9) if right_PN is None else right_PN
    return write_run_evaluation(place / "base", right_PN, name="base-countdown-n4-t1", step=None, **exam)


def test_a_base_is_a_condition_that_only_its_evaluation_makes_fair(tmp_path):
    found = compare_runs([*two_conditions(tmp_path, other=0.9), base(tmp_path)])
    assert [row.label for row in found.conditions] == ["base", "grpo", "egpo"]
    assert [contrast.finding for contrast in found.contrasts if contrast.other == "egpo"] == ["better", "better"]
    assert not found.unfair


def test_one_run_or_another_plain_model_is_enough_beside_it(tmp_path):
    grpo, _ = two_conditions(tmp_path)
    assert [row.label for row in compare_runs([grpo, base(tmp_path)]).conditions] == ["base", "grpo-0"]
    other = write_run_evaluation(tmp_path / "other", drawn(0.5, 3), name="other-countdown-n4-t1", step=None)
    assert [row.label for row in compare_runs([base(tmp_path), other]).conditions] == ["base", "other"]


@pytest.mark.parametrize(
    ("exam", "message"),
    [
        ({"temperature": 0.7}, r"sampling.temperature: 0.7 \(base\); 1.0 \(grpo-0, egpo-0\)"),
        ({"data": "other"}, r"evaluation data: other \(base\); digest \(grpo-0, egpo-0\)"),
    ],
)
def test_evaluated_otherwise_it_is_refused(tmp_path, exam, message):
    with pytest.raises(ConfigError, match=message):
        compare_runs([base(tmp_path, **exam), *two_conditions(tmp_path)])


def test_everything_in_a_folder_of_runs_means_the_runs(tmp_path):
    runs = tmp_path / "runs"
    two_conditions(runs)
    for name in ("results.csv", "results.html", "report.html", "compare.json"):
        (runs / name).touch()
    assert [row.label for row in compare_runs(sorted(runs.iterdir())).conditions] == ["egpo", "grpo"]


def test_mistakes_are_told(tmp_path):
    path = base(tmp_path)
    with pytest.raises(InputError, match="fewer than two runs to compare: base"):
        compare_runs([path, path])
    (tmp_path / "probe.json").write_text("{}")
    with pytest.raises(InputError, match="not an evaluation; give a file"):
        compare_runs([tmp_path / "probe.json", path])
    with pytest.raises(InputError, match="no such folder"):
        compare_runs([tmp_path / "none.json", path], ComparisonOptions())


def test_a_plain_model_has_no_seed_and_the_interval_knows_it():
    """Seeds that scatter by 15 points, no true difference: false alarms stay at 5 %, and the interval is narrower than
    if the base were a run of its own."""
    rng, trials, alarms = np.random.default_rng(0), 600, 0
    for _ in range(trials):
        chance_P = rng.uniform(0.3, 0.7, 200)
        base_SP = (rng.random((1, 200)) < chance_P).astype(float)
        seeds_SP = (rng.random((5, 200)) < chance_P + rng.normal(0, 0.15, (5, 1))).astype(float)
        found = compare_over_seeds(base_SP, seeds_SP, has_seeds=(False, True))
        alarms += found.is_clear_of_zero
    assert 0.025 < alarms / trials < 0.07
    assert found.delta.high < compare_over_seeds(base_SP, seeds_SP).delta.high
