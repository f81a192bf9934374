"""Three seeds of each estimator on Countdown, against the base: the table of docs/results.md.

    python -m recipes.countdown_seeds FOLDER

FOLDER holds evaluations as `egpo eval --out` writes them: `sampled_NAME/*.json` and `greedy_NAME/*.json`, where NAME is
`egpo-tiny` or `ESTIMATOR-SEED`. Intervals are of a bootstrap over training seeds and, within them, over problems: a
gain that one lucky seed brought is not clear of zero. E estimators, S seeds, P problems.
"""

import sys
from pathlib import Path

import numpy as np

from egpo.evals.store import read_evaluation
from egpo.evals.tallies import pass_at_k_by_problem, tally_problems

ESTIMATORS = ("grpo", "egpo", "egpo_calibrated")
RESAMPLES = 10_000


def accuracies(folder: Path, name: str) -> dict[str, float]:
    """By problem."""
    (path,) = (folder / name).glob("*.json")
    return pass_at_k_by_problem(tally_problems(read_evaluation(path).samples), 1)


def table_SP(folder: Path, kind: str, name: str, keys: list[str]) -> np.ndarray:
    """A row a seed; the base has one, without a number."""
    names = sorted(path.name for path in folder.glob(f"{kind}_{name}-[0-9]"))
    rows = [accuracies(folder, each) for each in names or [f"{kind}_{name}"]]
    return np.array([[row[key] for key in keys] for row in rows])


def interval(ours_SP: np.ndarray, theirs_SP: np.ndarray, rng: np.random.Generator) -> tuple[float, float]:
    """Of the difference of means, 95 %: problems are shared by both sides, seeds are not."""
    differences = []
    for _ in range(RESAMPLES):
        problems = rng.integers(ours_SP.shape[1], size=ours_SP.shape[1])
        means = [side[rng.integers(len(side), size=len(side))][:, problems].mean() for side in (ours_SP, theirs_SP)]
        differences.append(means[0] - means[1])
    low, high = np.quantile(differences, [0.025, 0.975])
    return float(low), float(high)


def main(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for kind in ("sampled", "greedy"):
        keys = sorted(accuracies(folder, f"{kind}_egpo-tiny"))
        tables = {name: table_SP(folder, kind, name, keys) for name in ("egpo-tiny", *ESTIMATORS)}
        print(f"\n{kind}, {len(keys)} problems; base {100 * tables['egpo-tiny'].mean():.1f} %")
        for name in ESTIMATORS:
            seeds = ", ".join(f"{100 * row.mean():.1f}" for row in tables[name])
            _say(name, f"{100 * tables[name].mean():.1f} % (seeds {seeds})", tables[name], tables["egpo-tiny"], rng)
        for i, name in enumerate(ESTIMATORS):
            for other in ESTIMATORS[i + 1 :]:
                _say(f"{other} - {name}", "", tables[other], tables[name], rng)


def _say(name: str, figures: str, ours_SP: np.ndarray, theirs_SP: np.ndarray, rng: np.random.Generator) -> None:
    low, high = interval(ours_SP, theirs_SP, rng)
    clear = "clear of zero" if low > 0 or high < 0 else "not distinguishable"
    difference = 100 * (ours_SP.mean() - theirs_SP.mean())
    print(f"  {name:26} {figures:36} {difference:+.1f} ({100 * low:+.1f} to {100 * high:+.1f}): {clear}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
