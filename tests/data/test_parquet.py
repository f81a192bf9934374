"""verl parquet rows: one schema, a round trip, and rows of another's making."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from egpo.data.manifest import FileEntry, Manifest, file_digest, read_manifest, verify
from egpo.data.rows import ROW_GROUP, ParquetRows, Row, read_rows, write_parquet
from egpo.errors import InputError


def row(i, **extra):
    return Row("countdown", ({"role": "user", "content": f"é {i}"},), "math", json.dumps({"n": i}), extra)


def test_rows_come_back_as_they_were(tmp_path):
    rows = [row(i, answer=f"a{i}", source_row=i) for i in range(2 * ROW_GROUP + 1)]
    assert write_parquet(tmp_path / "train.parquet", rows, "train") == len(rows)
    assert list(read_rows(tmp_path / "train.parquet")) == rows
    stored = ParquetRows(tmp_path / "train.parquet", lambda row: row)
    assert len(stored) == len(rows)
    assert [stored[0], stored[-1], *stored[5:7]] == [rows[0], rows[-1], *rows[5:7]]
    with pytest.raises(IndexError):
        stored[len(rows)]
    assert list(ParquetRows(tmp_path / "train.parquet", lambda row: row.ground_truth, 2)) == ['{"n": 0}', '{"n": 1}']


def test_the_schema_is_the_one_that_verl_reads(tmp_path):
    write_parquet(tmp_path / "test.parquet", [row(0, answer="x")], "test")
    assert pq.read_table(tmp_path / "test.parquet").to_pylist() == [
        {
            "data_source": "countdown",
            "prompt": [{"role": "user", "content": "é 0"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": '{"n": 0}'},
            "extra_info": {"split": "test", "index": 0, "answer": "x"},
        }
    ]


@pytest.mark.parametrize("other", [row(1), row(1, answer="x", more="y"), row(1, answer=3), row(1, other="x")])
def test_mixed_schemas_are_refused(tmp_path, other):
    rows = [row(0, answer="x")] * ROW_GROUP + [other]
    with pytest.raises(InputError, match=f"row {ROW_GROUP}"):
        write_parquet(tmp_path / "train.parquet", rows, "train")


def test_no_rows_and_reserved_keys_are_refused(tmp_path):
    with pytest.raises(InputError, match="the split has no rows"):
        write_parquet(tmp_path / "train.parquet", [], "train")
    with pytest.raises(InputError, match="rename the key"):
        write_parquet(tmp_path / "train.parquet", [row(0, index=3)], "train")


def test_rows_of_another_makers_parquet(tmp_path):
    """Nested ground truths, as the public Countdown preparation writes them, become JSON text."""
    value = {
        "data_source": "countdown",
        "prompt": [{"role": "user", "content": "q"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": {"numbers": [1, 2], "target": 3}},
        "extra_info": {"split": "train", "index": 0, "ok": True, "nothing": None},
    }
    pq.write_table(pa.Table.from_pylist([value]), tmp_path / "theirs.parquet")
    (theirs,) = read_rows(tmp_path / "theirs.parquet")
    assert json.loads(theirs.ground_truth) == {"numbers": [1, 2], "target": 3}
    assert theirs.extra == {"ok": "true"}


@pytest.mark.parametrize(
    "broken", [{"reward_model": None}, {"reward_model": {"style": "rule"}}, {"prompt": "text"}, {"prompt": []}]
)
def test_a_row_without_ground_truth_or_prompt_names_itself(tmp_path, broken):
    good = row(0).to_record("train", 0)
    good.pop("extra_info")
    (tmp_path / "rows.jsonl").write_text(json.dumps(good) + "\n" + json.dumps({**good, **broken}))
    with pytest.raises(InputError, match=r"rows.jsonl, line 2: .*(ground_truth|prompt)"):
        list(read_rows(tmp_path / "rows.jsonl"))


def test_an_edited_file_does_not_pass_for_the_one_in_the_manifest(tmp_path):
    write_parquet(tmp_path / "train.parquet", [row(0)], "train")
    entry = FileEntry(1, file_digest(tmp_path / "train.parquet"))
    manifest = Manifest("test", "generator", "", 1, 0, {}, {"train.parquet": entry})
    manifest.write(tmp_path / "manifest.json")
    assert read_manifest(tmp_path) == manifest
    verify(tmp_path, "train.parquet")
    write_parquet(tmp_path / "train.parquet", [row(1)], "train")
    with pytest.raises(InputError, match="does not match its digest in manifest"):
        verify(tmp_path, "train.parquet")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": {"a": 1}}'])
def test_a_manifest_that_is_none(tmp_path, text):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(InputError, match="not a valid manifest"):
        read_manifest(tmp_path)
