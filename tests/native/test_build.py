"""The library is compiled once, anew when anything that it depends on changes, and never stands in anybody's way."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from egpo.errors import EgpoWarning
from egpo.native import library
from egpo.native.library import CompileError, library_file


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "egpo"


def fake_compiler(folder, text):
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def counted(cache, tmp_path, monkeypatch):
    """A compiler that writes an empty library, and a line each time."""
    folder = tmp_path / "bin"
    folder.mkdir()
    made = folder / "made"
    script = f'for word; do case "$last" in -o) : > "$word"; echo "$word" >> {made};; esac; last=$word; done'
    monkeypatch.setenv("CC", str(fake_compiler(folder, script)))
    return lambda: made.read_text().splitlines()


def test_it_is_compiled_once_and_leaves_nothing_else(counted, cache):
    assert library_file() == library_file()
    assert len(counted()) == 1
    assert [path.name for path in cache.iterdir()] == [library_file().name]


def test_another_cpu_or_other_sources_are_another_library(counted, monkeypatch):
    first = library_file()
    monkeypatch.setattr(library, "_cpu", lambda: "another")
    assert library_file() != first
    assert len(counted()) == 2


def test_two_threads_at_once_do_not_write_into_each_others_file(counted, monkeypatch):
    compiled, both = library._run, threading.Barrier(2)

    def together(command):
        if "-o" in command:
            both.wait(timeout=10)
        return compiled(command)

    monkeypatch.setattr(library, "_run", together)
    with ThreadPoolExecutor(2) as pool:
        one, two = pool.map(lambda _: library_file(), range(2))
    assert one == two
    assert one.exists()
    assert len(set(counted())) == 2


def test_a_compiler_that_fails_is_quoted(cache, tmp_path, monkeypatch):
    script = 'case "$*" in *--version*) echo 1;; *) echo "kernels.h:1: no such thing" >&2; exit 1;; esac'
    monkeypatch.setenv("CC", str(fake_compiler(tmp_path, script)))
    with pytest.raises(CompileError, match=r"^cc failed: kernels\.h:1: no such thing$"):
        library_file()
    assert not list(cache.iterdir())


def test_no_compiler_at_all(cache, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CompileError, match=r"^no C compiler"):
        library_file()


def test_a_cache_that_cannot_be_written(counted, cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(CompileError, match="cannot be written"):
        library_file()


def asked(**environment):
    code = "from egpo.native.library import describe_kernels, kernels; print(kernels() is None, describe_kernels())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_them_the_reason_is_recorded():
    assert asked(EGPO_NATIVE="0") == "True torch (EGPO_NATIVE=0)"


def test_where_they_cannot_be_compiled_torch_computes(tmp_path):
    answer = asked(XDG_CACHE_HOME=str(tmp_path), CC=str(fake_compiler(tmp_path, "exit 3")))
    assert answer == "True torch (cc failed: no reason given)"


def damaged(path, how):
    content = path.read_bytes()
    at = len(content) // 2
    path.write_bytes({"cut": content[:at], "empty": b"", "flipped": content[:at] + b"~" + content[at + 1 :]}[how])


@pytest.mark.parametrize("how", ["cut", "empty", "flipped"])
def test_a_damaged_library_is_compiled_again_and_said_so(counted, cache, how):
    """A truncated one ended every later process with SIGBUS; one with a changed byte was loaded."""
    whole = library_file().read_bytes()
    damaged(library_file(), how)
    with pytest.warns(EgpoWarning, match=r"kernels-\w+\.so is damaged; compiling the kernels again"):
        path = library_file()
    assert path.read_bytes() == whole
    assert len(counted()) == 2


def test_two_processes_mend_a_damaged_library_at_once(cache):
    """With the machine's own compiler: both load what they mended, and compute."""
    code = (
        "import torch\nfrom egpo.native.library import kernels, why_no_kernels\n"
        "print(kernels() is not None, why_no_kernels())"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    damaged(next(cache.glob("kernels-*.so")), "cut")
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=240)[0] for process in both] == ["True None\n"] * 2
    assert [process.returncode for process in both] == [0, 0]
    assert [path.suffix for path in cache.iterdir()] == [".so"]


def test_a_damaged_library_that_cannot_be_replaced_is_not_loaded(counted, cache, monkeypatch):
    damaged(library_file(), "cut")
    monkeypatch.setattr(library, "_compile", lambda *_: (_ for _ in ()).throw(CompileError("cannot be written")))
    with pytest.warns(EgpoWarning), pytest.raises(CompileError):
        library_file()
