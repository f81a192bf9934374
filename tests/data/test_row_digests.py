"""A digest of data is a digest of rows: the same rows in another encoding are the same data."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from egpo.comparisons.comparison import compare_runs
from egpo.data.manifest import FileEntry, Manifest, data_digest, file_digest, read_manifest, rows_digest
from egpo.data.rows import Row, write_parquet
from egpo.errors import ConfigError, InputError
from egpo.runs import Provenance, describe_launch, read_provenance, record_resumption, write_provenance
from egpo.runs.folder import RunFolder
from tests.comparisons.folders import drawn, write_run, write_run_evaluation

ROWS = [
    Row("gsm8k", ({"role": "user", "content": f"Wie groß ist {i}?"},), "math", str(i), {"answer": f"#### {i}", "n": i})
    for i in range(300)
]
OTHER_SETTINGS = [
    {"compression": "none"},
    {"compression": "snappy", "row_group_size": 7},
    {"data_page_version": "2.0", "use_dictionary": False},
    {"version": "1.0", "write_statistics": False},
]


@pytest.fixture
def ours(tmp_path):
    path = tmp_path / "a" / "train.parquet"
    path.parent.mkdir()
    write_parquet(path, ROWS, "train")
    return path


def written_again(path, other, **settings):
    other.parent.mkdir(exist_ok=True)
    pq.write_table(pq.read_table(path), other, **settings)
    return other


@pytest.mark.parametrize("settings", OTHER_SETTINGS)
def test_the_same_rows_in_other_bytes_have_one_digest(ours, tmp_path, settings):
    other = written_again(ours, tmp_path / "b" / "train.parquet", **settings)
    assert file_digest(other) != file_digest(ours)
    assert rows_digest(other) == rows_digest(ours)
    assert data_digest(other) == f"rows:{rows_digest(ours)}"


def test_the_order_of_the_columns_does_not_matter_and_that_of_the_rows_does(ours, tmp_path):
    table = pq.read_table(ours)
    turned, upside_down = tmp_path / "turned.parquet", tmp_path / "down.parquet"
    pq.write_table(table.select(table.column_names[::-1]), turned)
    pq.write_table(table.take(pa.array(range(299, -1, -1))), upside_down)
    assert rows_digest(turned) == rows_digest(ours) != rows_digest(upside_down)


@pytest.mark.parametrize("column", ["data_source", "prompt", "ability", "reward_model", "extra_info"])
def test_one_changed_cell_is_another_digest(ours, tmp_path, column):
    values = pq.read_table(ours).to_pylist()
    cell = values[150][column]
    if column == "prompt":
        cell[0]["content"] += " "
    elif isinstance(cell, dict):
        cell[next(iter(cell))] = "other"
    else:
        values[150][column] = "other"
    other = tmp_path / "other.parquet"
    pq.write_table(pa.Table.from_pylist(values, schema=pq.read_schema(ours)), other)
    assert rows_digest(other) != rows_digest(ours)


def test_the_manifest_is_believed_only_while_it_describes_the_bytes(ours):
    def write(entry):
        Manifest("test", "generator", "", 1, 0, {}, {"train.parquet": entry}).write(ours.parent / "manifest.json")

    right = FileEntry.of(ours, 300)
    write(FileEntry(300, right.sha256, "f" * 64))
    assert data_digest(ours) == "rows:" + "f" * 64
    write(FileEntry(300, "0" * 64, "f" * 64))
    assert data_digest(ours) == f"rows:{right.rows_sha256}"


def test_an_older_manifest_is_read_and_its_rows_digested(ours):
    entry = {"rows": 300, "sha256": file_digest(ours)}
    told = {"kind": "test", "source": "generator", "source_sha256": "", "version": 1, "seed": 0, "settings": {}}
    (ours.parent / "manifest.json").write_text(json.dumps({**told, "files": {"train.parquet": entry}}))
    assert read_manifest(ours.parent).files["train.parquet"].rows_sha256 == ""
    assert data_digest(ours) == f"rows:{rows_digest(ours)}"


def test_a_run_that_recorded_bytes_is_resumed_on_the_same_file_and_refused_on_another(ours, tmp_path):
    path = tmp_path / "provenance.json"
    launch = describe_launch(threads=2)
    write_provenance(path, Provenance(0, {"train": file_digest(ours)}, launch))
    other = tmp_path / "other.parquet"
    write_parquet(other, ROWS[:200], "train")
    with pytest.raises(InputError, match="the data has changed since the run started"):
        record_resumption(path, launch, {"train": data_digest(other)}, {"train": other})
    record_resumption(path, launch, {"train": data_digest(ours)}, {"train": ours})
    assert read_provenance(path).data == {"train": data_digest(ours)}


def two_runs(tmp_path, digests, sources=(None, None)):
    runs = []
    for name, digest, source in zip(("grpo", "egpo"), digests, sources, strict=True):
        run = write_run(tmp_path / name, estimator=name, train=digest)
        if source is not None:
            config = RunFolder(run).config
            config.write_text(config.read_text().replace("{mode: binary}", f"{{mode: binary, source: {source}}}"))
        write_run_evaluation(run, drawn(0.5, 1))
        runs.append(run)
    return runs


def test_a_pair_on_the_same_rows_under_two_versions_of_pyarrow_is_fair(ours, tmp_path):
    other = written_again(ours, tmp_path / "b" / "train.parquet", compression="none")
    runs = two_runs(tmp_path, [data_digest(ours), data_digest(other)])
    assert not compare_runs(runs).unfair


def test_an_older_digest_of_bytes_is_compared_by_the_rows_of_its_file(ours, tmp_path):
    other = written_again(ours, tmp_path / "b" / "train.parquet", compression="none")
    runs = two_runs(tmp_path, [file_digest(ours), data_digest(other)], (ours.parent, other.parent))
    assert not compare_runs(runs).unfair


def test_without_the_file_it_cannot_be_decided_and_that_is_said(ours, tmp_path):
    runs = two_runs(tmp_path, ["ab" * 32, data_digest(ours)])
    with pytest.raises(
        ConfigError, match=r"abababababab \(of the bytes of a file that no longer exists: cannot be compared\)"
    ):
        compare_runs(runs)
