"""The page that explains the metrics knows all that a run writes, and every health rule."""

import re
from itertools import product
from pathlib import Path

import pytest

from egpo.runs.health import RULES
from egpo.runs.metrics import read_metrics

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()


def spelt_out(name):
    """`a/{b,c}` is `a/b` and `a/c`."""
    parts = [part.strip("{}").split(",") if part.startswith("{") else [part] for part in re.split(r"({.*?})", name)]
    return ["".join(chosen) for chosen in product(*parts)]


def is_explained(metric):
    """`<source>` and `N` stand for anything."""
    names = [one for name in re.findall(r"`([a-z_-]+/[^` ]+)`", PAGE) for one in spelt_out(name)]
    patterns = [re.sub(r"<\w+>|(?<=@)N", "[^@]+", name) for name in names]
    return any(re.fullmatch(pattern, metric) for pattern in patterns)


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
@pytest.mark.parametrize(
    "estimator",
    ["grpo", "{estimator: egpo, egpo: {entropy_mode: response}}", "{estimator: egpo_calibrated}"],
)
def test_every_figure_that_a_run_writes_is_explained(run_recipe, estimator):
    words = ["update.kl=0.1", "validation={every: 1, problems: 2}", "algorithm.constant_groups=drop"]
    algorithm = f"algorithm={estimator}" if "{" in estimator else f"algorithm.estimator={estimator}"
    run_recipe(algorithm, *words, only=["prepare", "train"])
    written = {name for file in ("metrics", "timings") for line in read_metrics(Path(f"runs/tiny/{file}.jsonl"))
               for name in line if name != "step"}  # fmt: skip
    assert len(written) > 30
    assert sorted(name for name in written if not is_explained(name)) == []


def test_a_figure_that_nobody_explained_is_found():
    assert not is_explained("actor/charm")
    assert is_explained("egpo/weight/std")
    assert is_explained("val-core/openai/gsm8k/acc/mean@4")


def test_every_health_rule_is_explained():
    assert [rule.name for rule in RULES if f"`{rule.name}`" not in PAGE] == []
