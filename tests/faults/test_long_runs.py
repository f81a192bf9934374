"""The report on a run of 20,000 steps, and the figures of `make soak`."""

import time

import pytest

from egpo.reports import write_report
from egpo.runs.stored import StoredRun
from tests.faults.long_runs import STEPS, loading_s, write_long_run
from tests.faults.soak import slope_of
from tests.reports.conftest import browser as browser


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    return write_long_run(tmp_path_factory.mktemp("runs") / "long")


def test_the_report_on_20_000_steps_is_small_quick_and_opens(long_run, browser):
    start = time.process_time()
    page = write_report([long_run])
    seconds = time.process_time() - start
    assert page.stat().st_size < 5e6
    assert seconds < 20  # 2.5 s on an idle core: linear in the steps
    assert f"{STEPS} of {STEPS}" in page.read_text()
    assert loading_s(browser, page) < 30


def test_its_metrics_are_readable_to_the_end(long_run):
    run = StoredRun.at(long_run)
    assert [line["step"] for line in run.metrics] == list(range(STEPS + 1))
    assert len(run.rollout_steps) == STEPS // 10


@pytest.mark.parametrize("leak", [0.0, 2.0])
def test_a_slope_is_found_with_its_interval(leak):
    """Megabytes per 1,000 steps, under the waves of an allocator."""
    steps = list(range(200, 3000))
    values = [500 + leak * step / 1000 + 0.5 * ((step // 97) % 3) for step in steps]
    found = slope_of(steps, values)
    assert found.low <= leak <= found.high
    assert found.high - found.low < 1
