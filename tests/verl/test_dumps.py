"""A step's responses of verl's batch, as every engine keeps them: written, read back, and held against the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from egpo.assets import resolve_model
from egpo.runs.dump import read_dump, write_dump
from egpo.segments.tags import TokenTexts
from egpo.verl.dumps import DumpSettings, rollout_records
from egpo.verl.measures import measure, truncated_fraction
from egpo.verl.rows import Rows
from egpo.verl.settings import VARIABLE, is_due
from tests.verl.batches import feed_for

pytestmark = pytest.mark.filterwarnings("ignore:.*have neither:egpo.errors.EgpoWarning")  # one response has no tags
TAGS = ("<think>", "</think>")
TEXTS = ["<think>\n1+2=3\n</think>\n\n<answer>1+2</answer>", "<think>\nno", "<answer>3</answer>", "7 yes\n</think>\n4"]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(resolve_model("egpo-tiny"))


def padded(rows):
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in rows], batch_first=True)


def feed_of(tokenizer, texts=TEXTS):
    """Two groups, whose rows verl has shuffled to balance its ranks."""
    keys = ["b-uid_0_0", "a-uid_0_0", "b-uid_1_0", "a-uid_1_0"]
    responses = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    prompts = padded([tokenizer("Make 3.", add_special_tokens=False)["input_ids"]] * len(texts))
    response_BT, mask_BT = padded(responses), padded([[True] * len(ids) for ids in responses]).bool()
    drawn = torch.rand(response_BT.shape, generator=torch.Generator().manual_seed(0))
    feed = feed_for(keys)
    rows = Rows(
        groups=feed.rows.groups,
        prompt_BS=prompts,
        prompt_mask_BS=torch.ones_like(prompts, dtype=torch.bool),
        response_BT=response_BT,
        mask_BT=mask_BT,
        entropy_BT=drawn * mask_BT,
        logp_BT=-drawn,
        score_B=torch.tensor([1.0, 0.0, 0.5, 0.0]),
        sampled_logp_BT=None,
        information=tuple({"acc": float(n == 0), "failed": float(n == 2), "reason": f"r{n}"} for n in range(4)),
    )
    return replace(feed, rows=rows, measures=measure(rows, tokenizer, TAGS))


def data_of(feed):
    count = len(feed.rows.groups)
    objects = {
        "reward_model": [{"ground_truth": f"truth {n}"} for n in range(count)],
        "data_source": ["countdown"] * count,
        "extra_info": [{"split": "train", "index": 7 if group == "a-uid" else 9, "tools": "[]", "num_turns": 2}
                       for group in feed.rows.groups],
    }  # fmt: skip
    advantage_BT = torch.arange(1.0, count + 1)[:, None] * feed.rows.mask_BT
    return {name: np.array(values, dtype=object) for name, values in objects.items()} | {"advantages": advantage_BT}


def dumped(tokenizer, feed, longest=99):
    return list(rollout_records(feed, data_of(feed), 5, DumpSettings(tokenizer, TokenTexts(tokenizer), longest)))


def test_every_response_comes_back_as_it_was_judged_and_measured(tokenizer, tmp_path):
    feed = feed_of(tokenizer)
    write_dump(tmp_path / "5.jsonl", dumped(tokenizer, feed))
    records = read_dump(tmp_path / "5.jsonl")
    by_text = {record.output: record for record in records}
    for row, text in enumerate(TEXTS):
        record = by_text[text]
        length = int(feed.rows.mask_BT[row].sum())
        assert (record.score, record.reason) == (float(feed.rows.score_B[row]), f"r{row}")
        assert (record.acc, record.failed) == (row == 0, row == 2)
        assert (record.gts, record.data_source, record.advantage) == (f"truth {row}", "countdown", row + 1.0)
        assert "".join(record.tokens) == text
        assert list(record.token_entropy) == [round(e, 4) for e in feed.rows.entropy_BT[row, :length].tolist()]
        assert record.extra_info == {"tools": "[]"}, "without what verl and the row's place put in"


def test_groups_stand_together_and_their_samples_are_counted(tokenizer):
    records = dumped(tokenizer, feed_of(tokenizer))
    assert [(record.problem, record.sample) for record in records] == [
        ("train 9", 0), ("train 9", 1), ("train 7", 0), ("train 7", 1)]  # fmt: skip


def test_the_spans_are_the_segments_that_were_measured(tokenizer):
    feed = feed_of(tokenizer)
    for record in dumped(tokenizer, feed):
        for span in record.token_segment:
            inside = record.token_entropy[span.start : span.end]
            assert sum(inside) / len(inside) == pytest.approx(record.segments[span.name], rel=1e-5)
        named = {span.name for span in record.token_segment}
        assert named == {name for name in ("thinking", "answer") if record.segments[name] == record.segments[name]}


def test_a_response_at_the_longest_length_did_not_finish(tokenizer):
    feed = feed_of(tokenizer)
    longest = int(feed.rows.mask_BT.sum(1).max())
    unfinished = [record.output for record in dumped(tokenizer, feed, longest) if not record.finished]
    assert unfinished == [TEXTS[int(feed.rows.mask_BT.sum(1).argmax())]]


def test_an_empty_response_is_a_record_too(tokenizer):
    feed = feed_of(tokenizer)
    mask_BT = feed.rows.mask_BT.clone()
    mask_BT[0] = False
    record = next(
        one for one in dumped(tokenizer, replace(feed, rows=replace(feed.rows, mask_BT=mask_BT))) if one.reason == "r0"
    )
    assert (record.output, record.tokens, record.advantage) == ("", [], None)


def test_cut_off_counts_those_that_reached_the_limit_and_not_the_longest_of_the_batch():
    tags = [{"response_len": 3}, {"response_len": 9}, {"response_len": 1, "is_padding": True}]
    assert truncated_fraction(tags, longest=10) == {"response_length/clip_ratio": 0.0}
    assert truncated_fraction(tags, longest=9) == {"response_length/clip_ratio": 0.5}
    assert truncated_fraction([], longest=9) == {}


@pytest.mark.parametrize(("every", "due"), [("0", [1, 7]), ("3", [1, 3, 6, 7]), (None, [1, 2, 3, 4, 5, 6, 7])])
def test_dumps_come_at_their_period_and_at_both_ends(monkeypatch, every, due):
    monkeypatch.delenv(VARIABLE, raising=False)
    if every is not None:
        monkeypatch.setenv(VARIABLE, every)
    assert [step for step in range(1, 8) if is_due(step, 7)] == due
