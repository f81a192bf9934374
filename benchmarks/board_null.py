"""How often `egpo board` sees a difference where there is none, and how often it finds one that is there.

    .venv/bin/python benchmarks/board_null.py                  4,000 boards per line, minutes on two cores
    .venv/bin/python benchmarks/board_null.py --boards 400     a quick look

A board has 10 methods, 2 tasks, 3 or 5 seeds and 256 problems of 8 responses. All methods are equal: what differs is
chance, as it is in training. A response to problem p by the run of method m and seed s is right with the log-odds

    difficulty[p] + seed[m, s] + taste[m, p] + run[m, s, p]

A seed moves a whole run, and part of that move is shared by all methods (they draw the same problems in the same
order); a method has a taste in problems; and each run has its own. The share of boards with any false alarm must be at
most 5 %. Two other tests stand beside it: the pooled t-test of `egpo compare`, with the same correction, and a test for
which problems are the only source of chance.
"""

import argparse
import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from statistics import NormalDist

import numpy as np

from egpo.comparisons.outcome import ALPHA, rising_root
from egpo.comparisons.paired_seeds import p_values, variance_terms
from egpo.comparisons.result import holm_in_pairs
from egpo.comparisons.seeds import spread_of

METHODS, TASKS, PROBLEMS, RESPONSES = 10, 2, 256, 8
PAIRS = (METHODS - 1) * TASKS
DIFFICULTY, RUN = 1.5, 0.3
SLOPE = 0.17  # accuracy per unit of log-odds, at this difficulty
BATCH = 50


@dataclass(frozen=True)
class World:
    """How runs vary. `seed_sd`: points of accuracy by which seeds move the runs of each method. `shared`: correlation
    between the runs of two methods with the same seed. `gains`: true differences from the baseline, in points."""

    name: str
    seed_sd: tuple[float, ...] = (2.0,) * METHODS
    shared: float = 0.0
    taste: float = 0.3
    collapse: float = 0.0
    problems: int = PROBLEMS
    responses: int = RESPONSES
    gains: tuple[float, ...] = field(default=(0.0,) * METHODS)


def every(value):
    return (float(value),) * METHODS


SPREAD = tuple(np.geomspace(0.5, 8, METHODS).tolist())
HALF = (0.0,) * 5 + (10.0,) * 5
WORLDS = (
    World("as measured: seeds 1.1 points, correlation 0.7", every(1.1), 0.7),
    World("seeds 2 points, independent", every(2)),
    World("seeds do nothing", every(0)),
    World("seeds 8 points, correlation 0.5", every(8), 0.5),
    World("unequal: 0.5 (baseline) to 8 points", SPREAD),
    World("unequal: 8 (baseline) to 0.5 points", SPREAD[::-1]),
    World("unequal: baseline 1 point, others 5", (1.0, *every(5)[1:])),
    World("strong tastes in problems", every(1.1), 0.7, taste=1.0),
    World("one run in ten collapses", every(2), collapse=0.1),
    World("64 problems, one response each", every(1.1), 0.7, problems=64, responses=1),
    World("five methods are 10 points better", every(2), 0.3, gains=HALF),
)


def accuracies(rng, world, seeds):
    """Return the shares of right responses of one task, for a batch of boards: boards, methods, seeds, problems."""
    size = (BATCH, METHODS, seeds, world.problems)
    scale = np.array(world.seed_sd)[None, :, None, None] / 100 / SLOPE
    common, own = rng.normal(size=(BATCH, 1, seeds, 1)), rng.normal(size=(BATCH, METHODS, seeds, 1))
    moved = scale * (math.sqrt(world.shared) * common + math.sqrt(1 - world.shared) * own)
    logit = moved + DIFFICULTY * rng.normal(size=(BATCH, 1, 1, world.problems))
    logit = logit + world.taste * rng.normal(size=(BATCH, METHODS, 1, world.problems))
    logit = logit + shifts(world)[None, :, None, None]
    logit = logit.astype(np.float32) + np.float32(RUN) * rng.standard_normal(size, dtype=np.float32)
    chance = 1 / (1 + np.exp(-logit))
    if world.collapse:
        chance = chance * (rng.random((BATCH, METHODS, seeds, 1)) >= world.collapse)
    return rng.binomial(world.responses, chance) / world.responses


def shifts(world):
    """Return the log-odds that give each method its true gain in accuracy."""
    quantiles = np.array([NormalDist().inv_cdf((i + 0.5) / 400) for i in range(400)])

    def shift(gain, seed_sd):
        if gain == 0:
            return 0.0
        spread = math.sqrt(DIFFICULTY**2 + RUN**2 + world.taste**2 + (seed_sd / 100 / SLOPE) ** 2) * quantiles
        mean = lambda by: float(np.mean(1 / (1 + np.exp(-(spread + by)))))  # noqa: E731
        return rising_root(lambda by: mean(by) - 0.5 - gain / 100, 0.0, 10.0, tolerance=1e-6)

    return np.array([shift(gain, sd) for gain, sd in zip(world.gains, world.seed_sd, strict=True)])


def paired(base, other):
    difference = (other - base).reshape(-1, *base.shape[-2:])
    found = p_values(difference.mean((1, 2)), variance_terms(difference), base.shape[-2] - 1)
    return found.reshape(base.shape[:-2])


def pooled(base, other):
    deltas = (other - base).mean((-2, -1))
    pairs = zip(base.reshape(-1, *base.shape[-2:]), other.reshape(-1, *other.shape[-2:]), deltas.ravel(), strict=True)
    return np.array([spread_of(one, two).p_value(delta) for one, two, delta in pairs]).reshape(deltas.shape)


def over_problems(base, other):
    difference = (other - base).mean(-2)
    error = difference.std(-1, ddof=1) / math.sqrt(difference.shape[-1])
    z = np.abs(difference.mean(-1)) / np.maximum(error, 1e-12)
    return np.array([2 * NormalDist().cdf(-one) for one in z.ravel()]).reshape(z.shape)


TESTS = {"paired": paired, "pooled": pooled, "problems": over_problems}


def p_values_of_boards(world, seeds, boards, test, random_seed):
    """Return the p-values of all pairs of method and task: boards, pairs."""
    rng = np.random.default_rng(random_seed)
    found = []
    for _ in range(boards // BATCH):
        tasks = [accuracies(rng, world, seeds) for _ in range(TASKS)]
        of_tasks = [TESTS[test](np.broadcast_to(y[:, :1], y[:, 1:].shape), y[:, 1:]) for y in tasks]
        found.append(np.concatenate(of_tasks, axis=1))
    return np.concatenate(found)


def any_false_alarm(p_BK, world):
    """Return the share of boards on which a method is said to differ although it does not."""
    equal = np.array([gain == 0 for gain in world.gains[1:]] * TASKS)
    if equal.all():  # the first claim of Holm's method is the smallest p-value
        return float((p_BK.min(1) * PAIRS < ALPHA).mean())
    alarms = 0
    for row in p_BK:
        adjusted = holm_in_pairs(dict(enumerate(row.tolist())), {}, PAIRS)
        alarms += any(adjusted[pair, 1] < ALPHA and equal[pair] for pair in range(PAIRS))
    return alarms / len(p_BK)


def upper_bound(share, count):
    """Return the upper end of Wilson's 95 % interval."""
    z = NormalDist().inv_cdf(0.975)
    middle = share + z * z / (2 * count)
    reach = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count**2))
    return (middle + reach) / (1 + z * z / count)


def null_line(world, boards):
    """Return a line of the table: the share of boards with a false alarm, and its upper bound."""
    cells = []
    for seeds in (3, 5):
        share = any_false_alarm(p_values_of_boards(world, seeds, boards, "paired", seeds), world)
        cells.append(f"{100 * share:.1f} % (at most {100 * upper_bound(share, boards):.1f})")
    for test in ("pooled", "problems"):
        fewer = max(BATCH, boards // 8)
        cells.append(f"{100 * any_false_alarm(p_values_of_boards(world, 5, fewer, test, 5), world):.0f} %")
    return f"| {world.name} | {' | '.join(cells)} |"


def power_line(world, seeds, boards):
    """Return a line: how often a board finds one method that is 2, 5 or 10 points better on the first task."""
    cells = []
    for gain in (2.0, 5.0, 10.0):
        one = replace(world, gains=(0.0, gain, *(0.0,) * (METHODS - 2)))
        p_BK = p_values_of_boards(one, seeds, max(BATCH, boards // 8), "paired", 7)
        cells.append(f"{100 * (p_BK[:, 0] * PAIRS < ALPHA).mean():.0f} %")
    return f"| {world.name} | {seeds} | {' | '.join(cells)} |"


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--boards", type=int, default=4000)
    options.add_argument("--processes", type=int, default=2)
    chosen = options.parse_args()
    with ProcessPoolExecutor(chosen.processes) as pool:
        nulls = pool.map(null_line, WORLDS, [chosen.boards] * len(WORLDS))
        designs = [(world, seeds) for world in WORLDS[:2] for seeds in (3, 5, 10)]
        powers = [pool.submit(power_line, *design, chosen.boards) for design in designs]
        print(f"Boards with any false alarm: {METHODS} methods, {TASKS} tasks, {chosen.boards:,} boards each\n")
        print("| world | 3 seeds | 5 seeds | pooled t of `egpo compare`, 5 seeds | problems alone, 5 seeds |")
        print("|---|---|---|---|---|")
        for line in nulls:
            print(line, flush=True)
        print(f"\nPower: one method is better; corrected for {PAIRS} pairs\n")
        print("| world | seeds | 2 points | 5 points | 10 points |\n|---|---|---|---|---|")
        for line in powers:
            print(line.result(), flush=True)


if __name__ == "__main__":
    main()
