"""Many rows at once, on every core.

What every reason means, whichever part of the rewards gave it.
"""

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
    crew: WorkerPool | None = None,
) -> list[Verdict]:
    """The verdict on every row, in order: the same as `score` gives one by one.

    A row is a dict in verl's parquet shape with the response as `response`, or a `Sample`. `workers` processes share
    them (None: one a core; 0: this process judges them itself). A row that kills its worker gets `failed=True` and the
    reason `worker_died`, and costs no other row. `progress` shows a bar on stderr. `crew` is one whose processes
    stay for the next batch, in place of `workers` that start and end with this one.
    """
    samples = [read_sample(row, f"row {index}") for index, row in enumerate(rows)]
    num_workers = crew.num_workers if crew else count_workers(workers)
    # Four chunks a worker at least, or a short batch would have one worker busy and the others idle.
    chunk_rows = max(1, min(CHUNK_ROWS, len(samples) // (4 * max(num_workers, 1))))
    verdicts: list[Verdict] = []
    with _bar(len(samples), progress) as bar:
        stream = (
            crew.judge(samples, chunk_rows)
            if crew
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
    """For each sample a verdict of each of the named rewards (None: that of its data source), or the error that one
    raised, in order and as they come in. What `samples` itself raises comes through."""
    if not workers:
        scorers = [scorer_named(name) for name in rewards]
        yield from (judge_sample(sample, scorers) for sample in samples)
        return
    with WorkerPool(workers, rewards) as crew:
        yield from crew.judge(samples, chunk_rows)


def count_workers(workers: int | None) -> int:
    """None: a worker for every core that this process may use."""
    if workers is None:
        affinity = getattr(os, "sched_getaffinity", None)
        return len(affinity(0)) if affinity else os.cpu_count() or 1
    if workers < 0:
        raise InputError(f"{workers} workers", where="rewards", fix="give 0 or more")
    return workers


def placed(error: EgpoError, where: str) -> EgpoError:
    """The same error, with the row it is about."""
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
"""Reasons that no reward gives itself: of batches, and of rewards from outside."""


def meaning_of(reason: str, judges: Iterable[str]) -> str:
    """Its meaning to those of the judges (data sources or kinds, with or without @mode) that know it.

    "" for a reason that only the author of a reward from outside knows.
    """
    names = [judge.partition("@")[0] for judge in judges]
    kinds = [REWARDS[DATA_SOURCES.get(name, name)] for name in names if name in DATA_SOURCES or name in REWARDS]
    found = dict.fromkeys(kind.reasons[reason] for kind in kinds if reason in kind.reasons)
    return " / ".join(found) or BATCH_REASONS.get(reason, "")
