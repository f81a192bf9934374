"""What must be known to make a run again."""

import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

import egpo
from egpo.errors import EgpoWarning, InputError
from egpo.fingerprints import code_digest
from egpo.runs import Provenance, describe_launch, read_provenance, record_resumption, write_provenance
from egpo.runs.provenance import CODE_VERSION, git_state

DATA = {"train.parquet": "ab" * 32}


def stored(tmp_path, **launch):
    path = tmp_path / "provenance.json"
    write_provenance(path, Provenance(3, DATA, describe_launch(threads=2, gpu=None, sandbox="bubblewrap", **launch)))
    return path


def test_it_reads_back_as_it_was_written(tmp_path):
    found = read_provenance(stored(tmp_path))
    assert (found.seed, found.data, found.resumptions) == (3, DATA, ())
    assert found.start.command == tuple(sys.argv)
    assert found.start.versions["torch"] == metadata.version("torch")
    assert found.start.hardware.cores >= 1
    assert found.start.hardware.memory_gib > 0
    assert (found.start.hardware.threads, found.start.sandbox) == (2, "bubblewrap")


def test_resumptions_are_added_in_order(tmp_path):
    path = stored(tmp_path)
    for step in (10, 20):
        record_resumption(path, describe_launch(after_step=step, threads=2), DATA)
    assert [launch.after_step for launch in read_provenance(path).resumptions] == [10, 20]
    assert read_provenance(path).start.after_step == 0


def test_other_ground_is_said(tmp_path):
    path, launch = stored(tmp_path), describe_launch(after_step=5, threads=8)
    other = replace(launch, versions=launch.versions | {"torch": "9.9"})
    with pytest.warns(EgpoWarning, match=r"torch: .* -> 9\.9, threads: 2 -> 8"):
        record_resumption(path, other, DATA)
    assert read_provenance(path).resumptions == (other,)


def test_other_data_is_refused_and_nothing_recorded(tmp_path):
    path = stored(tmp_path)
    with pytest.raises(InputError, match=r"train\.parquet: abababababab… -> cdcdcdcdcdcd…"):
        record_resumption(path, describe_launch(threads=2), {"train.parquet": "cd" * 32})
    assert read_provenance(path).resumptions == ()


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"seed": 1, "data": {}, "start": {}, "resumptions": []}'])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "provenance.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"provenance\.json: the provenance cannot be read"):
        read_provenance(path)


def git(folder, *words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    return subprocess.run(["git", "-C", folder, *identity, *words], check=True, capture_output=True, text=True).stdout


def test_git_is_told_where_there_is_one(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_state(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-qm", "a")
    assert git_state(tmp_path).commit == git(tmp_path, "rev-parse", "HEAD").strip()
    assert not git_state(tmp_path).dirty
    (tmp_path / "a").write_text("2")
    assert git_state(tmp_path).dirty


def test_a_machine_without_git_is_fine(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(tmp_path) is None


def test_the_code_of_egpo_is_known_without_a_repository(tmp_path):
    recorded = read_provenance(stored(tmp_path)).start.versions[CODE_VERSION]
    assert recorded == code_digest(Path(egpo.__file__).parent)
