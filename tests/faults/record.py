"""Record what a command does to a folder, with all its processes and threads, from the system calls that strace sees.

A write of a native library or of a child process is a system call like any other. What a process writes through a
shared mapping is not: `record` fails if it sees one.
"""

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

CALLS = """
    open openat openat2 creat write pwrite64 writev pwritev pwritev2 truncate ftruncate fallocate rename renameat
    renameat2 link linkat symlink symlinkat unlink unlinkat mkdir mkdirat rmdir fsync fdatasync sync syncfs lseek
    close dup dup2 dup3 fcntl clone clone3 fork vfork chdir fchdir sendfile copy_file_range mmap io_uring_setup
""".split()  # noqa: SIM905
_LINE = re.compile(r"(\d+) +(.*)", re.DOTALL)
_CALL = re.compile(r"(\w+)\((.*)\) += (-?\d+)", re.DOTALL)
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>(.*)", re.DOTALL)
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_HANDLE = re.compile(r"(AT_FDCWD|-?\d+)(?:<([^>]*)>)?")


@dataclass(frozen=True)
class Operation:
    """One change of a folder. `path` and `other` are relative to it; `began` is the number of operations that were
    complete when this one began (another thread may write while one syncs)."""

    kind: str
    path: str = ""
    other: str = ""
    offset: int = 0
    data: bytes = b""
    began: int = 0


class UncoveredError(Exception):
    """The command changed a file in a way that is not recorded."""


def record(command, root, trace, *, env=None, cwd=None):
    """Run a command under strace. Return its finished process and the operations on the files below `root`."""
    strace = ["strace", "-f", "-y", "-xx", "-s", str(10**8), "--seccomp-bpf", "-qq", "-e", f"trace={','.join(CALLS)}"]
    words = [*strace, "-o", str(trace), *map(str, command)]
    done = subprocess.run(words, cwd=cwd or root, env=env, capture_output=True, text=True, timeout=600, check=False)
    return done, read_trace(trace, Path(root), Path(cwd or root))


def read_trace(trace, root, cwd):
    reader = _Reader(os.path.realpath(root), os.path.realpath(cwd))
    with open(trace, encoding="ascii", errors="replace") as lines:
        for line in lines:
            reader.read(line)
    return reader.operations


@dataclass
class _Description:
    offset: int = 0
    appends: bool = False


@dataclass
class _Process:
    cwd: str
    handles: dict[int, _Description] = field(default_factory=dict)


class _Reader:
    def __init__(self, root, cwd):
        self.root, self.operations = root, []
        self._first = _Process(cwd)
        self._processes, self._begun, self._sizes = {}, {}, {}

    def read(self, line):
        match = _LINE.match(line)
        if match is None:
            return
        pid, text = int(match[1]), match[2].rstrip("\n")
        began = len(self.operations)
        if text.endswith("<unfinished ...>"):
            start = text.removesuffix("<unfinished ...>").rstrip()
            if start.startswith("close("):  # before it returns, another thread may open a file under this number
                self._close(self._process(pid), [start.removeprefix("close(")], 0, began)
            else:
                self._begun[pid] = (start, began)
            return
        if resumed := _RESUMED.match(text):
            start, began = self._begun.pop(pid, ("", began))
            text = start + resumed[1]
        call = _CALL.match(text)
        if call is None or int(call[3]) < 0:
            return
        name, words, result = call[1], call[2].split(", "), int(call[3])
        process = self._process(pid)
        if name in ("clone", "clone3", "fork", "vfork"):
            self._start(pid, result, call[2])
            return
        handler = getattr(self, f"_{name}", None)
        if handler is not None:
            handler(process, words, result, began)

    def _process(self, pid):
        """A child may be seen before the call that made it returns."""
        if pid not in self._processes:
            makers = [(maker, text) for maker, (text, _) in self._begun.items() if re.match("v?fork|clone", text)]
            if not self._processes:
                self._processes[pid] = self._first
            elif makers:
                self._start(makers[-1][0], pid, makers[-1][1])
            else:
                self._processes[pid] = _Process(self._first.cwd)
        return self._processes[pid]

    def _start(self, parent, child, flags):
        if child in self._processes:
            return
        mother = self._process(parent)
        shared = "CLONE_THREAD" in flags
        self._processes[child] = mother if shared else _Process(mother.cwd, dict(mother.handles))

    # Paths

    def _full(self, base, text):
        return os.path.normpath(os.path.join(base, _decoded(text)))

    def _inside(self, path):
        """The path relative to the root; None if it is elsewhere, and for a file that has no name any more."""
        if path == self.root:
            return "."
        return path[len(self.root) + 1 :] if path.startswith(self.root + "/") else None

    def _at(self, process, handle, text):
        match = _HANDLE.match(handle)
        base = _plain(match[2]) if match and match[2] else process.cwd
        return self._inside(self._full(base, text))

    def _of_handle(self, word):
        match = _HANDLE.match(word)
        if match is None or match[2] is None or word.endswith("(deleted)"):
            return None
        return self._inside(_plain(match[2]))

    def _add(self, kind, path, **more):
        if path is not None:
            self.operations.append(Operation(kind, path, **more))

    # Opening and closing

    def _openat(self, process, words, result, began):
        self._opened(process, words[1], words[2], words[0], result, words)

    def _openat2(self, process, words, result, began):
        raise UncoveredError("openat2")

    def _open(self, process, words, result, began):
        self._opened(process, words[0], words[1], "AT_FDCWD", result, words)

    def _creat(self, process, words, result, began):
        self._opened(process, words[0], "O_WRONLY|O_CREAT|O_TRUNC", "AT_FDCWD", result, words)

    def _opened(self, process, text, flags, base, result, words):
        process.handles.pop(result, None)
        if not re.search("O_WRONLY|O_RDWR|O_CREAT|O_TRUNC", flags):
            return
        path = self._at(process, base, text)
        process.handles[result] = _Description(0, "O_APPEND" in flags)
        if path is None or "O_TMPFILE" in flags:  # a file that never has a name is gone after a crash
            return
        if "O_CREAT" in flags:
            self._add("create", path)
        if "O_TRUNC" in flags:
            self._add("truncate", path)

    def _close(self, process, words, result, began):
        process.handles.pop(_number(words[0]), None)

    def _dup(self, process, words, result, began):
        if (held := process.handles.get(_number(words[0]))) is not None:
            process.handles[result] = held

    _dup2 = _dup3 = _dup

    def _fcntl(self, process, words, result, began):
        if words[1].startswith("F_DUPFD"):
            self._dup(process, words, result, began)

    def _chdir(self, process, words, result, began):
        process.cwd = self._full(process.cwd, words[0])

    def _fchdir(self, process, words, result, began):
        process.cwd = _plain(_HANDLE.match(words[0])[2])

    # Data

    def _put(self, process, words, data, offset=None):
        path = self._of_handle(words[0])
        held = process.handles.get(_number(words[0]))
        if path is None:
            return
        if held is None:
            raise UncoveredError(f"a write to {path} through a handle that was not seen to open")
        if offset is None:
            offset = -1 if held.appends else held.offset
            held.offset = held.offset + len(data)
        self._add("write", path, offset=offset, data=data)

    def _write(self, process, words, result, began):
        if self._of_handle(words[0]) is not None:
            self._put(process, words, _decoded(words[1], raw=True)[:result])

    def _pwrite64(self, process, words, result, began):
        if self._of_handle(words[0]) is not None:
            self._put(process, words, _decoded(words[1], raw=True)[:result], int(words[3], 0))

    def _writev(self, process, words, result, began):
        if self._of_handle(words[0]) is not None:
            data = b"".join(bytes.fromhex(text.replace("\\x", "")) for text in _STRING.findall(", ".join(words)))
            self._put(process, words, data[:result])

    def _pwritev(self, process, words, result, began):
        if self._of_handle(words[0]) is not None:
            raise UncoveredError("pwritev")

    _pwritev2 = _pwritev

    def _sendfile(self, process, words, result, began):
        """The bytes come from another file, which is read now: what is copied is not changed afterwards."""
        if self._of_handle(words[0]) is None:
            return
        source = _plain(_HANDLE.match(words[1])[2])
        held = process.handles[_number(words[0])]
        path, inside = self._of_handle(words[0]), self._inside(source)
        self._add("copy", path, other=inside or source, offset=held.offset, data=str(result).encode())
        held.offset += result

    def _copy_file_range(self, process, words, result, began):
        if self._of_handle(words[2]) is not None:
            raise UncoveredError("copy_file_range")

    def _lseek(self, process, words, result, began):
        if (held := process.handles.get(_number(words[0]))) is not None:
            held.offset = result

    def _ftruncate(self, process, words, result, began):
        self._add("truncate", self._of_handle(words[0]), offset=int(words[1], 0))

    def _truncate(self, process, words, result, began):
        self._add("truncate", self._at(process, "AT_FDCWD", words[0]), offset=int(words[1], 0))

    def _fallocate(self, process, words, result, began):
        if words[1] != "0" and self._of_handle(words[0]) is not None:
            raise UncoveredError("fallocate with a mode")
        self._add("extend", self._of_handle(words[0]), offset=int(words[2], 0) + int(words[3], 0))

    def _mmap(self, process, words, result, began):
        if "MAP_SHARED" in words[3] and "PROT_WRITE" in words[2] and (path := self._of_handle(words[4])) is not None:
            raise UncoveredError(f"{path} is written through a mapping")

    def _io_uring_setup(self, process, words, result, began):
        raise UncoveredError("io_uring")

    # Names

    def _rename(self, process, words, result, began):
        self._moved("rename", self._at(process, "AT_FDCWD", words[0]), self._at(process, "AT_FDCWD", words[1]))

    def _renameat(self, process, words, result, began):
        flags = words[4] if len(words) > 4 else "0"
        if flags not in ("0", "RENAME_NOREPLACE", "RENAME_EXCHANGE"):
            raise UncoveredError(flags)
        kind = "exchange" if flags == "RENAME_EXCHANGE" else "rename"
        self._moved(kind, self._at(process, words[0], words[1]), self._at(process, words[2], words[3]))

    _renameat2 = _renameat

    def _link(self, process, words, result, began):
        self._moved("link", self._at(process, "AT_FDCWD", words[0]), self._at(process, "AT_FDCWD", words[1]))

    def _linkat(self, process, words, result, began):
        self._moved("link", self._at(process, words[0], words[1]), self._at(process, words[2], words[3]))

    def _moved(self, kind, path, other):
        if (path is None) != (other is None):
            raise UncoveredError(f"{kind} between the folder and another: {path} {other}")
        self._add(kind, path, other=other)

    def _symlink(self, process, words, result, began):
        self._add("symlink", self._at(process, "AT_FDCWD", words[1]), other=_decoded(words[0]))

    def _symlinkat(self, process, words, result, began):
        self._add("symlink", self._at(process, words[1], words[2]), other=_decoded(words[0]))

    def _unlink(self, process, words, result, began):
        self._add("unlink", self._at(process, "AT_FDCWD", words[0]))

    def _unlinkat(self, process, words, result, began):
        kind = "rmdir" if "AT_REMOVEDIR" in words[2] else "unlink"
        self._add(kind, self._at(process, words[0], words[1]))

    def _mkdir(self, process, words, result, began):
        self._add("mkdir", self._at(process, "AT_FDCWD", words[0]))

    def _mkdirat(self, process, words, result, began):
        self._add("mkdir", self._at(process, words[0], words[1]))

    def _rmdir(self, process, words, result, began):
        self._add("rmdir", self._at(process, "AT_FDCWD", words[0]))

    def _fsync(self, process, words, result, began):
        self._add("sync", self._of_handle(words[0]), began=began)

    _fdatasync = _fsync

    def _sync(self, process, words, result, began):
        self._add("sync all", ".", began=began)

    _syncfs = _sync


def _number(word):
    match = _HANDLE.match(word)
    return int(match[1]) if match and match[1] != "AT_FDCWD" else -1


def _plain(text):
    return bytes.fromhex(text.replace("\\x", "")).decode() if "\\x" in text else text


def _decoded(word, *, raw=False):
    match = _STRING.match(word)
    if match is None:
        raise UncoveredError(f"not a string: {word[:80]}")
    data = bytes.fromhex(match[1].replace("\\x", ""))
    return data if raw else data.decode()
