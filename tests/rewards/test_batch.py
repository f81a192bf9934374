"""Batches: the same answers as one by one, whatever happens to the workers."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egpo.errors import EgpoError, InputError
from egpo.rewards import Sample, score, score_many
from egpo.rewards.batch import score_stream
from egpo.rewards.worker_pool import CHUNK_ROWS, CHUNKS_AHEAD, WorkerPool
from tests.waiting import all_end

PUZZLE = '{"numbers": [3, 5, 7], "target": 22}'
TEXTS = st.one_of(
    st.text(),
    st.integers().map("#### {}".format),
    st.sampled_from(["<answer>3*5+7</answer>", "\ud800\x00", r"\boxed{18}"]),
)
ROWS = st.one_of(
    st.builds(lambda t: {"data_source": "gsm8k", "reward_model": {"ground_truth": "18"}, "response": t}, TEXTS),
    st.builds(lambda t: {"data_source": "countdown", "ground_truth": PUZZLE, "text": t, "prompt": []}, TEXTS),
    st.builds(lambda t: Sample("bfcl", t, "", extra_info={"mode": "plain"}), TEXTS),
)


@settings(max_examples=6)
@given(rows=st.lists(ROWS, max_size=40), workers=st.integers(0, 3))
def test_the_same_answers_as_one_by_one_in_order(rows, workers):
    samples = [row if isinstance(row, Sample) else None for row in rows]
    alone = [
        score(s.data_source, s.response, s.ground_truth, s.extra_info)
        if s
        else score(r["data_source"], r.get("response", r.get("text")), r.get("ground_truth", "18"))
        for r, s in zip(rows, samples, strict=True)
    ]
    assert score_many(rows, workers=workers) == alone


def numbered(count):
    return [Sample("gsm8k", f"#### {i % 7}", "3") for i in range(count)]


def test_many_chunks_keep_their_order():
    verdicts = [outcome[0].correct for outcome in score_stream(iter(numbered(3000)), workers=2, chunk_rows=7)]
    assert verdicts == [i % 7 == 3 for i in range(3000)]


def test_reading_ahead_is_bounded():
    read = 0

    def endless():
        nonlocal read
        while True:
            read += 1
            yield Sample("gsm8k", "#### 3", "3")

    stream = score_stream(endless(), workers=2, chunk_rows=5)
    assert all(next(stream)[0].correct for _ in range(50))
    stream.close()
    assert read <= 50 + CHUNKS_AHEAD * 2 * CHUNK_ROWS + 2 * 5


def test_long_responses_that_wait_for_a_slow_row_are_bounded_too():
    read = 0

    def long_ones():
        nonlocal read
        while True:
            read += 1
            yield Sample("gsm8k", "x" * 2_000_000 + "#### 3", "3")

    stream = score_stream(long_ones(), workers=1)
    assert next(stream)[0].correct
    stream.close()
    assert read <= 10


def test_a_pool_serves_batch_after_batch_with_the_same_processes():
    others = children_of(os.getpid())
    with WorkerPool(2) as pool:
        assert sum(verdict.correct for verdict in score_many(numbered(70), pool=pool)) == 10
        workers = set(children_of(os.getpid())) - set(others)
        left_half_way = pool.judge(numbered(5000), 5)
        assert isinstance(next(left_half_way), tuple)
        assert [v.correct for v in score_many(numbered(140), pool=pool)] == [i % 7 == 3 for i in range(140)]
        assert score_many([], pool=pool) == []
    assert all_end(workers)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for the workers in /proc")
def test_a_worker_that_died_while_idle_costs_no_row():
    others = children_of(os.getpid())
    with WorkerPool(1) as pool:
        assert all(v.correct for v in score_many([Sample("gsm8k", "#### 3", "3")], pool=pool))
        (worker,) = set(children_of(os.getpid())) - set(others)
        os.kill(worker, signal.SIGKILL)
        assert all_end([worker])
        assert all(v.correct for v in score_many([Sample("gsm8k", "#### 3", "3")] * 2, pool=pool))


@pytest.fixture
def poison(tmp_path, monkeypatch):
    """A reward that kills its process on one kind of response."""
    (tmp_path / "poison_reward.py").write_text(
        "import os, signal\n"
        "def judge(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    if solution_str == 'poison': os.kill(os.getpid(), signal.SIGKILL)\n"
        "    if solution_str == 'raise': raise KeyError('oh')\n"
        "    print('noise')\n"
        "    return {'score': float(solution_str), 'acc': 1.0, 'reason': 'mine'}\n"
    )
    monkeypatch.chdir(tmp_path)
    return "poison_reward:judge"


def test_a_row_that_kills_its_worker_costs_only_itself(poison):
    samples = [Sample("x", "poison" if i in (5, 6, 30) else str(i), "") for i in range(40)]
    outcomes = list(score_stream(samples, rewards=[poison], workers=2, chunk_rows=8))
    assert [i for i, (verdict,) in enumerate(outcomes) if verdict.failed] == [5, 6, 30]
    assert outcomes[5][0].reason == "worker_died"
    assert [verdict.reward for (verdict,) in outcomes if not verdict.failed] == [
        i for i in range(40) if i not in (5, 6, 30)
    ]


def test_a_reward_from_outside_that_raises_is_a_failure(poison):
    outcomes = list(score_stream([Sample("x", "raise", ""), Sample("x", "2", "")], rewards=[poison, None], workers=1))
    assert isinstance(outcomes[0], InputError)  # `x` is no data source of ours
    (only,) = next(iter(score_stream([Sample("x", "raise", "")], rewards=[poison], workers=1)))
    assert (only.reason, only.failed) == ("reward_raised", True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_ground_truth_names_its_row(workers):
    rows = [{"data_source": "gsm8k", "response": "#### 1", "ground_truth": "1"}] * 100
    rows[71] = {**rows[71], "ground_truth": "one"}
    with pytest.raises(InputError, match="row 71, gsm8k ground truth"):
        score_many(rows, workers=workers)


@pytest.mark.parametrize(
    ("row", "what"),
    [({}, "no response"), ({"response": ""}, "no ground truth"), ({"response": 3, "ground_truth": "1"}, "is not text")],
)
def test_a_row_that_lacks_something_is_named(row, what):
    good = {"data_source": "gsm8k", "response": "", "ground_truth": "1"}
    with pytest.raises(InputError, match=f"row 1.*{what}"):
        score_many([good, row], workers=0)


def test_no_rows_and_wrong_counts():
    assert score_many([]) == []
    with pytest.raises(InputError, match="the number of workers is negative"):
        score_many([], workers=-1)


def test_an_unknown_reward_is_told_by_the_worker_too():
    for workers in (0, 1):
        with pytest.raises(InputError, match="did you mean `countdown`"):
            list(score_stream(numbered(1), rewards=["countdwn"], workers=workers))


def test_a_worker_that_cannot_start_is_our_error(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(EgpoError, match="did not start"), WorkerPool(1, [None]) as pool:
        list(pool.judge(numbered(1)))


def test_a_bar_goes_to_stderr_when_asked(capsys):
    score_many(numbered(20), workers=0, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "20/20" in err


SCRIPT = """
from egpo.rewards import Sample, score_many
print(sum(v.correct for v in score_many([Sample("gsm8k", "#### 3", "3")] * 50, workers=2)))
"""


def test_a_script_without_a_main_guard_and_one_from_stdin_may_use_it(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    by_file = subprocess.run([sys.executable, str(tmp_path / "script.py")], capture_output=True, text=True, check=True)
    by_stdin = subprocess.run([sys.executable], input=SCRIPT, capture_output=True, text=True, check=True)
    assert by_file.stdout == by_stdin.stdout == "50\n"


def children_of(pid):
    """The processes whose parent is `pid`."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(status.parent.name))
    return found


SLOW = """
import os, time
from egpo.rewards import Sample
from egpo.rewards.batch import score_stream
def judge(solution_str):
    os.write(2, b"busy\\n")
    time.sleep(600)
if __name__ == "__main__":
    list(score_stream([Sample("x", "", "")] * 2, rewards=[__file__ + ":judge"], workers=2, chunk_rows=1))
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for orphans in /proc")
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_batch_leaves_no_orphans(tmp_path, stop):
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, str(tmp_path / "slow.py")]
    script = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert [script.stderr.readline() for _ in range(2)] == ["busy\n"] * 2
        workers = children_of(script.pid)
        assert len(workers) == 2
        # As a terminal does it: Ctrl-C goes to the whole group. A kill goes to the one process.
        os.killpg(script.pid, stop) if stop == signal.SIGINT else os.kill(script.pid, stop)
        assert all_end(workers)
        _, err = script.communicate(timeout=30)
    finally:
        script.kill()
    assert script.returncode == -stop
    assert err.count("Traceback") == (1 if stop == signal.SIGINT else 0)


def test_samples_travel_with_lone_surrogates_and_json_extras():
    row = {
        "data_source": "gsm8k",
        "response": "\ud800 #### 18",
        "reward_model": json.dumps({"ground_truth": "18"}),
        "extra_info": '{"mode": "shaped"}',
    }
    assert score_many([row], workers=1)[0].reward == pytest.approx(1.1)
