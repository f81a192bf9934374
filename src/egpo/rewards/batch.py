"""The scoring of many rows on all cores, and the explanation of each verdict reason."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from egpo.errors import EgpoError, InputError
from egpo.rewards.named import FOREIGN_REASONS, Sample, read_sample, scorer_named
from egpo.rewards.scoring import DATA_SOURCES, REWARDS
from egpo.rewards.verdict import Verdict
from egpo.rewards.worker_pool import CHUNK_ROWS, POOL_REASONS, Outcome, WorkerPool, judge_sample

if TYPE_CHECKING:
    from rich.progress import Progress


def score_many(
    rows: Iterable[Mapping[str, Any] | Sample],
    *,
    workers: int | None = None,
    progress: bool = False,
    pool: WorkerPool | None = None,
) -> list[Verdict]:
    """Return the verdict on every row, in order: the same as `score` gives one by one.

    A row is a dict in verl's parquet format with the response as `response`, or a `Sample`. `workers` processes share
    the rows (None: one per core; 0: this process judges them itself). A row that kills its worker gets `failed=True`
    and the reason `worker_died`; other rows are not affected. `progress` shows a bar on stderr. `pool` is a
    `WorkerPool` whose processes are kept for the next batch; `workers` is then ignored.
    """
    samples = [read_sample(row, f"row {index}") for index, row in enumerate(rows)]
    num_workers = pool.num_workers if pool else count_workers(workers)
    # At least four chunks per worker: otherwise a short batch would keep one worker busy and the others idle.
    chunk_rows = max(1, min(CHUNK_ROWS, len(samples) // (4 * max(num_workers, 1))))
    verdicts: list[Verdict] = []
    with _bar(len(samples), progress) as bar:
        stream = (
            pool.judge(samples, chunk_rows)
            if pool
            else score_stream(samples, workers=num_workers, chunk_rows=chunk_rows)
        )
        for outcome in stream:
            if isinstance(outcome, EgpoError):
                raise placed(outcome, f"row {len(verdicts)}") from outcome
            verdicts.append(outcome[0])
            if bar is not None:
                bar.advance(bar.task_ids[0])
    return verdicts


def score_stream(
    samples: Iterable[Sample],
    *,
    rewards: Sequence[str | None] = (None,),
    workers: int = 0,
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[Outcome]:
    """Yield for each sample, in order, the verdicts of all `rewards` (None: the reward of the sample's data source), or
    the error that one of them raised. An exception raised by the iterable `samples` is not caught."""
    if not workers:
        scorers = [scorer_named(name) for name in rewards]
        yield from (judge_sample(sample, scorers) for sample in samples)
        return
    with WorkerPool(workers, rewards) as pool:
        yield from pool.judge(samples, chunk_rows)


def count_workers(workers: int | None) -> int:
    """Return the number of workers. None: one for each core that this process may use."""
    if workers is None:
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity else os.cpu_count() or 1
    if workers < 0:
        raise InputError(f"the number of workers is {workers}", where="rewards", fix="give 0 or more workers")
    return workers


def placed(error: EgpoError, where: str) -> EgpoError:
    """Return an error of the same type and message, whose place starts with `where`, such as a row number."""
    fault = error.faults[0]
    return type(error)(fault.what, where=f"{where}, {fault.where}" if fault.where else where, fix=fault.fix)


def _bar(total: int, shown: bool) -> AbstractContextManager["Progress | None"]:
    if not shown:
        return nullcontext()
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True))
    bar.add_task("judging", total=total)
    return bar


BATCH_REASONS = {**POOL_REASONS, **FOREIGN_REASONS}
"""Reasons that no built-in reward gives: those of worker processes and of users' reward functions."""


def meaning_of(reason: str, judges: Iterable[str]) -> str:
    """Return the explanation of a verdict reason; "" for a reason that only a user's own function gives.

    `judges`: the rewards that may have given the reason, as data sources or names of rewards, with or without @MODE.
    If they explain it differently, the explanations are joined by " / ".
    """
    names = [judge.partition("@")[0] for judge in judges]
    kinds = [REWARDS[DATA_SOURCES.get(name, name)] for name in names if name in DATA_SOURCES or name in REWARDS]
    found = dict.fromkeys(kind.reasons[reason] for kind in kinds if reason in kind.reasons)
    return " / ".join(found) or BATCH_REASONS.get(reason, "")
