"""Judge transformed answers with known verdicts, and responses that try to make their own verdict `failed`.

    python -m tests.faults.rewards                        everything: half an hour on two cores
    python -m tests.faults.rewards transformations math   a part: transformations, attacks or programs, and tasks
    python -m tests.faults.rewards --out results.json     also write the counts as JSON

The real GSM8K is used if its folder is there (`--gsm8k`, default `../shared/data/gsm8k`), and BFCL's cases if
`.env-bfcl` is built; else generated problems. Exit code 1 if a wrong answer was judged right, or a verdict is `failed`.
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from egpo.rewards.math import MathPool, use_pool
from tests.faults import attacks, hostile_programs
from tests.faults.transformations import Tally, calls, equations, formulas, judge_all, numbers, programs

ROOT = Path(__file__).resolve().parents[2]
GSM8K = ROOT / "../shared/data/gsm8k"
NUM_PARTS = 8
ATTEMPTS = {"math": 60, "hybrid": 4} | dict.fromkeys(
    ("gsm8k", "countdown", "tool calls", "BFCL's answers", "no call expected", "toolbox"), 200
)
"""Attempts of each strategy by reward. Math and hybrid start a process again for each answer that exhausts it."""
TASKS = ("gsm8k", "math", "tool calls", "BFCL", "countdown", "code")


@cache
def _pool() -> MathPool:
    """Return the one worker of this process. The hybrid reward uses it too."""
    pool = MathPool(size=1)
    use_pool(pool)
    return pool


@dataclass(frozen=True)
class Part:
    """A part of the work for one process: ground truths of a task from `start` on, every `step`-th."""

    task: str
    start: int
    step: int
    gsm8k: Path | None
    count: int | None = None


def transformed(part: Part) -> Tally:
    """Judge the transformations of every ground truth of a part."""
    own = slice(part.start, None, part.step)
    if part.task == "gsm8k":
        truths: list[Any] = numbers.truths(part.gsm8k, part.count)
        return judge_all("GSM8K", truths[own], lambda _: numbers.TRANSFORMATIONS, numbers.judge)
    if part.task == "math":
        truths = formulas.truths(part.count or 1_000)
        return judge_all("math", truths[own], formulas.transformations, formulas.judge_with(_pool()))
    if part.task == "countdown":
        truths = equations.truths(part.count or 2_000)
        return judge_all("Countdown", truths[own], lambda _: equations.TRANSFORMATIONS, equations.judge)
    if part.task == "code":
        truths = programs.truths(part.count or 24)
        return judge_all("code", truths[own], lambda _: programs.TRANSFORMATIONS, programs.judge)
    truths = [truth for truth in calls.truths(part.count) if truth.answers or part.task == "tool calls"]
    rule, judge = (
        (calls.EXACT, calls.judge_exact) if part.task == "tool calls" else (calls.BFCL, calls.judge_by_answers)
    )
    return judge_all(f"tool calls, {rule}", truths[own], lambda _: calls.BY_RULE[rule], judge)


@dataclass
class Attacked:
    """The outcomes of the attempts of one strategy."""

    strategy: str
    attempts: Counter[str] = field(default_factory=Counter)
    right: int = 0
    exhausted: int = 0
    slowest_s: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def note(self, reward: str, seconds: float, body: str, verdict: Any) -> None:
        self.attempts[reward] += 1
        self.right += verdict.correct
        self.exhausted += verdict.reason == "exhausts_checker"
        self.slowest_s[reward] = max(self.slowest_s.get(reward, 0.0), seconds)
        if verdict.failed:
            self.failed.append(f"{reward}: {verdict.reason} on {body[:200]!a} ({len(body)} characters)")


def attack(strategy: str, attempts: dict[str, int] | None = None) -> Attacked:
    """Judge the attempts of one strategy by every reward. An exception of a reward counts as failed."""
    found = Attacked(strategy)
    for reward, judge in attacks.judges(_pool()).items():
        for number in range((attempts or ATTEMPTS)[reward]):
            rng = random.Random(f"{strategy} {reward} {number}")
            body = attacks.STRATEGIES[strategy](rng)
            start = time.monotonic()
            try:
                verdict = judge(body, rng)
            except Exception as error:  # the boundary of the test: a reward never raises on a response
                found.failed.append(f"{reward}: {type(error).__name__}: {error!s:.100} on {body[:200]!a}")
                continue
            found.note(reward, time.monotonic() - start, body, verdict)
    return found


def attack_sandbox(strategy: str) -> Attacked:
    """Judge the programs of one strategy in the sandbox."""
    found = Attacked(strategy)
    for program, tests in hostile_programs.attempts(strategy):
        start = time.monotonic()
        verdict = hostile_programs.judge(program, tests)
        found.note("code", time.monotonic() - start, program, verdict)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="transformations, attacks, programs; names of tasks")
    parser.add_argument("--gsm8k", type=Path, default=GSM8K)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    chosen = set(arguments.parts)
    whole = not chosen & {"transformations", "attacks", "programs"}
    tasks = [task for task in TASKS if not chosen & set(TASKS) or task in chosen]
    gsm8k = arguments.gsm8k if arguments.gsm8k.is_dir() else None
    console = Console(width=160)
    results: dict[str, Any] = {}
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with multiprocessing.get_context("spawn").Pool(arguments.processes) as pool:
        bad = 0
        if whole or "transformations" in chosen:
            tallies = list(_tallied(pool.imap_unordered, tasks, gsm8k))
            bad += _show_tallies(console, tallies)
            results["transformations"] = [_as_json(tally) for tally in tallies]
        if whole or "attacks" in chosen:
            attacked = list(_announced(pool.imap_unordered(attack, attacks.STRATEGIES, chunksize=1)))
            bad += _show_attacks(console, attacked)
            results["attacks"] = [vars(one) for one in sorted(attacked, key=lambda one: one.strategy)]
        if whole or "programs" in chosen:
            attacked = list(_announced(pool.imap_unordered(attack_sandbox, hostile_programs.STRATEGIES, chunksize=1)))
            bad += _show_attacks(console, attacked)
            results["programs"] = [vars(one) for one in sorted(attacked, key=lambda one: one.strategy)]
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    return 1 if bad else 0


def _tallied(imap: Callable[..., Iterator[Tally]], tasks: list[str], gsm8k: Path | None) -> Iterator[Tally]:
    """Yield the tally of each task, of which several processes judge parts."""
    for task in tasks:
        parts = [Part(task, start, NUM_PARTS, gsm8k) for start in range(NUM_PARTS)]
        whole: Tally | None = None
        for tally in imap(transformed, parts):
            if whole is None:
                whole = tally
            else:
                whole.add(tally)
        assert whole is not None
        print(f"{whole.task}: {whole.judgements:,} judgements", file=sys.stderr, flush=True)
        yield whole


def _announced(attacked: Iterator[Attacked]) -> Iterator[Attacked]:
    for one in attacked:
        print(
            f"{one.strategy}: {one.attempts.total():,} attempts, {len(one.failed)} failed", file=sys.stderr, flush=True
        )
        yield one


def _as_json(tally: Tally) -> dict[str, Any]:
    # Not `asdict`, which cannot copy a Counter.
    return {**vars(tally), "names": sorted(tally.names), "false_positives": tally.false_positives[:50]}


def _show_tallies(console: Console, tallies: list[Tally]) -> int:
    table = Table(
        "task",
        "ground truths",
        "transformations",
        "judgements",
        "right",
        "wrong",
        "refused",
        "undefined",
        "false positives",
        "false negatives",
        "failed",
    )
    for one in tallies:
        counts = [f"{one.by_verdict[verdict]:,}" for verdict in ("right", "wrong", "refused", "undefined")]
        table.add_row(
            one.task,
            f"{one.truths:,}",
            str(len(one.names)),
            f"{one.judgements:,}",
            *counts,
            str(len(one.false_positives)),
            str(one.false_negatives.total()),
            str(len(one.failed)),
        )
    console.print(table)
    for one in tallies:
        console.print(
            f"{one.task}: false negatives {dict(one.false_negatives)}; refused {dict(one.refused)}", markup=False
        )
        for line in [
            *one.false_positives[:20],
            *one.failed[:20],
            *(line for lines in one.examples.values() for line in lines[:1]),
        ]:
            console.print(f"  {line!a}", markup=False)
    return sum(len(one.false_positives) + len(one.failed) for one in tallies)


def _show_attacks(console: Console, attacked: list[Attacked]) -> int:
    table = Table("strategy", "attempts", "right", "exhausted the checker", "slowest", "failed")
    for one in sorted(attacked, key=lambda one: one.strategy):
        slowest = max(one.slowest_s.items(), key=lambda pair: pair[1], default=("", 0.0))
        table.add_row(
            one.strategy,
            str(one.attempts.total()),
            str(one.right),
            str(one.exhausted),
            f"{slowest[1]:.1f} s ({slowest[0]})",
            str(len(one.failed)),
        )
    console.print(table)
    console.print(f"{sum(one.attempts.total() for one in attacked):,} attempts of {len(attacked)} strategies")
    for one in attacked:
        for line in one.failed[:10]:
            console.print(f"  {one.strategy}: {line}", markup=False)
    return sum(len(one.failed) for one in attacked)


if __name__ == "__main__":
    sys.exit(main())
