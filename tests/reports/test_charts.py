"""Charts in a real browser: labelled axes, zoom, logarithmic axis, differences, export as PNG and CSV."""

import csv
import struct

import pytest

from egpo.reports import write_report
from egpo.runs.folder import RunFolder
from egpo.runs.metrics import MetricStream
from tests.reports.folders import training_metrics, write_run
from tests.waiting import becomes_true

STEPS = 20


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Two runs: the reward of the second is half a point lower and begins two steps later."""
    place = tmp_path_factory.mktemp("runs")
    for name, first, lower in (("plain", 1, 0.0), ("=odd, name", 3, 0.5)):
        run = write_run(place / name, steps=0, dumps=())
        (run / "metrics.jsonl").unlink()
        for step in range(first, STEPS + 1):
            metrics = training_metrics(step, STEPS)
            MetricStream(RunFolder(run).metrics).append(step, metrics | {"critic/score/mean": step / STEPS - lower})
    return write_report([place / "plain", place / "=odd, name"])


@pytest.fixture
def tab(browser, page):
    with browser.opened(page) as tab:
        yield tab
        assert tab.complaints() == []


def label(tab, number=1):
    return tab.evaluate(
        f"document.querySelector('#charts .chart:nth-child({number}) .plot').getAttribute('aria-label')"
    )


def ticks(tab):
    return tab.evaluate(
        "[...document.querySelectorAll('#charts .chart:first-child .tick:not(.axis-label)')].map((e) => e.textContent)"
    )


def test_axes_are_labelled(tab):
    found = tab.evaluate(
        "[...document.querySelectorAll('#charts .chart')].map((e) =>"
        " [...e.querySelectorAll('.axis-label')].map((t) => t.textContent))"
    )
    assert {name for name, _ in found} == {"step"}
    assert {"reward", "share", "nats", "tokens"} <= {unit for _, unit in found}
    assert all(unit for _, unit in found)


def test_dragging_across_a_chart_zooms_all_of_them(tab):
    x, y = tab.point_at("#charts .plot")
    move = {"x": x, "y": y, "button": "left", "buttons": 1}
    tab.call("Input.dispatchMouseEvent", type="mousePressed", clickCount=1, **move)
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", **(move | {"x": x + 60}))
    assert tab.evaluate("document.querySelector('#charts .band').getAttribute('visibility')") == "visible"
    tab.call("Input.dispatchMouseEvent", type="mouseReleased", clickCount=1, **(move | {"x": x + 60}))
    for number in (1, 4):
        assert "at step 1 " not in label(tab, number)
        assert "at step 20" not in label(tab, number)
    tab.click("#reset-zoom")
    assert "at step 1 " in label(tab)
    assert tab.evaluate("document.querySelector('#reset-zoom').hidden")


def test_zoom_by_key(tab):
    tab.evaluate("document.querySelector('#charts .plot').focus()")
    tab.press("End")
    tab.press("+")
    assert "to 1 at step 20" in label(tab)
    assert "at step 1 " not in label(tab)
    tab.press("+")
    tab.press("-")
    tab.press("0")
    assert "at step 1 " in label(tab)


def test_a_double_click_shows_all_steps(tab):
    tab.evaluate("document.querySelector('#charts .plot').focus()")
    tab.press("+")
    tab.evaluate("document.querySelector('#charts .plot').dispatchEvent(new Event('dblclick'))")
    assert "at step 1 " in label(tab)


def test_a_logarithmic_axis_shows_positive_values_only(tab):
    tab.choose("#axis", "log")
    assert "0.1" in ticks(tab)
    heights = tab.evaluate(
        "[...document.querySelectorAll('#charts .chart:first-child [data-run=\"0\"] circle')]"
        ".map((e) => +e.getAttribute('cy'))"
    )
    assert len(heights) == STEPS
    # From 1 to 2 is as far as from 10 to 20.
    assert heights[0] - heights[1] == pytest.approx(heights[9] - heights[19], abs=0.01)
    # The second run's rewards are positive from step 11 on.
    assert "=odd, name from 0.05 at step 11" in label(tab)
    assert "8 values of 0 or less" in ticks(tab)


def test_the_difference_from_a_run(tab):
    tab.choose("#difference", "0")
    assert label(tab) == ("Reward, difference from plain: =odd, name from -0.5 at step 3 to -0.5 at step 20")
    assert tab.evaluate("document.querySelector('#axis').disabled")
    assert "difference in reward" in tab.evaluate("document.querySelector('#charts .plot').textContent")
    assert "0.0 points at step 3" in label(tab, 2)
    tab.choose("#difference", "")
    assert label(tab).startswith("Reward: plain")


@pytest.fixture
def downloads(browser, tmp_path):
    browser.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))

    def finished(name):
        path = tmp_path / name
        assert becomes_true(lambda: path.is_file() and path.stat().st_size > 0)
        return path

    return finished


def test_a_chart_as_csv(tab, downloads):
    tab.click("#charts [aria-label='Reward as CSV']")
    with downloads("critic_score_mean.csv").open() as file:
        head, *rows = csv.reader(file)
    assert head == ["step", "plain", "'=odd, name"]  # no spreadsheet reads it as a formula
    assert len(rows) == STEPS
    assert rows[0] == ["1", "0.05", ""]
    assert rows[-1] == ["20", "1", "0.5"]


def test_all_metrics_as_csv(tab, downloads):
    tab.click("#export-all")
    with downloads("metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"critic/score/mean", "actor/lr"} <= {row["metric"] for row in rows}
    found = [row for row in rows if row["run"] == "plain" and row["metric"] == "critic/score/mean"]
    assert [float(row["value"]) for row in found] == [step / STEPS for step in range(1, STEPS + 1)]


def test_a_chart_as_png(tab, downloads):
    tab.click("#charts [aria-label='Reward as PNG']")
    content = downloads("critic_score_mean.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", content[16:24])
    assert width > 500
    assert height > 400
    # An empty picture of this size would be much smaller.
    assert len(content) > 5000
