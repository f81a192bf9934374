"""Tests of the speed board's tables and of its processes (benchmarks/speed_board.py)."""

import io
import json
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
from rich.console import Console

from egpo.config import load_config
from egpo.verl.launch.refusals import refuse_what_verl_lacks

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import _board_tables as tables
import _gpu_job as jobs
import _verl_gpu_peer as verl_peer
import speed_board

VERSIONS = {"GPU": "a GPU", "torch": "1"}


def a_round(contender: str, number: int, rollout: float, step: float | None, **fields: object) -> dict:
    times = {"rollout": rollout}
    if step is not None:
        times |= {"update": 1.0, "between": step - rollout - 1.0, "step": step}
    record = {"kind": "round", "cell": "512", "part": "vllm", "sitting": "s", "contender": contender, "round": number}
    return {**record, **times, "tokens": 100, "gib": 2.0, **fields}


RECORDS = [
    {"kind": "limit", "cell": "512", "part": "vllm", "sitting": "s", "rollout": 1.0, "update": 0.5},
    {"kind": "setup", "contender": "vLLM", "versions": VERSIONS, "differences": ["without X"], "start_s": 65.2},
    *(a_round("egpo", number, 2.0 + number / 10, 4.0) for number in range(4)),
    a_round("vLLM", 0, 90.0, None),
    *(a_round("vLLM", number, (2.0 + number / 10) * number, None) for number in (1, 2, 3)),
]


def row_of(contender: str, records: list[dict], cell: str = "512") -> tables.Row:
    (row,) = (row for row in tables.rows_of(cell, records) if row.contender == contender)
    return row


def test_ratio_is_taken_within_a_round_and_leaves_the_warm_up_out():
    ratio = row_of("vLLM", RECORDS).over_ours("rollout")
    assert ratio.values == pytest.approx([1.0, 2.0, 3.0])
    assert row_of("vLLM", RECORDS).over_ours("step") is None  # a rollout alone has no step
    assert row_of("egpo", RECORDS).over_ours("rollout") is None


def test_rounds_of_another_process_are_not_compared_unless_ours_ran_alone():
    elsewhere = [a_round("TRL, generate", number, 8.0, 16.0, part="trl") for number in (1, 2, 3)]
    assert row_of("TRL, generate", RECORDS + elsewhere).over_ours("step") is None
    alone = [a_round("egpo", number, 2.0, 4.0, part="egpo") for number in (1, 2, 3)]
    records = RECORDS + elsewhere + alone
    assert row_of("TRL, generate", records).over_ours("step").values == pytest.approx([4.0, 4.0, 4.0])
    assert any("process of its own" in note for note in tables.notes_of("512", records))
    other_sitting = [record | {"sitting": "t"} for record in alone]
    assert row_of("TRL, generate", RECORDS + elsewhere + other_sitting).over_ours("step") is None


@pytest.mark.parametrize("cell", tables.CELLS)
def test_what_was_not_run_is_empty_with_a_reason(cell: str):
    for row in tables.rows_of(cell, RECORDS):
        assert bool(row.rounds) != bool(row.reason), row.contender
    for line in tables.cells_of_table(cell, RECORDS):
        if line[0] != "limit" and not row_of(line[0], RECORDS, cell).rounds:
            assert not any(line[1:])
    markdown = tables.markdown(RECORDS)
    assert (f"- {tables.CELLS[cell]}: " in markdown) == (cell != "512")


def test_every_empty_row_is_explained_below_its_table():
    notes = tables.notes_of("512", RECORDS)
    for contender in set(tables.CONTENDERS) - {"egpo", "vLLM"}:
        assert sum(note.startswith(f"{contender} is empty: ") for note in notes) == 1


def test_failure_is_the_reason():
    failure = {"kind": "failure", "contenders": ["TRL, generate"], "cells": ["512"], "reason": "over its time limit"}
    assert row_of("TRL, generate", [*RECORDS, failure]).reason == "stopped: over its time limit"
    assert "--parts trl-vllm" in row_of("TRL, vLLM colocated", [*RECORDS, failure]).reason
    cut_off = a_round("TRL, generate", 1, 8.0, 16.0)
    assert row_of("TRL, generate", [*RECORDS, failure, cut_off]).rounds == [cut_off]  # keeps what it has


def test_fewer_rounds_than_asked_for_because_of_a_failure_are_explained():
    failure = {"kind": "failure", "contenders": ["vLLM"], "cells": ["512"], "reason": "out of memory"}
    assert any("out of memory" in note for note in tables.notes_of("512", [*RECORDS, failure]))


def test_faster_peer_is_named():
    faster = [a_round("TRL, generate", number, 1.0, 2.0) for number in (1, 2, 3)]
    notes = [note for note in tables.notes_of("512", RECORDS + faster) if "faster than egpo" in note]
    assert len(notes) == 2
    assert not any("faster than egpo" in note for note in tables.notes_of("512", RECORDS))


def test_both_renderings_show_the_same_cells(tmp_path: Path):
    path = tmp_path / "board.jsonl"
    path.write_text("\n".join(map(json.dumps, RECORDS)) + '\n{"kind": "rou')  # the last line is cut off
    records = tables.read([path])
    assert records == RECORDS
    console = Console(record=True, width=220, file=io.StringIO())
    tables.show(records, console)
    shown, markdown = console.export_text(), tables.markdown(records)
    for text in (shown, markdown):
        assert "vLLM: without X. Start: 65 s." in text
        assert "2.00 (1.00 to 3.00)" in text
        assert "GPU a GPU, torch 1" in text


def test_every_cell_and_contender_can_be_run_or_has_a_reason():
    assert set(tables.CELLS) - set(tables.REASONS) == set(speed_board.CELLS)
    assert set(tables.CONTENDERS) - set(tables.REASONS) == set(tables.PART_OF)
    assert set(tables.PART_OF.values()) == set(speed_board.PARTS) == set(speed_board.LIMIT_S)


@pytest.mark.parametrize(
    ("script", "limit_s", "reason"),
    [
        ("import time; print('begun', flush=True); time.sleep(600)", 2, "over its time limit of 2 s: begun"),
        ("import sys; print('no memory'); sys.exit(3)", 60, "exit code 3: no memory"),
    ],
)
def test_part_that_hangs_or_fails_is_written_down(
    script: str, limit_s: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    program = tmp_path / "part.py"
    program.write_text(script)
    monkeypatch.setattr(speed_board, "__file__", str(program))
    arguments = Namespace(out=tmp_path / "board.jsonl", rounds=3, limit_s=limit_s)
    start = time.perf_counter()
    speed_board.run_part("vllm", ["512"], arguments, "s")
    assert time.perf_counter() - start < 60
    (failure,) = tables.read([arguments.out])
    assert failure["reason"] == reason
    assert set(failure["contenders"]) == {"vLLM", "vLLM, no log-probabilities"}
    assert row_of("vLLM", [failure]).reason == f"stopped: {reason}"


def test_part_over_its_limit_may_end_what_it_has_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The launcher of verl ends processes that are in sessions of their own."""
    launcher = tmp_path / "launcher.py"
    launcher.write_text(
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(tmp_path / 'ended')!r}).touch(), sys.exit()))\n"
        "print('begun', flush=True)\ntime.sleep(600)"
    )
    program = tmp_path / "part.py"
    program.write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, {str(launcher)!r}])")
    monkeypatch.setattr(speed_board, "__file__", str(program))
    speed_board.run_part("verl", ["512"], Namespace(out=tmp_path / "board.jsonl", rounds=3, limit_s=5), "s")
    assert (tmp_path / "ended").exists()


def test_step_of_verl_is_measured_without_its_checkpoint():
    job = jobs.Job("0.6B", 512, 512)
    times = {"timing_s/gen": 2.0, "timing_s/update_weights": 0.5, "timing_s/update_actor": 3.0, "timing_s/step": 16.0}
    times |= {"timing_s/save_checkpoint": 10.0, "actor/perf/max_memory_allocated_gb": 20.0}
    found = verl_peer.measured(job, {"response_length/mean": 512.0}, times)
    assert (found["rollout"], found["between"], found["step"], found["gib"]) == (2.5, 0.5, 6.0, 20.0)
    assert found["tokens"] == job.new_tokens
    assert verl_peer.measured(job, {"response_length/mean": 512.0}, {**times, "timing_s/save_checkpoint": 0.0})["step"]


def test_recipe_for_verl_is_a_recipe(tmp_path: Path):
    """Its task is in a module of benchmarks, which verl's processes find by PYTHONPATH."""
    path = tmp_path / "recipe.yaml"
    job = jobs.Job("0.6B", 512, 512)
    path.write_text(json.dumps(verl_peer.recipe(job, Path("egpo-tiny"), tmp_path / "runs", 4, 32)))
    config = load_config(str(path), [])
    assert (config.engine, config.rollout.prompts * config.rollout.n, config.verl.ranks) == ("verl", job.rows, 1)
    refuse_what_verl_lacks(config)
    with pytest.raises(ValueError, match="cannot end rows at given lengths"):
        verl_peer.recipe(jobs.Job("0.6B", 64, 1024), tmp_path, tmp_path, 4, 32)


def test_shared_weights_are_there_wholly_or_not(tmp_path: Path):
    class Model:
        def save_pretrained(self, folder):
            (Path(folder) / "model.safetensors").write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jobs.save_with_weights(jobs.Job("0.6B", 1, 1, vocabulary=100), Model(), tmp_path)
    assert list(tmp_path.iterdir()) == []
