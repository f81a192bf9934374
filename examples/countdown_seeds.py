"""Compares three seeds of each estimator on Countdown with the base model: the table in docs/results.md.

    python -m examples.countdown_seeds FOLDER

FOLDER contains evaluations written by `egpo eval --out`: `sampled_NAME/*.json` and `greedy_NAME/*.json`, where NAME is
`egpo-tiny` or `ESTIMATOR-SEED`. The comparison is that of `egpo compare`, without a correction for multiple tests.
Shapes: S seeds, P problems.
"""

import sys
from itertools import combinations
from pathlib import Path

import numpy as np

from egpo.comparisons.outcome import ALPHA
from egpo.comparisons.seeds import compare_over_seeds
from egpo.evals.evaluate import read_evaluation
from egpo.evals.figures import pass_at_k_by_problem, tally_problems

ESTIMATORS = ("grpo", "egpo", "egpo_calibrated")
BASE = "egpo-tiny"


def accuracies(folder: Path, name: str) -> dict[str, float]:
    """Return the accuracy of each problem in an evaluation."""
    (path,) = (folder / name).glob("*.json")
    return pass_at_k_by_problem(tally_problems(read_evaluation(path).samples), 1)


def table_SP(folder: Path, kind: str, name: str, keys: list[str]) -> np.ndarray:
    """Return the accuracies with one row per seed. The base model has one row."""
    names = sorted(path.name for path in folder.glob(f"{kind}_{name}-[0-9]"))
    rows = [accuracies(folder, each) for each in names or [f"{kind}_{name}"]]
    return np.array([[row[key] for key in keys] for row in rows])


def main(folder: Path) -> None:
    for kind in ("sampled", "greedy"):
        keys = sorted(accuracies(folder, f"{kind}_{BASE}"))
        tables = {name: table_SP(folder, kind, name, keys) for name in (BASE, *ESTIMATORS)}
        print(f"\n{kind}, {len(keys)} problems; base {100 * tables[BASE].mean():.1f} %")
        for name in ESTIMATORS:
            seeds = ", ".join(f"{100 * row.mean():.1f}" for row in tables[name])
            print(f"  {name:18} {100 * tables[name].mean():.1f} % (seeds {seeds})")
        for base, other in combinations(tables, 2):
            print(f"  {other:18} - {base:18} {_difference(tables[base], tables[other], base != BASE)}")


def _difference(base_SP: np.ndarray, other_SP: np.ndarray, base_has_seeds: bool) -> str:
    outcome = compare_over_seeds(base_SP, other_SP, has_seeds=(base_has_seeds, True))
    clear = "clear of zero" if outcome.is_clear_of_zero else "not distinguishable"
    value, low, high, sees = (
        100 * (figure or 0.0)
        for figure in (outcome.delta.value, outcome.delta.low, outcome.delta.high, outcome.design.detectable(ALPHA))
    )
    return f"{value:+.1f} ({low:+.1f} to {high:+.1f}): {clear}; sees {sees:.1f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
