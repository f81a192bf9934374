"""The whole demo, as small as it can be."""

import io
import shutil

import pytest
from rich.console import Console

from egpo.cli.demo_tables import print_closing
from egpo.demos.demo import run_demo
from egpo.demos.plan import ESTIMATORS, DemoFolder, Plan
from egpo.experiments.screen import plain_screen

SMALLEST = Plan(steps=1, prompts=2, eval_problems=6, eval_n=2, probe_problems=4, probe_n=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return DemoFolder(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture(scope="module")
def demo(folder):
    return run_demo(folder, SMALLEST, plain_screen(lambda line: None))


def test_it_leaves_data_three_runs_and_a_report(demo, folder):
    assert (folder.data / "train.parquet").is_file()
    assert all((folder.run_of(name).checkpoint_of(1)).is_dir() for name in ESTIMATORS)
    page = demo.report.read_text(encoding="utf-8")
    assert demo.report == folder.path / "report.html"
    assert all(name in page for name in ("egpo-tiny", *ESTIMATORS))
    assert "prompts by the share of right samples" in page


def test_every_model_sits_the_same_exams(demo):
    for by_model in demo.evaluations.values():
        assert list(by_model) == ["egpo-tiny", *ESTIMATORS]
        assert len({evaluation.value["data"] for evaluation in by_model.values()}) == 1
    assert len(demo.evaluations["sampled"]["grpo"].samples) == 12
    assert len(demo.evaluations["greedy"]["grpo"].samples) == 6


def test_all_runs_began_alike(demo, folder):
    firsts = {folder.run_of(name).metrics.read_text().splitlines()[0] for name in ESTIMATORS}
    assert len(firsts) == 1


def test_it_closes_with_figures_at_80_columns(demo):
    console = Console(width=80, record=True, file=io.StringIO())
    print_closing(demo, console)
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    assert "egpo_calibrated - egpo " in shown
    assert "One seed each" in shown


def test_an_interrupted_demo_goes_on_where_it_was(demo, folder):
    kept, lost = folder.run_of("grpo"), folder.run_of("egpo")
    before = lost.metrics.read_bytes()
    written = kept.config.stat().st_mtime_ns, kept.metrics.stat().st_mtime_ns
    shutil.rmtree(lost.path)
    next(kept.evals.glob("countdown-first*-greedy-step1.json")).unlink()
    said = []
    again = run_demo(folder, SMALLEST, plain_screen(said.append))
    assert lost.metrics.read_bytes() == before
    assert (kept.config.stat().st_mtime_ns, kept.metrics.stat().st_mtime_ns) == written
    assert "    grpo: trained already" in said
    assert "    egpo: trained already" not in said
    assert again.evaluations == demo.evaluations
