"""Writes the generated pages of docs/: commands, config, metrics, one page per task, and a table on reliability.

    python -m website.pages           writes those that are not up to date
    python -m website.pages --check   names them, and exits with 1 if there is one

To add a page: a row in PAGES, and a link in docs/README.md.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from egpo.runs.metrics_page import metrics_page
from website.cli_page import cli_page
from website.config_page import config_page
from website.reliability_page import reliability_page
from website.task_pages import TASK_NOTES, task_page

DOCS = Path(__file__).resolve().parents[1] / "docs"

PAGES: dict[str, Callable[[], str]] = {
    "cli.md": cli_page,
    "config.md": config_page,
    "metrics.md": metrics_page,
    "reliability.md": reliability_page,
    **{f"tasks/{name}.md": partial(task_page, name) for name in TASK_NOTES},
}


def outdated() -> list[str]:
    """Return the generated pages whose file is missing or has another text than the source gives now."""
    return [name for name, page in PAGES.items() if not (DOCS / name).is_file() or (DOCS / name).read_text() != page()]


def main() -> int:
    """Write the pages, or with --check say which are outdated. Return the exit code."""
    stale = outdated()
    if "--check" in sys.argv[1:]:
        for name in stale:
            print(f"docs/{name} is not up to date; run: make pages")
        return 1 if stale else 0
    for name in stale:
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(PAGES[name]())
        print(f"wrote docs/{name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
