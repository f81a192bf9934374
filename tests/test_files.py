"""A file is its old content or its new one, never anything else."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from egpo.files import UNFINISHED, exchange, system_error, write_atomically


def test_the_new_content_replaces_the_old_with_ordinary_permissions(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "first, é")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.txt"]
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such call")
def test_an_exchange_swaps_two_folders_and_a_failed_one_changes_nothing(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "name").write_text(name)
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system cannot exchange two names")
    assert [(tmp_path / name / "name").read_text() for name in ("a", "b")] == ["b", "a"]
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "a", tmp_path / "missing")
    assert (tmp_path / "a" / "name").read_text() == "b"


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (OSError(errno.ENOSPC, "full"), errno.ENOSPC),
        (Exception("Permission denied (os error 13)"), errno.EACCES),
        (RuntimeError("unable to open file <a> in read-only mode: Too many open files (24)"), errno.EMFILE),
        (RuntimeError("shapes (24) and (28) differ"), None),
        (ValueError("a plain fault"), None),
    ],
)
def test_a_refused_system_call_is_known_whichever_library_reports_it(error, number):
    found = system_error(error)
    assert (found.errno if found else None) == number


def test_a_write_that_fails_leaves_the_old_content_and_nothing_else(tmp_path):
    """RLIMIT_FSIZE makes the kernel refuse the bytes, as a full disk does."""
    path = tmp_path / "a.txt"
    write_atomically(path, "old")
    code = f"""
import resource, signal
from pathlib import Path
from egpo.files import write_atomically
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_atomically(Path({str(path)!r}), "x" * 100_000)
except OSError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == {"a.txt": "old"}


def test_text_that_no_file_can_hold_changes_nothing(tmp_path):
    path = tmp_path / "a.txt"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert {entry.name: entry.read_text() for entry in tmp_path.iterdir()} == {"a.txt": "old"}


def test_killed_at_any_moment_the_file_is_whole(tmp_path):
    path = tmp_path / "a.txt"
    code = f"""
from pathlib import Path
from egpo.files import write_atomically
number = 0
while True:
    write_atomically(Path({str(path)!r}), str(number % 10) * 200_000)
    number += 1
"""
    for moment in range(5):
        writer = subprocess.Popen([sys.executable, "-c", code])
        while not path.exists():
            assert writer.poll() is None
            time.sleep(0.005)
        time.sleep(0.013 * moment)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        text = path.read_text()
        assert len(text) == 200_000
        assert len(set(text)) == 1
    others = {entry.name for entry in tmp_path.iterdir()} - {"a.txt"}
    assert all(name.startswith(UNFINISHED) for name in others)
