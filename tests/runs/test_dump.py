"""Rollout files: nothing is lost, and the audit replays them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.audits import audit_rewards, read_rollouts
from egpo.errors import EgpoWarning, InputError
from egpo.fingerprints import sealed_line, unsealed_line
from egpo.runs import RolloutRecord, TokenSpan, read_dump, token_spans, write_dump
from egpo.tasks import load_task


def record(**changes):
    fields = {
        "input": "2+2?", "output": "4", "gts": "4", "score": 1.0, "step": 3, "acc": True, "reason": "correct",
        "problem": "p", "sample": 0,
    }  # fmt: skip
    return RolloutRecord(**(fields | changes))


TEXTS = st.text(st.characters(), max_size=8)
RECORDS = st.builds(
    record,
    input=TEXTS,
    output=TEXTS,
    gts=TEXTS,
    score=st.floats(-2, 2),
    acc=st.booleans(),
    advantage=st.none() | st.floats(-2, 2),
    tokens=st.lists(TEXTS, max_size=3).map(tuple),
    token_entropy=st.lists(st.none() | st.floats(0, 9).map(lambda x: round(x, 4)), max_size=3).map(tuple),
    segments=st.dictionaries(st.sampled_from(["thinking", "answer"]), st.none() | st.floats(0, 9)),
    token_segment=st.lists(st.builds(TokenSpan, TEXTS, st.integers(0, 5), st.integers(0, 5)), max_size=2).map(tuple),
)


@given(st.lists(RECORDS, max_size=4))
def test_what_is_dumped_reads_back(records):
    """Model text is anything: line separators, NULs and lone surrogates too."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts" / "step_3.jsonl"
        write_dump(path, records)
        assert read_dump(path) == records


@given(st.lists(st.none() | st.sampled_from(["thinking", "answer"])))
def test_spans_say_the_segment_of_every_token(names):
    spread = [None] * len(names)
    spans = token_spans(names)
    for span in spans:
        assert span.start < span.end
        assert spread[span.start : span.end] == [None] * (span.end - span.start)
        spread[span.start : span.end] = [span.name] * (span.end - span.start)
    assert spread == names
    assert len(spans) <= len(names)


def test_verls_names_stand_in_the_file(tmp_path):
    import json

    path = tmp_path / "step_3.jsonl"
    entropy = (0.123456, float("nan"))
    write_dump(path, [record(tokens=("4", ""), token_entropy=entropy, token_segment=(TokenSpan("answer", 0, 2),))])
    line = json.loads(path.read_text())
    assert {"input", "output", "gts", "score", "step", "acc"} <= set(line)
    assert line["num_tokens"] == 2
    assert line["token_entropy"] == [0.1235, None]
    assert line["token_segment"] == [["answer", 0, 2]]


@pytest.mark.parametrize("name", ["countdown", "gsm8k", "function_calling", "code"])
def test_the_audit_agrees_with_the_verdicts_that_were_dumped(tmp_path, name):
    task = load_task(name)
    problem = task.problems("train")[0]
    texts = [task.gold(problem), "I do not know", ""]
    verdicts = [task.judge(problem, text) for text in texts]
    records = [
        record(
            output=text, gts=problem.ground_truth, score=verdict.reward, acc=verdict.correct, reason=verdict.reason,
            failed=verdict.failed, data_source=name, problem=problem.key, sample=sample, ability=problem.ability,
            extra_info=problem.extra,
        )
        for sample, (text, verdict) in enumerate(zip(texts, verdicts, strict=True))
    ]  # fmt: skip
    path = tmp_path / "step_3.jsonl"
    write_dump(path, records)
    stored = [rollout.stored for rollout in read_rollouts(path)]
    assert [(one.reward, one.correct, one.reason) for one in stored] == [
        (one.reward, one.correct, one.reason) for one in verdicts
    ]
    audit = audit_rewards(path, against="stored", workers=0)
    assert (audit.ours.rows, audit.num_different) == (3, 0)


def test_a_line_cut_in_half_is_passed_over_and_garbage_is_named(tmp_path):
    path = tmp_path / "step_3.jsonl"
    write_dump(path, [record(), record(sample=1)])
    path.write_bytes(path.read_bytes()[:-5])
    assert read_dump(path) == [record()]
    path.write_text('{"output": "4"}\n')
    with pytest.raises(InputError, match="line 1: the line is not a rollout record"):
        read_dump(path)
    path.write_text('{"output": "4", "later": 1, "token_segment": [["a"]]}\n')
    with pytest.raises(InputError, match="line 1: the line is not a rollout record"):
        read_dump(path)


def test_a_name_of_a_later_version_is_passed_over(tmp_path):
    path = tmp_path / "step_3.jsonl"
    write_dump(path, [record()])
    line = unsealed_line(path.read_bytes()).replace(b'{"input"', b'{"later": 1, "input"')
    path.write_bytes(sealed_line(line))
    assert read_dump(path) == [record()]


def test_a_disk_that_cannot_take_a_dump_does_not_stop_training(tmp_path):
    (tmp_path / "rollouts").write_text("a file where the folder should be")
    with pytest.warns(EgpoWarning, match="rollouts are not written"):
        write_dump(tmp_path / "rollouts" / "step_3.jsonl", [record()])


@pytest.mark.parametrize("value", [object(), float("nan")])
def test_what_json_cannot_hold_does_not_stop_training(tmp_path, value):
    with pytest.warns(EgpoWarning, match="rollouts are not written"):
        write_dump(tmp_path / "step_1.jsonl", [record(extra_info={"own": value})])
    assert list(tmp_path.iterdir()) == []
