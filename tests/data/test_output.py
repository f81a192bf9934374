"""Files that appear whole or not at all."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from egpo.data.output import StagedFiles
from egpo.errors import InputError


def stage(files, **contents):
    for name, text in contents.items():
        files.stage(f"{name}.txt").write_text(text)


def listing(directory):
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_commit_gives_the_files_their_names_and_ordinary_permissions(tmp_path):
    with StagedFiles(tmp_path / "new" / "deep", force=False) as files:
        stage(files, a="1", b="2")
        assert not (files.out / "a.txt").exists()
        files.commit()
    assert listing(tmp_path / "new" / "deep") == {"a.txt": "1", "b.txt": "2"}
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "new" / "deep" / "a.txt").stat().st_mode & 0o777 == 0o666 & ~mask


def fail_half_way(out, error, *, force):
    with StagedFiles(out, force=force) as files:
        stage(files, a="new", b="2")
        raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ValueError("x"), InputError("x")])
def test_any_failure_leaves_everything_as_it_was(tmp_path, error):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(type(error)):
        fail_half_way(tmp_path, error, force=True)
    assert listing(tmp_path) == {"a.txt": "old"}
    with pytest.raises(type(error)):
        fail_half_way(tmp_path / "x" / "y", error, force=False)
    assert not (tmp_path / "x").exists()


def test_a_full_disk_is_the_users_to_mend_and_the_old_files_stay(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(InputError, match="No space left") as caught:
        fail_half_way(tmp_path, OSError(errno.ENOSPC, "No space left on device"), force=True)
    assert caught.value.exit_code == 2
    assert listing(tmp_path) == {"a.txt": "old"}


def commit_all(out):
    with StagedFiles(out, force=True) as files:
        stage(files, a="new", b="new", c="new")
        files.commit()


def test_if_one_file_cannot_be_moved_those_before_it_are_taken_back(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    (tmp_path / "c.txt").mkdir()  # cannot be replaced by a file
    with pytest.raises(InputError, match="existing files are unchanged"):
        commit_all(tmp_path)
    (tmp_path / "c.txt").rmdir()
    assert listing(tmp_path) == {"a.txt": "old"}


def test_a_real_limit_on_file_size_leaves_the_old_files(tmp_path):
    """RLIMIT_FSIZE makes the kernel refuse the bytes, as a full disk does."""
    code = f"""
import random, resource
from pathlib import Path
from egpo.data.output import StagedFiles
from egpo.data.rows import write_parquet
from egpo.data.rows import Row
from egpo.errors import InputError
out = Path({str(tmp_path)!r})
def rows(n):
    rng = random.Random(0)
    return (Row("x", ({{"role": "user", "content": str(rng.getrandbits(4000))}},), "m", str(i), {{}}) for i in range(n))
with StagedFiles(out, force=True) as files:
    write_parquet(files.stage("train.parquet"), rows(3), "train")
    files.commit()
old = (out / "train.parquet").read_bytes()
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    with StagedFiles(out, force=True) as files:
        write_parquet(files.stage("train.parquet"), rows(5000), "train")
        files.commit()
except InputError as error:
    assert "cannot be written" in str(error), error
else:
    raise SystemExit("the limit was not met")
assert (out / "train.parquet").read_bytes() == old
assert [path.name for path in out.iterdir()] == ["train.parquet"]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_directory_that_holds_other_data_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"already holds thesis.tex.*--force"), StagedFiles(tmp_path, force=False):
        pytest.fail("entered")
    with StagedFiles(tmp_path, force=True) as files:
        stage(files, a="1")
        files.commit()
    assert listing(tmp_path) == {"a.txt": "1", "thesis.tex": "years of work"}


def test_what_a_killed_process_left_is_no_data(tmp_path):
    (tmp_path / ".egpo-train.parquet.abc").write_text("half")
    with StagedFiles(tmp_path, force=False) as files:
        stage(files, a="1")
        files.commit()
    assert "a.txt" in listing(tmp_path)


def test_out_is_a_file_or_lies_below_one(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"), StagedFiles(tmp_path / "file", force=True):
        pytest.fail("entered")
    with pytest.raises(InputError, match="cannot be written"), StagedFiles(tmp_path / "file" / "below", force=True):
        pytest.fail("entered")


WRITER = """
import sys, time
from pathlib import Path
from egpo.data.output import StagedFiles
with StagedFiles(Path(sys.argv[1]), force=True) as files:
    files.stage("b.txt").write_text("from the other")
    print("staged", flush=True)
    sys.stdin.readline()
    files.commit()
"""


@pytest.fixture
def writer(tmp_path):
    """Another process that has staged a file and waits for a line before it commits."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "staged\n"
        yield process
        process.kill()


def write_one(out):
    with StagedFiles(out, force=True) as files:
        stage(files, a="1")
        files.commit()


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path, writer):
    writer.kill()
    writer.wait()
    assert [path.name.startswith(".egpo-") for path in tmp_path.iterdir()] == [True]
    write_one(tmp_path)
    assert listing(tmp_path) == {"a.txt": "1"}


def test_the_files_of_a_living_process_stay(tmp_path, writer):
    write_one(tmp_path)
    assert len(list(tmp_path.glob(".egpo-*/b.txt"))) == 1
    writer.communicate("go\n")
    assert writer.returncode == 0
    assert listing(tmp_path) == {"a.txt": "1", "b.txt": "from the other"}


def test_a_folder_that_was_taken_for_abandoned_before_its_lock_is_made_again(tmp_path, monkeypatch):
    flock, taken = fcntl.flock, []

    def rival(handle, operation):
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].rmdir()
        flock(handle, operation)

    monkeypatch.setattr(fcntl, "flock", rival)
    write_one(tmp_path)
    assert len(taken) == 1
    assert listing(tmp_path) == {"a.txt": "1"}


def test_every_file_is_on_the_disk_before_the_first_gets_its_name(tmp_path, monkeypatch):
    done, fsync, replace = [], os.fsync, os.replace

    def synced(handle):
        done.append(("fsync", os.fstat(handle).st_ino))
        fsync(handle)

    def renamed(old, new):
        done.append(("rename", os.stat(old).st_ino))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    with StagedFiles(tmp_path, force=False) as files:
        stage(files, a="1", b="2")
        files.commit()
    a, b, directory = ((tmp_path / name).stat().st_ino for name in ("a.txt", "b.txt", "."))
    assert done == [("fsync", a), ("fsync", b), ("rename", a), ("rename", b), ("fsync", directory)]
