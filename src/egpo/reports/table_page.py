"""A table as a page of its own, in the style of the report."""

from collections.abc import Sequence
from datetime import UTC, datetime

from markupsafe import Markup

from egpo.reports.page import ENVIRONMENT, content_policy, web_file
from egpo.version import __version__


def render_table_page(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """One file that loads nothing; cells are text, whatever they hold."""
    style = web_file("style.css")
    page: str = ENVIRONMENT.get_template("table.html.jinja").render(
        title=title,
        columns=columns,
        rows=rows,
        time=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=__version__,
        policy=content_policy(style),
        style=Markup(style),
    )
    return page
