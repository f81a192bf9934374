"""A run folder of 20,000 steps as the embedded engine writes it, made in seconds.

python -m tests.faults.long_runs    times of `egpo report` and of a browser, for docs/reliability.md
"""

import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from egpo.runs.dump import write_dump
from egpo.runs.folder import RunFolder
from egpo.runs.json_lines import encoded
from egpo.runs.metric_table import METRICS
from egpo.runs.provenance import Provenance, describe_launch, write_provenance
from tests.reports.folders import CONFIG, SOURCE, group_records

STEPS = 20_000
TEXTS = ("<think>first this, then that</think> 4", "<think>no</think> 5", "7", "<think>six</think> 6")
"""Responses of a group."""


def write_long_run(path: Path, steps: int = STEPS, rollouts_every: int = 10) -> Path:
    """Write a run with every metric of the table, a validation in each tenth step, and 2,000 files of rollouts."""
    names = [metric.name for metric in METRICS if "<" not in metric.name]
    timings = [name for name in names if name.startswith(("timing_s/", "perf/"))]
    values = [name for name in names if name not in timings]
    config = CONFIG.format(name=path.name, estimator="egpo").replace("steps: 100", f"steps: {steps}")
    with RunFolder.create(path, config) as folder:
        write_provenance(folder.provenance, Provenance(7, {"train": "0" * 64}, describe_launch(threads=1)))
        with folder.metrics.open("wb") as metrics, folder.timings.open("wb") as durations:
            for step in range(steps + 1):
                wave = {name: math.sin(0.001 * step + place) for place, name in enumerate(sorted(values))}
                validation = {SOURCE: step / steps} if step % 10 == 0 else {}
                metrics.write(encoded({"step": step, **wave, **validation}))
                durations.write(encoded({"step": step, **dict.fromkeys(timings, 2.0 + 1e-5 * step)}))
        for step in range(rollouts_every, steps + 1, rollouts_every):
            if step == rollouts_every:
                write_dump(folder.rollouts_of(step), group_records(step, TEXTS))
            else:  # a link: 2,000 synced files take a minute
                os.link(folder.rollouts_of(rollouts_every), folder.rollouts_of(step))
    return path


def main() -> None:
    from tests.reports.chromium import find_chromium, started_browser

    with tempfile.TemporaryDirectory() as place:
        run = write_long_run(Path(place) / "long")
        metrics = RunFolder(run).metrics
        print(f"metrics.jsonl: {metrics.stat().st_size / 1e6:.1f} MB")
        start = time.monotonic()
        subprocess.run([sys.executable, "-m", "egpo", "report", str(run)], check=True, cwd=place)
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        page = RunFolder(run).report
        print(
            f"egpo report: {time.monotonic() - start:.1f} s, {most:.0f} MiB at most, {page.stat().st_size / 1e6:.2f} MB"
        )
        if find_chromium():
            with started_browser(Path(place) / "profile") as browser:
                for _ in range(5):
                    print(f"loaded in Chromium in {loading_s(browser, page):.2f} s")


def loading_s(browser, page: Path) -> float:
    """Return the seconds from the start of the navigation to the end of the load event, charts drawn."""
    with browser.opened(page) as tab:
        assert tab.count("#charts .chart") >= 10
        assert tab.complaints() == []
        return tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd") / 1000


if __name__ == "__main__":
    main()
