"""Whole files: the exact split, streaming, what is dropped, and the way back."""

import json
import random
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from egpo.data import DROP_REASONS, SplitRule, convert, export_messages, read_manifest, read_rows, readers, rows
from egpo.data.conversion import CONVERTERS
from egpo.data.splits import Spool
from egpo.errors import InputError
from tests.data.qwen3 import tokenizer

TOOLS = '[{"name": "f", "parameters": {"type": "object", "properties": {}}}]'


def xlam(i, **change):
    return {
        "query": f"question {i}",
        "tools": TOOLS,
        "answers": json.dumps([{"name": "f", "arguments": {"i": i}}]),
        **change,
    }


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def source_rows(path):
    return [row.extra["source_row"] for row in read_rows(path)]


def test_the_published_split_to_the_row(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", [xlam(i) for i in range(1000)])
    done = convert("xlam", source, tmp_path / "out", SplitRule())
    assert done.rows == {"train": 950, "test": 50}
    assert source_rows(tmp_path / "out" / "test.parquet")[:5] == [978, 933, 859, 916, 127]
    first = next(read_rows(tmp_path / "out" / "test.parquet"))
    assert first.prompt[-1]["content"] == "question 978"


def test_max_samples_from_the_head_and_from_the_whole_file(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", [xlam(i) for i in range(200)])
    convert("xlam", source, tmp_path / "head", SplitRule(max_samples=20, shuffle=False))
    taken = source_rows(tmp_path / "head" / "train.parquet") + source_rows(tmp_path / "head" / "test.parquet")
    assert sorted(taken) == list(range(20))
    convert("xlam", source, tmp_path / "all", SplitRule(max_samples=20))
    taken = source_rows(tmp_path / "all" / "train.parquet") + source_rows(tmp_path / "all" / "test.parquet")
    assert len(set(taken)) == 20
    assert max(taken) > 100


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", [xlam(i) for i in range(300)])
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        convert("xlam", source, tmp_path / name, SplitRule(seed=seed))
    files = {name: {p.name: p.read_bytes() for p in sorted((tmp_path / name).iterdir())} for name in "abc"}
    assert files["a"] == files["b"]
    assert set(files["a"]) == {"train.parquet", "test.parquet", "manifest.json"}
    assert files["a"]["train.parquet"] != files["c"]["train.parquet"]


def test_duplicates_are_dropped_counted_and_never_in_both_splits(tmp_path):
    rows = [xlam(i % 100) for i in range(300)]
    source = write_lines(tmp_path / "rows.jsonl", rows)
    done = convert("xlam", source, tmp_path / "out", SplitRule(test_size=0.5))
    assert done.dropped == {"duplicate": 200}
    prompts = [{str(row.prompt) for row in read_rows(tmp_path / "out" / f"{s}.parquet")} for s in ("train", "test")]
    assert not prompts[0] & prompts[1]
    done = convert("xlam", source, tmp_path / "kept", SplitRule(test_size=0.5, keep_duplicates=True))
    assert (done.rows, done.dropped) == ({"train": 150, "test": 150}, {})


def test_every_drop_is_in_the_table_and_in_the_manifest(tmp_path):
    rows = [xlam(0), xlam(1, answers="["), xlam(2, tools="["), xlam(3, query="\ud800"), xlam(4, answers="[]"), xlam(4)]
    done = convert("xlam", write_lines(tmp_path / "rows.jsonl", rows), tmp_path / "out", SplitRule(test_size=0.5))
    assert done.dropped == {"bad_calls": 1, "bad_tools": 1, "lone_surrogate": 1, "duplicate": 1}
    assert done.read == sum(done.rows.values()) + sum(done.dropped.values())
    assert done.without_call == 1
    assert read_manifest(tmp_path / "out").dropped == done.dropped


def test_the_manifest_says_what_was_read_and_written(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", [xlam(i) for i in range(40)])
    convert("xlam", source, tmp_path / "out", SplitRule(seed=7))
    manifest = read_manifest(tmp_path / "out")
    assert (manifest.kind, manifest.source, manifest.seed, manifest.version) == ("xlam", "rows.jsonl", 7, 2)
    assert len(manifest.source_sha256) == 64
    assert {name: entry.rows for name, entry in manifest.files.items()} == {"train.parquet": 38, "test.parquet": 2}
    assert str(tmp_path) not in (tmp_path / "out" / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("rows", "rule", "message"),
    [
        ([xlam(0), xlam(1), {"query": "q"}], SplitRule(), r"line 3: the record has no `tools`, `answers`"),
        ([xlam(0)], SplitRule(), "leaves none of 1 rows for training"),
        (
            [xlam(0, answers="["), xlam(1, answers="[")],
            SplitRule(),
            r"all 2 records of the file were dropped \(bad_calls: 2\)",
        ),
        ([xlam(0), {"messages": []}], SplitRule(), r"line 2: the record has no `query`"),
    ],
)
def test_bad_input_leaves_nothing_behind(tmp_path, rows, rule, message):
    source = write_lines(tmp_path / "rows.jsonl", rows)
    with pytest.raises(InputError, match=message):
        convert("xlam", source, tmp_path / "out" / "deep", rule)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]


def test_a_failure_half_way_leaves_the_old_conversion(tmp_path):
    source = write_lines(tmp_path / "rows.jsonl", [xlam(i) for i in range(40)])
    convert("xlam", source, tmp_path / "out", SplitRule())
    old = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    source.write_text(source.read_text() + '{"query": ')
    with pytest.raises(InputError, match="line 41: the record is not valid JSON"):
        convert("xlam", source, tmp_path / "out", SplitRule(), force=True)
    with pytest.raises(InputError, match="already holds"):
        convert("xlam", source, tmp_path / "out", SplitRule())
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == old


def write_form(path, form, num_rows):
    rng = random.Random(0)
    rows = [xlam(i, query=f"{i} {rng.getrandbits(8_000):x}") for i in range(num_rows)]
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=50)
    else:
        path.write_text(json.dumps(rows) if form == "array" else "\n".join(map(json.dumps, rows)))
    return path


def peak_memory(source, out, rule):
    tracemalloc.start()
    try:
        convert("xlam", source, out, rule)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", ["lines", "array", "parquet"])
def test_memory_does_not_grow_with_the_file(tmp_path, monkeypatch, form):
    """Four times the rows, shuffled and all, take the memory of one window of them. The windows are small here."""
    monkeypatch.setattr(rows, "ROW_GROUP", 64)
    monkeypatch.setattr(readers, "_PARQUET_BATCH", 64)
    for module in (readers, readers):
        monkeypatch.setattr(module, "CHUNK_CHARS", 1 << 14)
    peaks = [
        peak_memory(write_form(tmp_path / f"{n}.data", form, n), tmp_path / str(n), SplitRule(max_samples=n - 1))
        for n in (300, 1200)
    ]
    assert peaks[1] < 1.3 * peaks[0]


def test_the_way_back_and_there_again(tmp_path):
    rows = [xlam(i) for i in range(40)] + [xlam(40, answers="[]")]
    convert("xlam", write_lines(tmp_path / "rows.jsonl", rows[:40]), tmp_path / "out", SplitRule(test_size=0.25))
    done = export_messages(tmp_path / "out", tmp_path / "sft")
    assert done.rows == {"train.jsonl": 30, "test.jsonl": 10}
    lines = [json.loads(line) for line in (tmp_path / "sft" / "test.jsonl").read_text().splitlines()]
    for line, row in zip(lines, read_rows(tmp_path / "out" / "test.parquet"), strict=True):
        assert line["messages"] == [*row.prompt, {"role": "assistant", "content": row.ground_truth}]
    again = convert("messages", tmp_path / "sft" / "train.jsonl", tmp_path / "again", SplitRule())
    assert again.dropped == {}
    before = {str(row.prompt): row for row in read_rows(tmp_path / "out" / "train.parquet")}
    for split in ("train", "test"):
        for row in read_rows(tmp_path / "again" / f"{split}.parquet"):
            old = before[str(row.prompt)]
            assert (row.ground_truth, row.extra["tools"], row.extra["answer"]) == (
                old.ground_truth,
                old.extra["tools"],
                old.extra["answer"],
            )


def test_a_row_without_an_answer_cannot_go_back(tmp_path):
    rows = [xlam(i, answers="[]") for i in range(10)]
    convert("xlam", write_lines(tmp_path / "rows.jsonl", rows), tmp_path / "out", SplitRule())
    with pytest.raises(
        InputError, match=r"train.parquet: none of the file's rows has an answer to learn from \(no_answer: 9\)"
    ):
        export_messages(tmp_path / "out", tmp_path / "sft")
    assert not (tmp_path / "sft").exists()
    with pytest.raises(InputError, match=r"no folder with train.parquet"):
        export_messages(tmp_path, tmp_path / "sft")


def test_token_statistics_per_split(tmp_path):
    rows = [xlam(i) for i in range(40)]
    done = convert(
        "xlam", write_lines(tmp_path / "rows.jsonl", rows), tmp_path / "out", SplitRule(), tokenizer=tokenizer()
    )
    for split in ("train", "test"):
        stored = list(read_rows(tmp_path / "out" / f"{split}.parquet"))
        lengths = [
            len(tokenizer().apply_chat_template(list(row.prompt), add_generation_prompt=True, return_dict=False))
            for row in stored
        ]
        statistics = done.tokens[split]
        assert statistics.prompt.max == max(lengths)
        assert statistics.prompt.total == sum(lengths)
        assert statistics.answer.total == sum(len(tokenizer().encode(row.ground_truth)) for row in stored)
        assert statistics.prompt.median <= statistics.prompt.p95 <= statistics.prompt.max


def test_the_spool_leaves_no_file(tmp_path):
    with Spool(tmp_path) as spool:
        assert len(spool) == 0
        assert list(tmp_path.iterdir()) == []


def test_every_converter_is_named():
    assert set(CONVERTERS) == {"hardgen", "messages", "xlam"}


def test_the_documentation_lists_every_reason_for_dropping():
    shown = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    for reason, meaning in DROP_REASONS.items():
        assert f"| `{reason}` | {meaning} |" in shown
