"""`egpo report`: read the runs, fill the page, write the file."""

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from egpo.errors import InputError
from egpo.files import write_atomically
from egpo.reports.charts import chart_data
from egpo.reports.comparison import read_comparisons
from egpo.reports.curves import ReportedRun, read_runs
from egpo.reports.evaluations import ShownEvaluation, evaluation_tables, read_evaluations
from egpo.reports.overview import notes_by_rule, origin_table, overview, settings_table
from egpo.reports.page import Page, render_page
from egpo.reports.pass_rates import read_probes
from egpo.reports.responses import Responses, embed_responses
from egpo.reports.verdict import verdicts_of
from egpo.runs.folder import RunFolder

BUDGET_MB = 5.0
"""Largest size of a page by default, in megabytes (1,000,000 bytes)."""
_TRIES = 4


def write_report(paths: Sequence[Path], out: Path | None = None, budget_mb: float = BUDGET_MB) -> Path:
    """Write the report of some runs, and of comparisons given as JSON files. Return its path.

    An unfinished run is shown up to its last step. Without `out` the page of one run is `report.html` in its folder,
    and the page of several is `report.html` in the folder that contains them all.
    """
    target = out or _default_place([path for path in paths if not _is_comparison(path)] or paths)
    content = render_report(paths, budget_mb)
    try:
        write_atomically(target, content)
    except OSError as error:
        raise InputError(
            f"the report cannot be written ({error.strerror or error})",
            where=str(target),
            fix="choose a file in an existing, writable folder: --out FILE",
        ) from error
    return target


def render_report(paths: Sequence[Path], budget_mb: float = BUDGET_MB, *, live: bool = False) -> bytes:
    """Return the HTML report on these runs and comparisons, encoded in UTF-8, of at most `budget_mb` megabytes.

    The page without responses comes first; responses are selected for the bytes that it leaves. InputError if the page
    is too large without any.
    """
    runs = read_runs([path for path in paths if not _is_comparison(path)])
    evaluations = read_evaluations(runs)
    page = Page(
        title=_title(runs),
        time=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        budget_mb=budget_mb,
        verdicts=verdicts_of(runs, evaluations),
        overview=overview(runs),
        evaluations=evaluation_tables(evaluations),
        comparisons=read_comparisons([path for path in paths if _is_comparison(path)], runs),
        probes=read_probes(runs),
        notes=notes_by_rule(runs),
        settings=settings_table(runs),
        origin=origin_table(runs),
        charts=chart_data(runs, budget_mb),
        live=live,
    )
    return _with_responses(page, runs, evaluations)


def _with_responses(page: Page, runs: Sequence[ReportedRun], evaluations: Sequence[ShownEvaluation]) -> bytes:
    """Render the page with as many responses as fit. A group is kept at least in part, so the first try may be too
    large: later ones have fewer bytes, and the last has no responses."""
    budget = int(1e6 * page.budget_mb)
    room = budget - len(_encoded(page))
    if room < 0:
        what = f"the page takes {(budget - room) / 1e6:.1f} MB without any responses, more than {page.budget_mb:g} MB"
        raise InputError(what, where="egpo report", fix="give a larger --budget, or fewer runs")
    share = room
    for _ in range(_TRIES):
        content = _encoded(replace(page, responses=embed_responses(runs, evaluations, share)))
        if len(content) <= budget:
            return content
        share = max(0, share - 2 * (len(content) - budget))
    return _encoded(replace(page, responses=Responses(left_out_all=True)))


def _encoded(page: Page) -> bytes:
    # UTF-8 cannot encode a lone surrogate: it becomes a JSON escape. Only the JSON blocks can contain one.
    return render_page(page).encode("utf-8", "backslashreplace")


def _title(runs: Sequence[ReportedRun]) -> str:
    names = [run.name for run in runs]
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])} and {len(names) - 3} more"


def _is_comparison(path: Path) -> bool:
    return path.suffix == ".json" and not path.is_dir()


def _default_place(paths: Sequence[Path]) -> Path:
    folders = list(dict.fromkeys(path.resolve() for path in paths))
    if len(folders) == 1:
        return RunFolder(paths[0]).report
    return Path(os.path.commonpath([folder.parent for folder in folders])) / "report.html"
