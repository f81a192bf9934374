"""Records out of every format, one at a time, and errors that name the place."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.data import readers
from egpo.data.readers import read_records
from egpo.errors import InputError

ROWS = [
    {"a": 1, "text": 'é 東京 \n "}{][,', "b": [1, {"c": None}]},
    {"a": 2, "text": "", "b": []},
    {"a": -3, "text": "x", "b": []},
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
records = st.lists(st.dictionaries(st.text(), json_values, max_size=4), min_size=1, max_size=6)


def values(path):
    return [record.value for record in read_records(path)]


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rows.jsonl", "\n".join(json.dumps(row) for row in ROWS)),
        ("rows.ndjson", "\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n"),
        ("lines.json", "\n".join(json.dumps(row) for row in ROWS)),
        ("crlf.jsonl", "\r\n".join(json.dumps(row) for row in ROWS)),
        ("bom.jsonl", "\ufeff" + "\n".join(json.dumps(row) for row in ROWS)),
        ("array.json", json.dumps(ROWS)),
        ("pretty.json", "\n " + json.dumps(ROWS, indent=2) + "\n\n"),
        ("bom.json", "\ufeff" + json.dumps(ROWS)),
        ("members.json", json.dumps({str(i): row for i, row in enumerate(ROWS)})),
        ("pretty_members.json", json.dumps({str(i): row for i, row in enumerate(ROWS)}, indent=1)),
    ],
)
def test_every_json_form_gives_the_same_records(tmp_path, name, text):
    assert values(write(tmp_path / name, text)) == ROWS


def test_parquet_gives_the_same_records_whatever_its_name(tmp_path):
    rows = [{"a": i, "b": [str(i)]} for i in range(3000)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.data", row_group_size=700)
    assert values(tmp_path / "rows.data") == rows


def test_a_single_conversation_is_one_record(tmp_path):
    conversation = {"0": {"role": "system", "tools": "[]"}, "1": {"role": "user", "content": "hi"}}
    for indent in (None, 2):
        assert values(write(tmp_path / "one.json", json.dumps(conversation, indent=indent))) == [conversation]


@given(rows=records, chunk=st.integers(1, 40), form=st.sampled_from(["array", "members", "indented"]))
def test_the_window_may_cut_anywhere(tmp_path_factory, rows, chunk, form):
    path = tmp_path_factory.mktemp("window") / "rows.json"
    write(
        path,
        json.dumps(rows, indent=2 if form == "indented" else None, ensure_ascii=False)
        .encode("utf-8", "replace")
        .decode(),
    )
    expected = json.loads(path.read_text(encoding="utf-8"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "CHUNK_CHARS", chunk)
        if form == "members":
            write(path, json.dumps({str(i): row for i, row in enumerate(expected)}))
            assert [value for _, value in readers.iter_members(path)] == expected
        else:
            assert list(readers.iter_array(path)) == expected


@pytest.mark.parametrize(
    ("name", "text", "place", "what"),
    [
        ("cut.jsonl", '{"a": 1}\n{"a": 2}\n{"a": ', "line 3", "not valid JSON"),
        ("cut_in_the_middle.jsonl", '{"a": 1}\n{"a": \n{"a": 3}', "line 2", "not valid JSON"),
        ("array.jsonl", '{"a": 1}\n[1, 2]', "line 2", "not a JSON object"),
        ("nan.jsonl", '{"a": 1}\n{"a": NaN}', "line 2", "NaN is not JSON"),
        ("deep.jsonl", '{"a": ' + "[" * 200_000, "line 1", "not valid JSON"),
        ("digits.jsonl", '{"a": ' + "9" * 10_000 + "}", "line 1", "not valid JSON"),
        ("cut.json", '[{"a": 1}, {"a": 2}, {"a":', "record 3", "not valid JSON"),
        ("cut_between.json", '[{"a": 1}, {"a": 2},', "record 3", "not a JSON object"),
        ("no_end.json", '[{"a": 1}, {"a": 2}', "record 2", "the end of the file"),
        ("scalars.json", "[1, 2]", "record 1", "not a JSON object"),
        ("more.json", '[{"a": 1}] x', "record 1", "text after the end"),
        ("broken.json", '[{"a": 1}, {"a" 2}]', "record 2", "not valid JSON"),
        ("deep.json", '[{"a": ' + "[" * 200_000 + "]", "record 1", "nested too deeply"),
        ("member.json", '{"x": {"a": 1}, "y": 3}', "record 2", "not a JSON object"),
        ("words.json", "hello", "words.json", "neither JSON"),
        ("words.txt", "hello", "words.txt", "neither JSON"),
        ("empty.jsonl", "", "empty.jsonl", "no record"),
        ("blank.jsonl", "\n \n", "blank.jsonl", "no record"),
        ("empty.json", "", "empty.json", "empty"),
        ("no_rows.json", "[]", "no_rows.json", "no record"),
        ("no_members.json", "{}", "no_members.json", "no record"),
        ("liar.parquet", '{"a": 1}', "liar.parquet", "not a parquet file"),
        ("cut.parquet", "PAR1 and then nothing", "cut.parquet", "the parquet file cannot be read"),
    ],
)
def test_what_cannot_be_read_names_its_place(tmp_path, name, text, place, what):
    path = write(tmp_path / name, text)
    with pytest.raises(InputError) as caught:
        values(path)
    assert place in str(caught.value)
    assert what in str(caught.value)
    assert caught.value.faults[0].fix


def test_bytes_that_are_not_utf8_name_their_line(tmp_path):
    (tmp_path / "latin.jsonl").write_bytes(b'{"a": 1}\n{"a": "\xe9"}\n')
    with pytest.raises(InputError, match=r"line 2: the text is not UTF-8"):
        values(tmp_path / "latin.jsonl")
    (tmp_path / "latin.json").write_bytes(b'[{"a": 1},{"a": "\xe9"}]\n')
    with pytest.raises(InputError, match="not UTF-8"):
        values(tmp_path / "latin.json")


def test_missing_files_and_directories_are_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        read_records(tmp_path / "absent.jsonl")
    with pytest.raises(InputError, match="not a file"):
        read_records(tmp_path)


def test_a_syntax_error_is_found_where_it_is_and_not_at_the_end_of_a_long_file(tmp_path, monkeypatch):
    """The window does not grow over the rest of the file in search of an end that cannot come."""
    monkeypatch.setattr(readers, "CHUNK_CHARS", 100)
    read = []
    plain = readers._Cursor._read_on
    monkeypatch.setattr(readers._Cursor, "_read_on", lambda self, chars: read.append(chars) or plain(self, chars))
    path = write(tmp_path / "long.json", '[{"a" 1}, ' + ", ".join(['{"a": 1}'] * 5000) + "]")
    with pytest.raises(InputError, match="record 1"):
        values(path)
    assert len(read) < 4
