"""Metric streams: exact, in order, and cut where they should be."""

import errno
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.errors import EgpoError, InputError
from egpo.fingerprints import unsealed_line
from egpo.runs import MetricStream, read_metrics

NAMES = st.text(min_size=1, max_size=20).filter(lambda name: name != "step")
METRICS = st.dictionaries(NAMES, st.floats(), max_size=6)


def written(path, all_metrics, first=1):
    stream = MetricStream(path)
    for step, metrics in enumerate(all_metrics, first):
        stream.append(step, metrics)
    return stream


@given(st.lists(METRICS, max_size=5))
def test_what_is_written_reads_back_to_the_bit_without_what_is_not_finite(all_metrics):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        path.touch()
        written(path, all_metrics)
        expected = [
            {"step": step} | {name: value for name, value in metrics.items() if math.isfinite(value)}
            for step, metrics in enumerate(all_metrics, 1)
        ]
        found = read_metrics(path)
        assert found == expected
        assert [[*line] for line in found] == [["step", *sorted(set(line) - {"step"})] for line in expected]


@given(st.lists(METRICS, min_size=1, max_size=5), st.data())
def test_a_file_cut_anywhere_reads_as_its_whole_lines(all_metrics, data):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.jsonl"
        written(path, all_metrics)
        content, before = path.read_bytes(), read_metrics(path)
        size = data.draw(st.integers(0, len(content)))
        path.write_bytes(content[:size])
        assert read_metrics(path) == before[: content[:size].count(b"\n")]


@given(st.lists(METRICS, max_size=6), st.integers(0, 6), st.integers(0, 1), st.binary(max_size=9))
def test_forgetting_gives_the_file_of_a_run_that_stopped_there(all_metrics, step, first, rest):
    step = min(step, len(all_metrics) - 1 + first)
    with TemporaryDirectory() as folder:
        long, short = Path(folder) / "long.jsonl", Path(folder) / "short.jsonl"
        stream = written(long, all_metrics, first)
        short.touch()
        written(short, all_metrics[: max(0, step + 1 - first)], first)
        long.touch()
        with long.open("ab") as file:
            file.write(rest.replace(b"\n", b""))
        stream.forget_after(max(step, 0))
        assert long.read_bytes() == short.read_bytes()
        stream.append(step + 1, {"x": 1.0})
        assert read_metrics(long)[-1] == {"step": step + 1, "x": 1.0}


@pytest.mark.parametrize("steps", [[], [1], [1, 3], [2, 3], [1, 1, 2, 3], [1, 2, 0, 3], [0, 0, 1, 2, 3]])
def test_a_hole_in_the_curve_is_named_unless_it_may_be_there(tmp_path, steps):
    stream = MetricStream(tmp_path / "metrics.jsonl")
    for step in steps:
        stream.append(step, {})
    before = [{"step": step} for step in steps]
    with pytest.raises(InputError, match=r"metrics\.jsonl: .*cannot be resumed from step 3; restore the file"):
        stream.forget_after(3)
    stream.forget_after(3, gaps=True)
    assert (read_metrics(stream.path) if steps else []) == before


def test_the_missing_step_is_said(tmp_path):
    stream = written(tmp_path / "metrics.jsonl", [{}, {}])
    with pytest.raises(InputError, match="no line for step 3"):
        stream.forget_after(4)


@pytest.mark.parametrize("garbage", ["{", "[1]", "NaN", '{"step": 2, "x": NaN}', "\0\0\0", "\xff", "[" * 100_000])
def test_garbage_before_the_end_is_named(tmp_path, garbage):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + garbage.encode("latin-1") + b'\n{"step": 3}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2: the line is not"):
        read_metrics(path)


def test_a_line_without_a_step_cannot_be_placed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"x": 1}\n')
    with pytest.raises(InputError, match="line 1: the line has no `step`"):
        MetricStream(path).forget_after(0)


def test_step_is_no_metric(tmp_path):
    with pytest.raises(ValueError, match="`step`"):
        MetricStream(tmp_path / "metrics.jsonl").append(1, {"step": 2})


def test_whole_numbers_stay_whole_and_float32_is_exact(tmp_path):
    import numpy as np

    path = tmp_path / "metrics.jsonl"
    written(path, [{"b": np.float32(0.1), "a": 3}])
    text = unsealed_line(path.read_bytes()).decode()
    assert text == f'{{"step": 1, "a": 3, "b": {float(np.float32(0.1))!r}}}\n'


def test_nothing_to_sync_or_forget_is_no_error(tmp_path):
    stream = MetricStream(tmp_path / "metrics.jsonl")
    stream.sync()
    stream.forget_after(0)
    assert not stream.path.exists()
    with pytest.raises(InputError, match="no such file"):
        read_metrics(stream.path)


def test_a_line_that_does_not_fit_is_taken_back(tmp_path):
    """RLIMIT_FSIZE makes the kernel take a part of the bytes, as a full disk does."""
    path = tmp_path / "metrics.jsonl"
    code = f"""
import resource, signal
from pathlib import Path
from egpo.errors import EgpoError
from egpo.runs import MetricStream
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
stream = MetricStream(Path({str(path)!r}))
try:
    for step in range(1, 1000):
        stream.append(step, {{"x": step / 7}})
except EgpoError as error:
    print(error.exit_code, error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"1 {path}: the file cannot be written")
    assert "--resume" in done.stdout
    assert path.read_bytes().endswith(b"}\n")
    assert [line["step"] for line in read_metrics(path)] == list(range(1, len(read_metrics(path)) + 1))


def test_an_unwritable_place_is_an_error_of_the_machine(tmp_path):
    with pytest.raises(EgpoError, match="cannot be written"):
        MetricStream(tmp_path / "nowhere" / "metrics.jsonl").append(1, {})


@pytest.mark.parametrize("call", ["fsync", "truncate"])
def test_lines_that_cannot_be_synced_or_cut_are_an_error_of_the_machine(tmp_path, monkeypatch, call):
    stream = MetricStream(tmp_path / "metrics.jsonl")
    stream.append(1, {"a": 1.0})

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(EgpoError, match=r"metrics.jsonl: the file cannot be written \(Read-only file system\)"):
        stream.forget_after(0)


def test_killed_while_forgetting_the_kept_lines_stand(tmp_path):
    path = tmp_path / "metrics.jsonl"
    code = f"""
from pathlib import Path
from egpo.runs import MetricStream
stream = MetricStream(Path({str(path)!r}))
while True:
    stream.forget_after(50, gaps=True)
    for step in range(1 if not stream.path.exists() else 51, 80):
        stream.append(step, {{"x": step / 7}})
"""
    for moment in range(5):
        writer = subprocess.Popen([sys.executable, "-c", code])
        while not (path.exists() and path.read_bytes().count(b"\n") > 50):
            assert writer.poll() is None
            time.sleep(0.005)
        time.sleep(0.011 * moment)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        lines = read_metrics(path)
        assert lines == [{"step": step, "x": step / 7} for step in range(1, len(lines) + 1)]
        assert len(lines) >= 50


def test_lines_are_json_for_anybody(tmp_path):
    path = tmp_path / "metrics.jsonl"
    written(path, [{"ü/\ud800": 1.0}])
    line = json.loads(path.read_text(encoding="utf-8"))
    assert list(line) == ["step", "ü/\ud800", "line_sha256"]
    assert read_metrics(path) == [{"step": 1, "ü/\ud800": 1.0}]
