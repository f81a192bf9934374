"""The comparison of the engines: its pairs, its test of equivalence, and what it refuses.

The runs are real ones of the embedded engine; a copy of a run whose config names verl stands for the run on verl.
"""

import gzip
import json
import shutil

import numpy as np
import pytest

from egpo.comparisons.paired_seeds import compare_paired_seeds, mean_over_seeds
from egpo.errors import InputError
from tests.evidence.conftest import COMMIT
from website.evidence import __main__ as commands
from website.evidence.__main__ import END, outdated, write
from website.evidence.engines import MARGIN, EngineComparison, difference, engines_part, read_pairs
from website.evidence.sittings import append_sitting, sitting_of
from website.evidence.stripping import pack, strip_runs, unpack


@pytest.fixture
def both(made, docs, tmp_path):
    """A folder of evidence with the six runs of the embedded engine, and a copy of each, called a run on verl."""
    folder = docs / "evidence" / "engines"
    pack(strip_runs(made / "runs").files, tmp_path / "engines.tar.gz")
    names = unpack(tmp_path / "engines.tar.gz", folder)
    copies = []
    for name in names:
        copy = folder / f"{name}-verl"
        shutil.copytree(folder / name, copy)
        text = (copy / "config.yaml").read_text()
        assert "engine: local" in text
        (copy / "config.yaml").write_text(text.replace("engine: local", "engine: verl"))
        (copy / "verl").mkdir()
        start = {
            "launch": "1",
            "time": "2026-11-19T02:17:01+00:00",
            "stages": {"start Ray": 9.0},
            "step": 1,
            "seconds": 120.0,
        }
        (copy / "verl" / "starts.jsonl").write_text(json.dumps(start) + "\n")
        copies.append(f"{name}-verl")
    append_sitting(folder, sitting_of(folder, [*names, *copies], COMMIT, 2, 60))
    return folder


def change_outcomes(folder, wanted):
    """Give the sampled responses of every run on verl the outcomes `wanted(run, problem, sample)`."""
    for number, path in enumerate(sorted(folder.glob("*/*-verl/evals/*-n2-*.jsonl.gz"))):
        lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        for place, line in enumerate(lines):
            line["acc"] = line["score"] = float(wanted(number, place // 2, place % 2, line["acc"]))
        path.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))


def sampled(pairs):
    return difference(pairs, next(name for name in pairs[0].exams if "greedy" not in name))


def test_equal_runs_are_equivalent(both):
    pairs = read_pairs(both)
    assert [(pair.method, pair.seed) for pair in pairs] == [
        (method, seed) for method in ("egpo", "egpo_calibrated", "grpo") for seed in (0, 1)
    ]
    found = sampled(pairs)
    assert found.embedded == found.verl
    assert (found.delta.value, found.within, found.verdict) == (0.0, (0.0, 0.0), "equivalent")


def test_the_intervals_are_those_of_paired_seeds(both):
    draws = np.random.default_rng(0)
    change_outcomes(both, lambda *place: draws.random() < 0.5)
    pairs = read_pairs(both)
    found = sampled(pairs)
    values = [pair.values(found.exam) for pair in pairs]
    keys = sorted(values[0][0])
    embedded, verl = (np.array([[side[key] for key in keys] for side in sides]) for sides in zip(*values, strict=True))
    assert found.delta == compare_paired_seeds(embedded, verl).delta
    _, spread = mean_over_seeds(verl - embedded)
    low, high = found.within
    assert found.delta.low < low < found.delta.value < high < found.delta.high
    # Two one-sided tests at 5 %: each end of the interval is where a one-sided p-value is 0.05.
    assert spread.p_value(high - found.delta.value) == pytest.approx(0.10, abs=1e-3)


@pytest.mark.parametrize(
    ("wanted", "verdict"),
    [
        (lambda run, problem, sample, before: True, "different"),
        (lambda run, problem, sample, before: run == 0, "inconclusive"),
    ],
)
def test_a_large_difference_is_not_called_equivalent(both, wanted, verdict):
    change_outcomes(both, wanted)
    found = sampled(read_pairs(both))
    low, high = found.within
    assert found.verdict == verdict
    assert (low > MARGIN) == (verdict == "different")
    assert high > MARGIN


def test_one_pair_has_an_interval_over_problems_alone_and_no_verdict(both):
    change_outcomes(both, lambda run, problem, sample, before: problem % 2)
    found = sampled(read_pairs(both)[:1])
    assert (found.within, found.verdict) == (None, "not tested")
    assert found.delta.low < found.delta.value < found.delta.high


@pytest.mark.parametrize("what", ["setting", "weights", "problems", "twice"])
def test_runs_that_differ_in_more_than_the_engine_are_refused(both, what):
    run = min(both.glob("countdown/*-verl"))
    if what == "setting":
        edit(run / "config.yaml", "lr: 0.001", "lr: 0.002")
    elif what == "weights":
        stages = json.loads((run / "stages.json").read_text())
        stages["jobs"]["train"]["inputs"]["weights"] = "other"
        (run / "stages.json").write_text(json.dumps(stages))
    elif what == "problems":
        path = next(run.glob("evals/*-n2-*.jsonl.gz"))
        lines = gzip.decompress(path.read_bytes()).decode()
        key = json.loads(lines.splitlines()[0])["problem"]
        path.write_bytes(gzip.compress(lines.replace(json.dumps(key), '"another"').encode()))
    else:
        edit(run / "config.yaml", "engine: verl", "engine: local")
    said = {
        "setting": r"differ in more than the engine: update\.lr: 0\.001 -> 0\.002",
        "weights": "different weights",
        "problems": "evaluated on different problems",
        "twice": "the same run on the same engine",
    }
    with pytest.raises(InputError, match=said[what]):
        sampled(read_pairs(both))


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_the_page_has_the_answer_the_tables_and_the_starts(both, docs, monkeypatch):
    comparison = EngineComparison("engines", "countdown", "held-out sums")
    monkeypatch.setattr(commands, "COMPARISONS", (comparison,))
    write(docs)
    assert outdated(docs) == []
    text = (docs / "verl.md").read_text()
    part = text.partition(comparison.begin)[2].partition(END)[0]
    assert part.strip() == engines_part(both, comparison).strip()
    assert "**The engines are equivalent within the margin.**" in part
    assert "Sampled accuracy on held-out sums, verl minus embedded, over 6 pairs and 20 problems: +0.0 points" in part
    assert "90 % interval +0.0 to +0.0, margin 5 points" in part
    assert part.count("02:17:01 | start Ray 9 | 120 | 1 |") == 6
    assert "Resumed: none. Runs without a counterpart: none." in part
    shutil.rmtree(both)
    write(docs)
    assert part not in (docs / "verl.md").read_text()


def test_the_start_of_a_run_on_verl_is_kept(made, tmp_path):
    runs = tmp_path / "runs"
    shutil.copytree(made / "runs", runs)
    run = next(path.parent for path in sorted(runs.glob("*/config.yaml")))
    (run / "verl").mkdir()
    (run / "verl" / "starts.jsonl").write_text('{"seconds": 1.0}\n')
    files = strip_runs(runs).files
    assert [name for name in files if name.endswith("starts.jsonl")] == [f"countdown/{run.name}/verl/starts.jsonl"]
