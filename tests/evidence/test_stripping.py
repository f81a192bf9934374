"""What is committed of a run: enough for every verdict, and nothing of texts, weights and machines."""

import gzip
import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from egpo.cli.main import app
from egpo.comparisons.comparison import ComparisonOptions, compare_runs
from egpo.errors import InputError
from egpo.evals.evaluate import read_evaluation
from egpo.evals.figures import figures_of
from egpo.fingerprints import sealed
from egpo.runs.stored import StoredRun
from website.evidence.stripping import Scrubber, absolute_paths, pack, short_key, strip_runs, unpack

EXAMS = ("countdown-n2-t1", "countdown-greedy")


def runs_in(folder):
    return sorted(path.parent for path in folder.glob("mini*/config.yaml"))


@pytest.mark.parametrize("exam", EXAMS)
def test_stripped_runs_give_the_same_comparison(made, docs, exam):
    whole, stripped = (
        asdict(compare_runs(runs_in(folder), ComparisonOptions(exam=exam, metrics=["accuracy", "score"])))
        for folder in (made / "runs", docs / "evidence" / "countdown")
    )
    assert len(whole["contrasts"]) == 6
    assert stripped == whole


def test_the_models_before_training_are_compared_as_well(made, docs):
    name = "cold_start_of_egpo-tiny-countdown-n2-t1.json"
    options = ComparisonOptions(exam=EXAMS[0])
    places = [made / "runs" / "mini_grpo-s0" / "evals" / name, docs / "evidence" / "before_training/countdown" / name]
    folders = [made / "runs", docs / "evidence" / "countdown"]
    whole, stripped = (
        compare_runs([place, *runs_in(folder)], options) for place, folder in zip(places, folders, strict=True)
    )
    assert stripped == whole


def test_the_command_reads_the_folder_of_a_task(docs):
    words = ["compare", *map(str, (docs / "evidence" / "countdown").iterdir()), "--eval", EXAMS[0]]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "egpo_calibrated" in result.output


def test_metrics_and_figures_are_kept_to_the_last_digit(made, docs):
    for path in runs_in(made / "runs"):
        whole, stripped = StoredRun.at(path), StoredRun.at(docs / "evidence" / "countdown" / path.name)
        assert stripped.metrics == whole.metrics
        assert stripped.timings == whole.timings
        assert len(stripped.metrics) == 3
        evaluations = {file.path.name: file for file in stripped.evaluations}
        assert set(evaluations) == {"countdown-n2-t1-step2.json", "countdown-greedy-step2.json"}
        for name in evaluations:
            one, other = (read_evaluation(run.folder.evals / name) for run in (whole, stripped))
            assert figures_of(other.samples).accuracy == figures_of(one.samples).accuracy
            assert figures_of(other.samples).length == figures_of(one.samples).length


def test_no_text_of_a_model_and_no_path_of_a_machine_is_kept(made, docs):
    whole = b"\n".join(path.read_bytes() for path in (made / "runs").rglob("*.json*") if path.is_file())
    assert str(made).encode() in whole  # there is something to remove: a model's path, or the command
    assert b"<think>" in whole
    for path in (docs / "evidence").rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
            assert str(made) not in text
            assert not list(absolute_paths(text)), path
            assert "</answer>" not in text, path
            assert path.suffix in (".json", ".yaml", ".gz", ".jsonl")
    assert not list((docs / "evidence").rglob("*.safetensors"))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("model: /srv/box/runs/cold_starts/a/model", "model: runs/cold_starts/a/model"),
        ('["/opt/env/bin/egpo", "run", "gsm8k"]', '["egpo", "run", "gsm8k"]'),
        ("path: HuggingFaceTB/SmolLM2-135M", "path: HuggingFaceTB/SmolLM2-135M"),
        ('"val-core/gsm8k/acc/mean@1": 0.5', '"val-core/gsm8k/acc/mean@1": 0.5'),
        ("tags: [<think>, </think>]", "tags: [<think>, </think>]"),
        ("see https://example.org/a/b", "see https://example.org/a/b"),
    ],
)
def test_what_is_scrubbed(tmp_path, text, kept):
    (tmp_path / "file").write_text(text)
    assert Scrubber(Path("/srv/box")).text(tmp_path / "file") == kept


def test_runs_that_are_not_complete_are_left_out_by_name(made, tmp_path):
    shutil.copytree(made / "runs", tmp_path / "runs", ignore=shutil.ignore_patterns("*.safetensors", "checkpoints"))
    metrics = tmp_path / "runs" / "mini_grpo-s0" / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:-1]))
    stages = tmp_path / "runs" / "mini_grpo-s1" / "stages.json"
    value = json.loads(stages.read_text())
    del value["jobs"]["eval: trained"]
    stages.write_text(json.dumps(sealed(value)))
    found = strip_runs(tmp_path / "runs")
    assert found.left_out == {
        "mini_grpo-s0": "trained to step 1 of 2",
        "mini_grpo-s1": "its last checkpoint is not evaluated yet",
    }
    assert len([name for name in found.files if name.endswith("before_training.json")]) == 4
    with pytest.raises(InputError, match="there is no run"):
        strip_runs(tmp_path)


def test_evidence_is_added_and_never_replaced(made, docs, tmp_path):
    files = strip_runs(made / "runs").files
    pack(files, tmp_path / "again.tar.gz")
    assert len(unpack(tmp_path / "again.tar.gz", docs / "evidence")) == 6
    config = "countdown/mini_grpo-s0/config.yaml"
    pack({**files, config: files[config] + b"\n"}, tmp_path / "other.tar.gz")
    with pytest.raises(InputError, match=r"mini_grpo-s0/config\.yaml: this run is there already"):
        unpack(tmp_path / "other.tar.gz", docs / "evidence")
    pack({"../outside": b""}, tmp_path / "escape.tar.gz")
    with pytest.raises(InputError, match="outside"):
        unpack(tmp_path / "escape.tar.gz", docs / "evidence")


def test_a_long_key_becomes_a_digest():
    assert short_key("p1") == "p1"
    long = "How many apples does the shop sell on Monday?"
    assert short_key(long) != short_key(long + " ")
    assert len(short_key(long)) == 12
