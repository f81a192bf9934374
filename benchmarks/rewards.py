"""Measure verdicts per second and core of each reward, interleaved with verl's closest reward on the same strings.

    python -m venv .env-verl-rewards
    .env-verl-rewards/bin/pip install --no-deps -r environments/verl-rewards/requirements.txt
    python benchmarks/rewards.py [--rounds 9] [--problems 64] [--json]

Every round has new problems with eight responses each, like a group: right and nearly right ones, with thinking before
the answer. A ground truth is therefore new once and cached seven times. `per second` is by wall time; `per core` by the
processor time of the process, which other load does not affect (empty for rewards that use other processes). `ratio` is
our rate over verl's by wall time, median and quartiles over the rounds. `agree` is the fraction of responses on which
both verdicts are the same. Without verl's environment only our rates are printed. See benchmarks/sandbox.py for the
sandbox.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from egpo.rewards import score
from egpo.tasks import load_task
from egpo.tasks.mixed import draw_math_problem
from interleaved import Timing, time_interleaved
from sandbox import PROGRAMS, measure

ROOT = Path(__file__).resolve().parents[1]
VERL_PYTHON = ROOT / ".env-verl-rewards" / "bin" / "python"
GROUP = 8
THOUGHT = (
    "Let me see what is asked for, and what is given. I try one way first, notice that it leads nowhere, go back a "
    "step, and take the other way; then I check every number once more before I write the answer down. "
) * 3


@dataclass(frozen=True)
class Item:
    """One response to judge."""

    response: str
    truth: str
    extra: dict[str, str]


@dataclass(frozen=True)
class Case:
    """A reward, how its responses are made, its target rate, and verl's closest rewards."""

    name: str
    source: str
    draw: Callable[[random.Random], Iterator[tuple[str, str, dict[str, str]]]]
    target: int | None = None
    peers: tuple[str, ...] = ()
    in_process: bool = True


def of_task(name: str) -> Callable[[random.Random], Iterator[tuple[str, str, dict[str, str]]]]:
    """Return right answers from the task's own generator."""

    def draw(rng: random.Random) -> Iterator[tuple[str, str, dict[str, str]]]:
        task = load_task(name)
        while True:
            problem = task.draw(rng)
            extra = {key: str(problem.extra[key]) for key in ("tools",) if key in problem.extra}
            yield task.gold(problem), problem.ground_truth, extra

    return draw


def of_math(respell: bool) -> Callable[[random.Random], Iterator[tuple[str, str, dict[str, str]]]]:
    """Return boxed answers, written as the ground truth or in another form that only a computation can judge."""

    def draw(rng: random.Random) -> Iterator[tuple[str, str, dict[str, str]]]:
        while True:
            problem = draw_math_problem(rng)
            answer = f"1 \\cdot {problem.answer}" if respell else problem.answer
            yield f"<think>\n{problem.thought}\n</think>\n\n\\boxed{{{answer}}}", problem.answer, {}

    return draw


CASES = [
    Case("tool calls", "function_calling", of_task("function_calling"), 20_000),
    Case("countdown", "countdown", of_task("countdown"), 50_000),
    Case("gsm8k", "gsm8k", of_task("gsm8k"), None, ("gsm8k",)),
    Case(
        "math, spelled alike", "math", of_math(respell=False), None, ("math_reward", "math_dapo", "math_verify"), False
    ),
    Case("math, spelled otherwise", "math", of_math(respell=True), None, ("math_verify",), False),
]


def batch(case: Case, num_problems: int, seed: int) -> list[Item]:
    """Return groups of eight responses: half right, half with one digit or letter of the answer changed."""
    rng = random.Random(f"{case.name} {seed}")
    golds, items = case.draw(rng), []
    for _ in range(num_problems):
        gold, truth, extra = next(golds)
        for member in range(GROUP):
            thought = THOUGHT[rng.randrange(100) :]
            head, close, answer = gold.rpartition("</think>")
            answer = answer if member % 2 else nearly(answer, rng)
            text = f"{head}{thought}{close}{answer}" if close else f"<think>\n{thought}\n</think>\n\n{answer}"
            items.append(Item(text, truth, extra))
    return items


def nearly(answer: str, rng: random.Random) -> str:
    """Return the answer with its last number changed, or its last quoted word if it has no number."""
    spots = list(re.finditer(r"\d+", answer)) or list(re.finditer(r'(?<=")\w+(?=")', answer))
    if not spots:
        return answer + " 7"
    spot = spots[-1]
    other = str(int(spot[0]) + rng.randint(1, 9)) if spot[0].isdigit() else spot[0] + "s"
    return answer[: spot.start()] + other + answer[spot.end() :]


class Peer:
    """The rewards of verl, which run in another process."""

    def __init__(self, python: Path) -> None:
        command = [str(python), str(Path(__file__).with_name("_verl_peer.py"))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._num_loaded = 0

    def load(self, reward: str, items: list[Item]) -> tuple[int, list[float]]:
        """Load a batch. Returns its number and verl's scores."""
        scores = self._ask({"reward": reward, "pairs": [[item.response, item.truth] for item in items]})
        self._num_loaded += 1
        return self._num_loaded - 1, scores

    def run(self, index: int) -> None:
        self._ask({"run": index})

    def _ask(self, request: dict) -> object:
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)


@dataclass(frozen=True)
class Line:
    """One row of the printed table: the rates of one reward."""

    reward: str
    verdicts_per_second: float
    verdicts_per_core_second: float | None
    target: int | None
    right_frac: float
    verl: str = ""
    verl_verdicts_per_second: float | None = None
    ratio: str = ""
    agree_frac: float | None = None


@dataclass
class Ours:
    """Our verdicts on the batches in turn, and the processor time of each turn."""

    case: Case
    batches: Iterator[list[Item]]
    rights: list[bool] = field(default_factory=list)
    processor_s: list[float] = field(default_factory=list)

    def __call__(self) -> None:
        items, start = next(self.batches), time.process_time()
        source = self.case.source
        rights = [score(source, item.response, item.truth, item.extra).correct for item in items]
        self.processor_s.append(time.process_time() - start)
        self.rights += rights


def run_case(case: Case, peer: Peer | None, rounds: int, num_problems: int) -> list[Line]:
    batches = [batch(case, num_problems, seed) for seed in range(rounds + 1)]
    ours, scores = Ours(case, iter(batches)), {}
    contenders: dict[str, Callable[[], None]] = {"ours": ours}
    for reward in case.peers if peer else ():
        loaded = [peer.load(reward, items) for items in batches]
        scores[reward] = [value for _, values in loaded for value in values]
        indices = iter([index for index, _ in loaded])
        contenders[reward] = lambda indices=indices: peer.run(next(indices))
    timings = time_interleaved(contenders, rounds)
    size = num_problems * GROUP
    per_core = size / statistics.median(ours.processor_s[1:]) if case.in_process else None
    right_frac = sum(ours.rights) / len(ours.rights)
    alone = Line(case.name, size / timings["ours"].median_s, per_core, case.target, right_frac)
    return [compared(alone, reward, timings, ours.rights, scores[reward]) for reward in scores] or [alone]


def compared(alone: Line, reward: str, timings: dict[str, Timing], rights: list[bool], scores: list[float]) -> Line:
    agree = sum(right == (value >= 1) for right, value in zip(rights, scores, strict=True)) / len(rights)
    ratio = timings[reward].over(timings["ours"])
    rate = alone.verdicts_per_second * timings["ours"].median_s / timings[reward].median_s
    return replace(alone, verl=reward, verl_verdicts_per_second=rate, ratio=str(ratio), agree_frac=agree)


def print_table(lines: list[Line]) -> None:
    titles = f"{'reward':25s}{'per second':>12s}{'per core':>12s}{'target':>9s}{'right':>7s}"
    print(f"{titles}   {'verl':13s}{'per second':>12s}   ratio, agree")
    for line in lines:
        rates = (line.verdicts_per_second, line.verdicts_per_core_second)
        told = f"{line.reward:25s}" + "".join(f"{f'{rate:,.0f}' if rate else '-':>12s}" for rate in rates)
        told += f"{f'{line.target:,}' if line.target else '-':>9s}{line.right_frac:7.2f}   "
        if line.verl:
            told += f"{line.verl:13s}{line.verl_verdicts_per_second:12,.0f}   {line.ratio}, {line.agree_frac:.3f}"
        print(told.rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--problems", type=int, default=64, help="number of problems per round, with eight responses each"
    )
    parser.add_argument("--verl-python", type=Path, default=VERL_PYTHON)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    peer = Peer(options.verl_python) if options.verl_python.exists() else None
    if peer is None:
        print(f"not compared with verl: {options.verl_python} is missing, see --help", file=sys.stderr)
    lines = [line for case in CASES for line in run_case(case, peer, options.rounds, options.problems)]
    if peer is not None:
        peer.close()
    program = "add two numbers, 1 test"
    sandbox = measure(*PROGRAMS[program], rounds=20, workers=1)
    if options.json:
        print(json.dumps({"rewards": [asdict(line) for line in lines], "sandbox": sandbox}, indent=2))
        return
    print_table(lines)
    print(
        f"sandbox ({program}): {sandbox['programs_per_second_and_core']:.0f} programs/s/core, "
        f"{sandbox['processor_ratio']:.2f} times the processor time of a bare interpreter (target 1.5; "
        "benchmarks/sandbox.py measures it with all cores busy)"
    )


if __name__ == "__main__":
    main()
