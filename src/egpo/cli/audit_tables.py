"""The tables and the JSON that `egpo audit rewards` and `egpo audit episodes` print."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from egpo.audits import Audit, Difference, EpisodeAudit, Tally
from egpo.audits.stored_episodes import LEFT_OUT
from egpo.cli.tables import cell, excerpt, safe_table
from egpo.rewards import DATA_SOURCES, Verdict
from egpo.rewards.batch import meaning_of
from egpo.rewards.sandbox import sandbox_status

_MOST_LINES = 8


def print_audit(done: Audit, reward: str | None, against: str | None) -> None:
    name = reward or "each row's own"
    console = Console()
    titles = [("all rows", done.ours), *sorted(done.sources.items())] if len(done.sources) > 1 else []
    tallies = titles or [(next(iter(done.sources)) or name, done.ours)]
    columns = ("data source", "rows", "accuracy", "mean reward", "failed")
    console.print(safe_table(f"reward: {name}", columns, [_tally_row(*named) for named in tallies]))
    if done.run_mode is not None:
        console.print(
            f"reward mode: `{done.run_mode.mode}`, as in {done.run_mode.config}; choose another with --reward NAME@MODE"
        )
    console.print(_reasons_table(done.ours, [reward] if reward else list(done.sources)))
    if tier := sandbox_in_force(done, reward):
        console.print(f"programs ran in: {tier}")
    if done.theirs is None:
        return
    both = [_tally_row(name, done.ours), _tally_row(str(against), done.theirs)]
    console.print(safe_table("comparison", ("reward", *columns[1:]), both))
    same = done.ours.rows - done.num_different
    console.print(f"{same:,} rows agree, {done.num_different:,} differ")
    if done.differences:
        console.print(_differences_table(done, name, str(against)))


def _tally_row(name: str, tally: Tally) -> tuple[str, ...]:
    return (name, f"{tally.rows:,}", f"{tally.accuracy:.4f}", f"{tally.mean_reward:.4f}", f"{tally.failed:,}")


def _reasons_table(tally: Tally, judges: Sequence[str]) -> Table:
    rows = [
        (reason, meaning_of(reason, judges), f"{count:,}", f"{count / tally.rows:.1%}")
        for reason, count in tally.reasons.most_common()
    ]
    return safe_table("reasons", ("reason", "meaning", "rows", "share"), rows, num_text=2)


def _differences_table(done: Audit, reward: str, against: str) -> Table:
    shown = len(done.differences)
    title = f"rows that differ ({shown:,} of {done.num_different:,})"
    rows = [
        (str(one.index), _verdict_text(one.ours), _verdict_text(one.theirs), excerpt(one.response))
        for one in done.differences
    ]
    return safe_table(title, ("row", reward, against, "end of the response"), rows, num_text=4)


def _verdict_text(verdict: Verdict) -> str:
    return f"{verdict.reward:g} {verdict.reason}{' (failed)' if verdict.failed else ''}"


def sandbox_in_force(done: Audit, reward: str | None) -> str | None:
    """Return a description of the sandbox in which programs ran; None if the rewards run no programs."""
    judges = [reward] if reward else list(done.sources)
    names = [judge.partition("@")[0] for judge in judges]
    if not {DATA_SOURCES.get(name, name) for name in names} & {"code", "hybrid"}:
        return None
    status = sandbox_status()
    return f"{status.tier} ({status.detail})" if status.ok else f"none ({status.detail})"


def as_json_value(done: Audit, reward: str | None, against: str | None) -> dict[str, Any]:
    told: dict[str, Any] = {
        **_tally_json(done.ours),
        "sources": {name: _tally_json(tally) for name, tally in sorted(done.sources.items())},
        "sandbox": sandbox_in_force(done, reward),
        "mode": None if done.run_mode is None else done.run_mode.mode,
    }
    if done.theirs is not None:
        told["against"] = {"reward": against, **_tally_json(done.theirs)}
        told["agree"], told["differ"] = done.ours.rows - done.num_different, done.num_different
        told["differences"] = [_difference_json(one) for one in done.differences]
    return told


def _tally_json(tally: Tally) -> dict[str, Any]:
    return {
        "rows": tally.rows,
        "accuracy": tally.accuracy if tally.judged else None,
        "mean_reward": tally.mean_reward if tally.judged else None,
        "correct": tally.correct,
        "failed": tally.failed,
        "reasons": dict(tally.reasons.most_common()),
    }


def _difference_json(one: Difference) -> dict[str, Any]:
    def told(verdict: Verdict) -> dict[str, Any]:
        shown = ("reward", "correct", "reason", "failed")
        return {name: getattr(verdict, name) for name in shown}

    return {
        "index": one.index,
        "where": one.where,
        "ours": told(one.ours),
        "theirs": told(one.theirs),
        "excerpt": one.response[-200:],
    }


def print_episodes(done: EpisodeAudit) -> None:
    console = Console(highlight=False, emoji=False)
    rows = [(name, f"{count:,}") for name, count in done.environments.most_common()]
    console.print(safe_table("", ("environment", "episodes"), rows))
    for name, count in done.left_out.most_common():
        console.print(f"{count:,} left out: {LEFT_OUT[name]}")
    if done.not_named:
        words = " ".join(f"--environment {cell(name)}" for name in sorted(done.not_named))
        console.print(f"to play them too, and run their code: {words}", soft_wrap=True)
    if done.num_single:
        console.print(f"{done.num_single:,} records are not episodes")
    played = done.num_same + done.num_different
    console.print(
        f"{played:,} episodes were played again: {done.num_same:,} as recorded, {done.num_different:,} differ"
    )
    for one in done.different:
        console.print(f"\n{cell(one.where)} ({cell(one.environment)})", soft_wrap=True)
        for line in one.differences[:_MOST_LINES]:
            console.print(f"  {cell(line)}", soft_wrap=True)


def episodes_as_json(done: EpisodeAudit) -> dict[str, Any]:
    return {
        "episodes": done.num_episodes,
        "environments": dict(done.environments.most_common()),
        "same": done.num_same,
        "different": done.num_different,
        "left_out": dict(done.left_out.most_common()),
        "not_named": sorted(done.not_named),
        "not_episodes": done.num_single,
        "differences": [
            {"where": one.where, "environment": one.environment, "differences": list(one.differences)}
            for one in done.different
        ],
    }
