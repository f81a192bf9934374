"""The documentation site: generated pages are up to date, every page is in the index, and the site builds strictly."""

import json
import os
import re
import shutil
import subprocess
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean
from threading import Thread

import pytest
import typer
from typer.testing import CliRunner

from egpo.cli.main import app
from egpo.config.schema import Config, SftConfig
from egpo.sections import Section
from egpo.tasks.loading import SOURCED_TASKS
from tests.reports.chromium import find_chromium, started_browser
from tests.waiting import becomes_true
from website.figures import FIGURES, IMAGES, METRICS, figure, read_runs, stored_curves
from website.hooks import pages_of, read_nav, rewritten, with_lists_apart
from website.pages import DOCS, PAGES
from website.task_notes import TASK_NOTES

ROOT = Path(__file__).resolve().parents[1]
MKDOCS = ROOT / ".env-docs" / "bin" / "mkdocs"
needs_mkdocs = pytest.mark.skipif(not MKDOCS.exists(), reason="MkDocs is not installed: make site")


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name):
    assert (DOCS / name).read_text() == PAGES[name](), "write it again: make pages"


def test_every_task_has_a_page():
    assert set(TASK_NOTES) == set(SOURCED_TASKS), "describe it in website/task_notes.py"


def commands(command, words=()):
    if not hasattr(command, "commands"):
        yield words
        return
    for name, inner in command.commands.items():
        yield from commands(inner, (*words, name))


def test_the_page_of_the_command_line_has_what_the_help_shows():
    page = (DOCS / "cli.md").read_text()
    verbs = list(commands(typer.main.get_command(app)))
    assert len(verbs) > 20
    for words in verbs:
        shown = CliRunner().invoke(app, [*words, "--help"], env={"TERMINAL_WIDTH": "200", "COLUMNS": "200"}).output
        options = set(re.findall(r"--[a-z][a-z-]+", shown)) - {"--help"}
        section = re.search(rf"^## egpo {' '.join(words)}$(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)[1]
        assert all(option in section for option in options), words


def keys(section, path=""):
    for name, field in section.model_fields.items():
        yield f"{path}{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from keys(field.annotation, f"{path}{name}.")


def test_the_page_of_the_config_has_every_key():
    rl, sft = (DOCS / "config.md").read_text().split("\n## Supervised fine-tuning\n")
    for kind, page in ((Config, rl), (SftConfig, sft)):
        for key in keys(kind):
            assert f"| `{key}` |" in page, f"{kind.__name__}: {key}"


@pytest.mark.parametrize("name", FIGURES)
def test_figures_show_the_stored_curves(name):
    assert (IMAGES / f"{name}.svg").read_text() == figure(name, stored_curves()), "python -m website.figures"


def test_the_index_lists_every_page_once():
    listed = list(pages_of(read_nav((DOCS / "README.md").read_text())))
    there = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted(there), "add the page to a list in docs/README.md"


def test_navigation_has_sections_and_groups():
    index = "- [a](a.md)\n## One\n- [b](x/b.md), [c](c.md): text\n### Group\n- [`d`](d.md)\n## Two\n- [e](e.md)\n"
    assert read_nav(index)[2:] == [
        {"One": [{"b": "x/b.md"}, {"c": "c.md"}, {"Group": [{"d": "d.md"}]}]},
        {"Two": [{"e": "e.md"}]},
    ]


def test_links_to_the_repository_lead_to_their_pages_in_the_site():
    text = "[a](../../pyproject.toml#x) [b](../speed.md) [c](https://d.example)\n```\n[e](../../AGENTS.md)\n```\n"
    assert rewritten(text, "tuning/countdown.md") == text.replace(
        "../../pyproject.toml#x", "../source/pyproject.toml.md#x"
    )


def test_lists_below_text_stand_apart():
    text = "# H\n- a\n- b\n\ntext:\n- c\n  more\n- d\n```\ncode\n- e\n```\n"
    assert with_lists_apart(text) == text.replace("text:\n- c", "text:\n\n- c")


def build(folder, out):
    command = [MKDOCS, "build", "--strict", "--site-dir", out]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    done = build(ROOT, out)
    assert done.returncode == 0, done.stderr
    return out


@needs_mkdocs
def test_the_site_has_every_page_and_searches_them(site):
    texts = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = {entry["location"].partition("#")[0] for entry in texts}
    for page in DOCS.rglob("*.md"):
        place = page.relative_to(DOCS).with_suffix(".html").as_posix().replace("README.html", "index.html")
        assert (site / place).is_file()
        assert place in found or place == "index.html"


@needs_mkdocs
def test_the_site_loads_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?([^\" >]+)", text)
        loaded += re.findall(
            r"<link[^>]*\srel=\"?(?:stylesheet|preconnect|preload|icon)[^>]*\shref=\"?([^\" >]+)", text
        )
        assert loaded
        assert not [one for one in loaded if one.startswith(("http:", "https:", "//"))], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(?:https?:)?//", sheet.read_text()), sheet.name


@needs_mkdocs
def test_lists_and_tables_are_rendered_as_such(site):
    """GitHub's parser and that of MkDocs differ: a list or a table right below a line of text, for example."""
    for page in site.rglob("*.html"):
        for paragraph in re.findall(r"<p>(.*?)</p>", page.read_text(), re.DOTALL):
            assert not re.search(r"^(?:[-*] |[0-9]+\. |\|)", paragraph, re.MULTILINE), f"{page.name}: {paragraph[:200]}"


@needs_mkdocs
def test_recipes_that_pages_link_to_are_pages_of_the_site(site):
    text = (site / "tiny_model.html").read_text()
    targets = re.findall(r'href="(source/[^"]+_tiny[^"]*\.html)"', text)
    assert targets
    for target in targets:
        assert "egpo-tiny" in (site / target).read_text()


@needs_mkdocs
def test_a_strict_build_refuses_bad_links_and_pages_outside_the_index(tmp_path):
    for name in ("mkdocs.yml", "docs", "website"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "docs" / "new.md").write_text("# New\n[a](nowhere.md) [b](speed.md#nowhere)\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode == 1
    assert "new.md" in re.search(r"not included in the \"nav\".*?(?=WARNING)", done.stderr, re.DOTALL)[0]
    assert "'nowhere.md'" in done.stderr
    assert "'#nowhere'" in done.stderr or "speed.md#nowhere" in done.stderr


def test_curves_are_read_from_run_folders(tmp_path):
    """The first line of a run may be a validation alone."""
    run = tmp_path / "countdown-egpo-3"
    run.mkdir()
    values = dict.fromkeys(METRICS.values(), 0.5)
    (run / "metrics.jsonl").write_text(f'{{"step": 0, "val-core/x": 1}}\n{json.dumps({"step": 1, **values})}\n')
    assert read_runs(tmp_path) == [{"estimator": "egpo", "seed": "3", "step": "1", **dict.fromkeys(METRICS, "0.5000")}]


@pytest.mark.parametrize("name", FIGURES)
def test_algorithm_pages_state_what_the_stored_curves_show(name):
    text = (DOCS / "algorithms" / f"{name}.md").read_text()
    rows = [(int(row["step"]), float(row["reward"])) for row in stored_curves() if row["estimator"] == name]
    first, last = (fmean(value for step, value in rows if low <= step < low + 5) for low in (1, 36))
    assert f"the reward rises from {first:.2f} to {last:.2f}" in text


class Address(str):
    """An address in place of a file's path, as `Browser.opened` takes it."""

    def resolve(self):
        return self

    def as_uri(self):
        return str(self)


@pytest.fixture
def address(site):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SilentHandler, directory=site))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class SilentHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@needs_mkdocs
@pytest.mark.skipif(find_chromium() is None, reason="no Chromium: make system")
def test_the_search_finds_a_page_and_asks_no_other_server(address, tmp_path):
    with (
        started_browser(tmp_path / "profile") as browser,
        browser.opened(Address(f"{address}/index.html?q=zero_variance")) as tab,
    ):
        found = "[...document.querySelectorAll('.md-search-result__link')].map((link) => link.href)"
        assert becomes_true(lambda: any("metrics.html" in link for link in tab.evaluate(found)))
        sent = [event["params"] for event in browser.events if event.get("method") == "Network.requestWillBeSent"]
        requests = [one["request"]["url"] for one in sent]
        assert any("search_index.json" in url for url in requests)
        assert [url for url in requests if not url.startswith((address, "data:", "blob:"))] == []
