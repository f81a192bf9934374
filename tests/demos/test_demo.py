"""The whole demo, as small as it can be."""

import io
import shutil

import pytest
from rich.console import Console

from egpo.cli.demo import print_closing
from egpo.demos.demo import SHOWN, DemoFolder, DemoSize, run_demo
from egpo.experiments.screen import plain_screen

SMALLEST = DemoSize(steps=1, prompts=2, eval_problems=6, eval_n=2, probe_problems=4, probe_n=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return DemoFolder(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture(scope="module")
def demo(folder):
    return run_demo(folder, SMALLEST, plain_screen(lambda line: None))


def test_it_leaves_data_three_runs_and_a_report(demo, folder):
    assert len(list(folder.data.glob("countdown-*/train.parquet"))) == 1
    assert {path.name for path in folder.probe.iterdir()} == {"probe.json", "probe.jsonl", "probe.svg"}
    assert all((folder.run_of(name).checkpoint_of(1)).is_dir() for name in SHOWN)
    page = demo.report.read_text(encoding="utf-8")
    assert demo.report == folder.path / "report.html"
    assert all(name in page for name in ("egpo-tiny", *SHOWN))
    assert "prompts by their share of correct responses" in page


def test_every_model_sits_the_same_exams(demo):
    for by_model in demo.evaluations.values():
        assert list(by_model) == ["egpo-tiny", *SHOWN]
        assert len({evaluation.header["data"] for evaluation in by_model.values()}) == 1
    assert len(demo.evaluations["sampled"]["grpo"].samples) == 12
    assert len(demo.evaluations["greedy"]["grpo"].samples) == 6


def test_the_base_is_probed_and_evaluated_once(demo, folder):
    for name in [*SHOWN][1:]:
        for path in (folder.run_of("grpo").evals).glob("*.json"):
            if "step" not in path.name:
                assert (folder.run_of(name).evals / path.name).read_bytes() == path.read_bytes()


def test_all_runs_began_alike(demo, folder):
    firsts = {folder.run_of(name).metrics.read_text().splitlines()[0] for name in SHOWN}
    assert len(firsts) == 1


def test_it_closes_with_figures_at_80_columns(demo):
    console = Console(width=80, record=True, file=io.StringIO())
    print_closing(demo, console)
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= 80
    assert "…" not in shown
    assert "egpo_calibrated - egpo " in shown
    assert "Each estimator was trained with one seed" in shown


def test_an_interrupted_demo_continues(demo, folder):
    kept, lost = folder.run_of("grpo"), folder.run_of("egpo")
    before = lost.metrics.read_bytes()
    written = kept.config.stat().st_mtime_ns, kept.metrics.stat().st_mtime_ns
    shutil.rmtree(lost.path)
    next(kept.evals.glob("countdown-first*-greedy-step1.json")).unlink()
    said = []
    again = run_demo(folder, SMALLEST, plain_screen(said.append))
    assert lost.metrics.read_bytes() == before
    assert (kept.config.stat().st_mtime_ns, kept.metrics.stat().st_mtime_ns) == written
    own = {name: said.index(f"{name}: egpo demo -> {folder.run_of(name).path}") for name in SHOWN}
    assert "  train: skipped, nothing has changed" in said[own["grpo"] : own["egpo"]]
    assert "  train: not done yet" in said[own["egpo"] : own["egpo_calibrated"]]
    assert again.evaluations == demo.evaluations
