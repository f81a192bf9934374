"""Render HTML: template, style and script of `web/` in one file that loads nothing from a network."""

import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from egpo.reports.comparison import ComparisonSection
from egpo.reports.evaluations import EvaluationTable
from egpo.reports.overview import Overview, RuleNotes, SettingRow
from egpo.reports.pass_rates import ProbeHistogram
from egpo.reports.response_json import as_json
from egpo.reports.responses import Responses
from egpo.reports.verdict import ExamVerdict
from egpo.version import __version__

SCRIPTS = (
    "elements.js",
    "figures.js",
    "chart.js",
    "export.js",
    "charts.js",
    "tokens.js",
    "episodes.js",
    "responses.js",
    "reader.js",
    "side_by_side.js",
    "browser.js",
    "live.js",
    "start.js",
)
"""Joined in this order into one script: each file may use what is defined in those before it."""


@dataclass(frozen=True)
class Page:
    """The content of a report. `charts` and `responses` are drawn by the script; the rest is plain HTML.

    `budget_mb` is the largest size of the file. `live`: the page is served by `egpo report --live` and reloads itself.
    """

    title: str
    time: str
    budget_mb: float
    verdicts: Sequence[ExamVerdict]
    overview: Overview
    evaluations: Sequence[EvaluationTable]
    comparisons: Sequence[ComparisonSection]
    probes: Sequence[ProbeHistogram]
    notes: Sequence[RuleNotes]
    settings: Sequence[SettingRow]
    origin: Sequence[SettingRow]
    charts: dict[str, Any]
    responses: Responses = field(default_factory=Responses)
    live: bool = False


def render_page(page: Page) -> str:
    """Return the HTML of a report."""
    style = web_file("style.css")
    script = '(() => {\n"use strict";\n' + "\n".join(web_file(name) for name in SCRIPTS) + "\n})();\n"
    return ENVIRONMENT.get_template("report.html.jinja").render(
        page=page,
        version=__version__,
        policy=content_policy(style, script, live=page.live),
        style=Markup(style),
        script=Markup(script),
        charts_json=Markup(as_json(page.charts)),
        index_json=Markup(as_json(page.responses.index)),
    )


def content_policy(style: str, script: str | None = None, *, live: bool = False) -> str:
    """Return the content security policy: only our own script and style, by their digests.

    Injected markup could neither run nor load anything. A live page may also ask the server that it came from. `blob:`
    and `data:` images are made by the page itself, for the export as PNG.
    """
    scripts = "" if script is None else f"script-src {_digest(script)}; img-src blob: data:; "
    asks = "connect-src 'self'; " if live else ""
    return f"default-src 'none'; style-src {_digest(style)}; {scripts}{asks}base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def web_file(name: str) -> str:
    return (files("egpo.reports") / "web" / name).read_text(encoding="utf-8")


def _coded(text: str) -> Markup:
    """Turn text between backticks into <code>."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


ENVIRONMENT = Environment(
    loader=PackageLoader("egpo.reports", "web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.filters["coded"] = _coded


def render_table_page(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the HTML of a table in the style of the report. Cells are escaped text."""
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


@dataclass(frozen=True)
class TableSection:
    """A section of a page: paragraphs, a table, a figure as SVG, and notes. Texts are escaped; the figure is not."""

    title: str
    paragraphs: Sequence[str] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    svg: str = ""
    notes: Sequence[str] = ()


def render_sections_page(kicker: str, title: str, sections: Sequence[TableSection]) -> str:
    """Return the HTML of sections with tables and figures, in the style of the report."""
    style = web_file("style.css")
    page: str = ENVIRONMENT.get_template("sections.html.jinja").render(
        kicker=kicker,
        title=title,
        sections=sections,
        figures=[Markup(section.svg) for section in sections],
        version=__version__,
        policy=content_policy(style),
        style=Markup(style),
    )
    return page
