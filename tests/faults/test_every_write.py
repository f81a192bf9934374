"""A crash at every write of every workload, and every write refused. CI takes a few; `make faults` takes all.

`EGPO_FAULTS=all pytest tests/faults/test_every_write.py -s` prints a line for each workload (docs/reliability.md).
"""

import os
import shutil
import subprocess
import sys

import pytest

from tests.faults.crashes import DIFFERS, FAILED
from tests.faults.disk import Disk, State, crash_states, read_state, replayed
from tests.faults.every_write import crash_all, opened, refuse_all
from tests.faults.record import Operation, read_trace, record
from tests.faults.refusals import FAULTS
from tests.faults.workloads import REPOSITORY, WORKLOADS

pytestmark = pytest.mark.skipif(
    not (shutil.which("strace") and shutil.which("cc")), reason="needs strace and a C compiler: apt-get install strace"
)
everything = pytest.mark.skipif(os.environ.get("EGPO_FAULTS") != "all", reason="takes an hour: make faults")

IN_C = r"""
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(void) {
    int fd = open("raw", O_WRONLY | O_CREAT, 0644);
    write(fd, "first ", 6);
    pwrite(fd, "FIRST", 5, 0);
    close(fd);
    FILE *file = fopen("buffered", "w");
    fputs("of the C library", file);
    fclose(file);
    rename("raw", "named");
    return 0;
}
"""


def python(code, root, tmp_path):
    env = {**os.environ, "PYTHONPATH": f"{REPOSITORY}/src"}
    return record([sys.executable, "-c", code], root, tmp_path / "trace", env=env)


def test_writes_of_c_code_of_children_and_of_threads_are_seen(tmp_path):
    (tmp_path / "writer.c").write_text(IN_C)
    subprocess.run(["cc", "-o", tmp_path / "writer", tmp_path / "writer.c"], check=True)
    root = tmp_path / "root"
    root.mkdir()
    code = f"""
import ctypes, os, subprocess, threading
subprocess.run(["{tmp_path}/writer"], check=True)
handle = os.open("ctypes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
ctypes.CDLL(None).write(handle, b"from ctypes", 11)
thread = threading.Thread(target=os.write, args=(handle, b", and a thread"))
thread.start()
thread.join()
os.fsync(handle)
"""
    done, operations = python(code, root, tmp_path)
    assert done.returncode == 0, done.stderr
    found = replayed(State({}, 0, ""), operations).entries
    assert found == read_state(root).entries
    assert found == {"named": b"FIRST ", "buffered": b"of the C library", "ctypes": b"from ctypes, and a thread"}


def file_contents(operations, before):
    return {state.entries.get("file") for state in crash_states(State({"file": before}, 0, ""), operations)}


def test_a_number_is_free_as_soon_as_its_file_begins_to_close(tmp_path):
    """While the thread of a checkpoint closed a file, the run opened metrics.jsonl under the same number."""
    root, name = tmp_path / "root", "".join(f"\\x{byte:02x}" for byte in b"m")
    root.mkdir()
    lines = [
        f'1 openat(AT_FDCWD<{root}>, "{name}", O_WRONLY|O_CREAT, 0666) = 3<{root}/m>',
        "1 clone3({flags=CLONE_THREAD}, 88) = 2",
        f"2 close(3<{root}/m> <unfinished ...>",
        f'1 openat(AT_FDCWD<{root}>, "{name}", O_WRONLY|O_APPEND) = 3<{root}/m>',
        "2 <... close resumed>) = 0",
        f'1 write(3<{root}/m>, "{name}", 1) = 1',
    ]
    (tmp_path / "trace").write_text("\n".join(lines))
    assert [one.kind for one in read_trace(tmp_path / "trace", root, root)] == ["create", "write"]


def test_a_file_is_the_old_or_the_new_one_at_every_crash_of_write_atomically(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"the old content")
    code = "from pathlib import Path; from egpo.files import write_atomically as w; w(Path('file'), 'the new content')"
    done, operations = python(code, root, tmp_path)
    assert done.returncode == 0, done.stderr
    assert file_contents(operations, b"the old content") == {b"the old content", b"the new content"}


def test_a_writer_that_does_not_sync_is_found_out(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_bytes(b"old")
    code = "import os; open('temporary', 'w').write('new'); os.replace('temporary', 'file')"
    _, operations = python(code, root, tmp_path)
    assert file_contents(operations, b"old") == {b"old", b"", b"n", b"\0\0\0", b"new"}


def states_after(*operations, start=None):
    disk = Disk(State(start or {}, 0, ""))
    for operation in operations:
        disk.apply(operation)
    return [state.entries for state in disk.states(0)]


def test_a_name_is_durable_once_its_folder_is_synced():
    made = [Operation("create", "a"), Operation("write", "a", data=b"1"), Operation("sync", "a", began=2)]
    assert {} in states_after(*made)
    assert all(one == {"a": b"1"} for one in states_after(*made, Operation("sync", ".", began=3)))
    moved = [Operation("rename", "a", other="b")]
    both = [one for one in states_after(*moved, start={"a": b"1"}) if one not in ({"a": b"1"}, {"b": b"1"})]
    assert not both, "a rename is whole or not there"


def test_a_sync_covers_what_was_written_before_it_began():
    start = {"a": b""}
    written = [Operation("write", "a", data=b"1"), Operation("write", "a", data=b"2", offset=1)]
    assert {"a": b"1"} in states_after(*written, Operation("sync", "a", began=1), start=start)
    assert all(one == {"a": b"12"} for one in states_after(*written, Operation("sync", "a", began=2), start=start))


def failures(found):
    print(found.row())
    return found.failures


@pytest.mark.timeout(600)
def test_some_crashes_and_some_refused_writes():
    with opened() as (place, server):
        for name, most in {"train": 10, "prepare": 10}.items():
            found = crash_all(name, place, server, most)
            assert failures(found) == []
            assert found.num_run == most
        for found in refuse_all("train", FAULTS, place, server, 2):
            assert failures(found) == []


@everything
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_crash_at_every_write_resumes_to_the_same_bytes_or_refuses(name):
    with opened() as (place, server):
        found = crash_all(name, place, server)
    assert failures(found) == []
    assert found.counts[DIFFERS] + found.counts[FAILED] == 0


@everything
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("name", [name for name in WORKLOADS if name != "kernels"])  # its compiler writes, not we
def test_a_write_that_is_refused_loses_nothing_and_says_why(name):
    with opened() as (place, server):
        for found in refuse_all(name, FAULTS, place, server):
            assert failures(found) == []
