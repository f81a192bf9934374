"""`egpo report`: read the runs, fill the page, write the file."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from egpo.errors import InputError
from egpo.files import write_atomically
from egpo.reports.charts import chart_data
from egpo.reports.comparison import read_comparisons
from egpo.reports.curves import ReportedRun, read_runs
from egpo.reports.evaluations import evaluation_tables, read_evaluations
from egpo.reports.overview import notes_by_rule, origin_table, overview, settings_table
from egpo.reports.page import Page, render_page
from egpo.reports.pass_rates import read_probes
from egpo.reports.rollouts import embed_rollouts
from egpo.runs.folder import RunFolder


def write_report(paths: Sequence[Path], out: Path | None = None) -> Path:
    """Write the report of some runs, and of comparisons given as JSON files. Return its path.

    An unfinished run is shown up to its last step. Without `out` the page of one run is `report.html` in its folder,
    and the page of several is `report.html` in the folder that contains them all.
    """
    target = out or _default_place([path for path in paths if not _is_comparison(path)] or paths)
    content = render_report(paths)
    try:
        write_atomically(target, content)
    except OSError as error:
        raise InputError(
            f"the report cannot be written ({error.strerror or error})",
            where=str(target),
            fix="choose a file in an existing, writable folder: --out FILE",
        ) from error
    return target


def render_report(paths: Sequence[Path]) -> bytes:
    """Return the HTML report on these runs and comparisons, encoded in UTF-8."""
    runs = read_runs([path for path in paths if not _is_comparison(path)])
    page = Page(
        title=_title(runs),
        time=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        overview=overview(runs),
        evaluations=evaluation_tables(read_evaluations(runs)),
        comparisons=read_comparisons([path for path in paths if _is_comparison(path)], runs),
        probes=read_probes(runs),
        notes=notes_by_rule(runs),
        settings=settings_table(runs),
        origin=origin_table(runs),
        charts=chart_data(runs),
        rollouts=embed_rollouts(runs),
    )
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
