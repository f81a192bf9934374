"""Bound the gain of exact speculative rollouts in a finished run, from its recorded responses. No model runs.

    egpo train countdown_tiny task.settings.train=64 watch.rollouts_every=1 name=repeated
    python benchmarks/speculation.py runs/repeated [--drafted 4,8] [--rows 256] [--sampling-share 0.6]

Without a run, a small one is trained first. A draft is the next tokens after the longest suffix of the response that
occurs in an earlier response to the same problem (`recent`: the latest occurrence; `majority`: at each place the token
that followed most often; `oracle`: the occurrence that happens to fit best, which no real draft can beat). One pass
of the model verifies a draft. It is exact if a drafted token is accepted only where the sampler would have drawn it:
the draw is a function of seed, step, problem, sample and position, so the recorded response is what would have been
drawn, and the accepted tokens can be counted without a model. A pass yields them and the token after them.

For each draft and length it prints the passes as a share of the tokens, for all rows (finished rows make room for
others) and for the slowest row of each step (the batch waits for it), and the largest possible speed-up of sampling
and of the whole step. It compares tokens at `TOKEN_MS` with passes of the same rows, in which attention reads its cache
once, and the products of the layers grow with the drafted rows beyond `FREE_ROWS`, without the cost of making drafts.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from egpo.config import load_config
from egpo.engines import train
from egpo.runs.dump import read_dump
from egpo.runs.folder import RunFolder

TOKEN_MS = {"attention": 2.40, "products": 0.78, "rest": 0.72}
"""Milliseconds of a token of 256 rows (0.6B, one H200): attention over the cache, products of the layers, the rest."""
FREE_ROWS = 300
"""Rows up to which the products of a token cost the same: they wait for the weights."""
MOST_CONTEXT = 12
"""Longest suffix that is looked up, in tokens."""
START = "\0start"
Response = tuple[str, ...]


@dataclass(frozen=True)
class Passes:
    """The passes for one response, the drafted tokens that they verified, and the tokens of the response."""

    count: int
    drafted: int
    tokens: int


@dataclass(frozen=True)
class StepCount:
    """All responses of a step, in passes."""

    step: int
    rows: tuple[Passes, ...]
    repeated: float

    @property
    def tokens(self) -> int:
        return sum(row.tokens for row in self.rows)

    @property
    def passes(self) -> int:
        return sum(row.count for row in self.rows)

    @property
    def drafted(self) -> int:
        return sum(row.drafted for row in self.rows)

    @property
    def slowest(self) -> float:
        """Passes of the slowest row, as a share of the tokens of the longest."""
        return max(row.count for row in self.rows) / max(row.tokens for row in self.rows)


class History:
    """The earlier responses to a problem: for each context of up to `MOST_CONTEXT` tokens, where it occurs."""

    def __init__(self) -> None:
        self.responses: list[Response] = []
        self._places: dict[Response, list[tuple[int, int]]] = defaultdict(list)

    def add(self, response: Response) -> None:
        number, marked = len(self.responses), (START, *response)
        self.responses.append(response)
        for end in range(1, len(marked)):
            for length in range(1, min(end, MOST_CONTEXT) + 1):
                self._places[marked[end - length : end]].append((number, end - 1))

    def continuations(self, before: Response) -> list[Response]:
        """Return what followed the longest suffix of `before` that occurs, the latest last."""
        marked = (START, *before)
        for length in range(min(len(marked), MOST_CONTEXT), 0, -1):
            if found := self._places.get(marked[-length:]):
                return [self.responses[number][at:] for number, at in found]
        return []


def recent(history: History, before: Response, truth: Response, k: int) -> Response:
    found = history.continuations(before)
    return found[-1][:k] if found else ()


def majority(history: History, before: Response, truth: Response, k: int) -> Response:
    left, draft = history.continuations(before), []
    while left and len(draft) < k:
        counted = Counter(one[len(draft)] for one in left if len(one) > len(draft))
        if not counted:
            break
        draft.append(counted.most_common(1)[0][0])
        left = [one for one in left if len(one) >= len(draft) and one[len(draft) - 1] == draft[-1]]
    return tuple(draft)


def oracle(history: History, before: Response, truth: Response, k: int) -> Response:
    found = history.continuations(before)
    return max((one[:k] for one in found), key=lambda draft: num_equal(draft, truth), default=())


Drafter = Callable[[History, Response, Response, int], Response]
DRAFTERS: dict[str, Drafter] = {"recent": recent, "majority": majority, "oracle": oracle}


def num_equal(draft: Sequence[str], truth: Sequence[str]) -> int:
    """Return how many leading tokens are equal."""
    return next((at for at, (one, two) in enumerate(zip(draft, truth, strict=False)) if one != two),
                min(len(draft), len(truth)))  # fmt: skip


def passes_for(response: Response, history: History | None, drafter: Drafter, k: int) -> Passes:
    at = count = drafted = 0
    while at < len(response):
        draft = () if history is None else drafter(history, response[:at], response[at:], k)
        count, drafted = count + 1, drafted + len(draft)
        at += num_equal(draft, response[at:]) + 1
    return Passes(count, drafted, len(response))


def counted_steps(run: RunFolder, drafter: Drafter, k: int) -> Iterator[StepCount]:
    """Yield the counts of every step. The drafts of a step come from earlier steps."""
    histories: dict[str, History] = {}
    for step in sorted(int(path.stem.removeprefix("step_")) for path in run.rollouts.glob("step_*.jsonl")):
        records = [record for record in read_dump(run.rollouts_of(step)) if record.tokens]
        rows = [(record.problem, tuple(record.tokens)) for record in records]
        known = sum(problem in histories for problem, _ in rows) / len(rows)
        yield StepCount(step, tuple(passes_for(one, histories.get(key), drafter, k) for key, one in rows), known)
        for key, one in rows:
            histories.setdefault(key, History()).add(one)


@dataclass(frozen=True)
class Gain:
    """The gain from drafts: shares of passes, and bounds of the speed-up."""

    repeated: float
    accepted: float
    passes: float
    slowest: float
    sampling: float
    step: float


def gain(steps: Sequence[StepCount], rows: int, sampling_share: float) -> Gain:
    tokens, passes = sum(one.tokens for one in steps), sum(one.passes for one in steps)
    verified = (passes + sum(one.drafted for one in steps)) / passes
    crowded = max(1.0, rows * verified / FREE_ROWS) / max(1.0, rows / FREE_ROWS)
    cost = (TOKEN_MS["attention"] + TOKEN_MS["rest"] + TOKEN_MS["products"] * crowded) / sum(TOKEN_MS.values())
    sampling = tokens / passes / cost
    slowest = sum(one.slowest for one in steps) / len(steps)
    repeated = sum(one.repeated for one in steps) / len(steps)
    step = 1 / (1 - sampling_share + sampling_share / sampling)
    return Gain(repeated, tokens / passes - 1, passes / tokens, slowest, sampling, step)


def show(run: RunFolder, drafted: Sequence[int], rows: int, sampling_share: float, console: Console) -> None:
    table = Table(title=str(run.path), box=None)
    for heading in ("steps", "draft", "k", "repeated", "accepted", "passes", "slowest row", "sampling", "whole step"):
        table.add_column(heading, justify="left" if heading in ("steps", "draft") else "right")
    for name, drafter in DRAFTERS.items():
        for k in drafted:
            steps = list(counted_steps(run, drafter, k))
            for label, part in parts(steps).items():
                won = gain(part, rows, sampling_share)
                table.add_row(label, name, str(k), f"{won.repeated:.0%}", f"{won.accepted:.2f}", f"{won.passes:.2f}",
                              f"{won.slowest:.2f}", f"{won.sampling:.2f}", f"{won.step:.2f}")  # fmt: skip
    console.print(table)


def parts(steps: Sequence[StepCount]) -> dict[str, Sequence[StepCount]]:
    """Return all steps, and the last quarter, in which a run has seen its problems most often."""
    last = steps[-max(1, len(steps) // 4) :]
    return {f"all {len(steps)}": steps, f"{last[0].step} to {last[-1].step}": last}


def small_run(folder: Path) -> RunFolder:
    words = [f"runs={folder}", "name=repeated", "steps=12", "task.settings.train=32", "watch.rollouts_every=1"]
    config = load_config("countdown_tiny", [*words, "validation.every=0", "checkpoints.every=0"])
    train(config, quiet=True)
    return RunFolder(folder / "repeated")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("runs", nargs="*", type=Path, help="run folders; default: train a small one")
    parser.add_argument("--drafted", default="4,8", help="numbers of drafted tokens")
    parser.add_argument("--rows", type=int, default=256, help="rows of the batch for which the bound is computed")
    parser.add_argument("--sampling-share", type=float, default=0.6, help="share of sampling in a whole step")
    arguments = parser.parse_args()
    drafted = [int(word) for word in arguments.drafted.split(",")]
    with TemporaryDirectory() as folder:
        for run in [RunFolder(path) for path in arguments.runs] or [small_run(Path(folder))]:
            show(run, drafted, arguments.rows, arguments.sampling_share, Console(width=120))


if __name__ == "__main__":
    main()
