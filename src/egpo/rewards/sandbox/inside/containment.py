"""Restrictions that the supervisor sets on itself and on each child before a program runs."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` would bring `enum` along
import posix as os
import resource
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER = 1, 4, 22, 36
SECCOMP_MODE_FILTER = 2
# The same values as in seccomp.py, which is not sent into the sandbox.
LOWEST_ADDRESS, HIGHEST_ADDRESS = 0xE6B00001, 0xE6B00002
MOST_PENDING_SIGNALS = 4096
STACK_BYTES = 64 << 20
WRITABLE = ("/tmp", "/dev")


def shield(walled: bool) -> None:
    """Keep processes of the same user from tracing this one, reading its memory and descriptors, or interrupting it.

    `walled`: the sandbox already prevents tracing and reading: it has no /proc, and denies the system calls for these.
    """
    if not walled:
        prctl(PR_SET_DUMPABLE, 0)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)
    # Writing to a pipe that nobody reads then raises OSError, as in ordinary Python.
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)


def prctl(option: int, value: int, more: bytes | int = 0) -> None:
    """Call prctl(2), through `_ctypes`: importing `ctypes` would cost each program three milliseconds more."""
    import _ctypes

    libc: Any = _ctypes
    if libc.call_function(_address_of("prctl"), (option, value, more, 0, 0)) != 0:
        raise OSError(f"prctl({option}, {value}) failed")


def _address_of(function: str) -> int:
    import _ctypes

    libc: Any = _ctypes
    address: int = libc.dlsym(libc.dlopen(None, os.RTLD_NOW), function)
    return address


def keep_to_one_process(rules: bytes) -> None:
    """Apply the system call filter of `seccomp.one_process_filter` to this process, permanently.

    The filter has two placeholders: the bounds of the addresses at which the process may map memory. They are replaced
    by the upper 32 bits of addresses below and above the C library, where the kernel also puts new mappings.
    """
    import sys

    near = _address_of("prctl") >> 32
    steps = [rules[at : at + 8] for at in range(0, len(rules), 8)]
    for mark, bound in ((LOWEST_ADDRESS, near - 1), (HIGHEST_ADDRESS, near + 2)):
        mark_bytes, bound_bytes = mark.to_bytes(4, sys.byteorder), bound.to_bytes(4, sys.byteorder)
        steps = [step[:4] + bound_bytes if step[4:] == mark_bytes else step for step in steps]
    program = b"".join(steps)
    # struct sock_fprog: how many steps, and a pointer to them; the content of a `bytes` lies at the end of the object.
    content = id(program) + bytes.__basicsize__ - 1
    pointer = len(steps).to_bytes(8, sys.byteorder) + content.to_bytes(8, sys.byteorder)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, pointer)


def confine(settings: dict[str, Any], num_tests: int, supervisor: int) -> None:
    """Set the limits of the calling process, which is about to run a program, and give up the user id.

    The kernel kills the process when `supervisor`, its parent, ends.
    """
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    memory, file = settings["memory_bytes"], settings["file_bytes"]
    cpu_s = settings["cpu_s"] * num_tests
    bounds = [
        (resource.RLIMIT_CPU, cpu_s, cpu_s + 1),
        (resource.RLIMIT_FSIZE, file, file),
        (resource.RLIMIT_NOFILE, settings["open_files"], settings["open_files"]),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        # Each timer counts as a pending signal, and takes memory of the kernel.
        (resource.RLIMIT_SIGPENDING, MOST_PENDING_SIGNALS, MOST_PENDING_SIGNALS),
        (resource.RLIMIT_AS, memory, memory),
    ]
    if settings["private"]:
        # Counted per user namespace or private user id; on a shared id it would count the host's processes too.
        bounds.append((resource.RLIMIT_NPROC, settings["processes"] + 1, settings["processes"] + 1))
    for which, soft, hard in bounds:
        highest = resource.getrlimit(which)[1]
        hard = hard if highest == resource.RLIM_INFINITY else min(hard, highest)
        resource.setrlimit(which, (min(soft, hard), hard))
    _raise_stack_limit()
    if settings["run_as"]:
        os.setgroups([])
        os.setresgid(settings["run_as"], settings["run_as"], settings["run_as"])
        os.setresuid(settings["run_as"], settings["run_as"], settings["run_as"])
    if not settings["private"]:
        # This is set last, because a change of the user id would clear it.
        prctl(PR_SET_PDEATHSIG, _signal.SIGKILL)
        if os.getppid() != supervisor:  # the supervisor ended before prctl: no signal would come
            os._exit(1)
    if settings["one_process_filter"]:
        keep_to_one_process(settings["one_process_filter"])


def bound_supervisor(memory_bytes: int) -> None:
    """Limit the address space that values from the program can take in this process, if no cgroup does.

    Only the soft limit is set: a child that runs the program sets its own.
    """
    if memory_bytes:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        soft = memory_bytes if hard == resource.RLIM_INFINITY else min(hard, memory_bytes)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _raise_stack_limit() -> None:
    """Allow 64 MB of stack, if the hard limit permits: deep recursion is a legitimate way to solve a problem."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    soft = STACK_BYTES if hard == resource.RLIM_INFINITY else min(hard, STACK_BYTES)
    resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


def too_many_files(settings: dict[str, Any]) -> bool:
    """Return whether the private file systems have more files than allowed, deleted ones that are still open included.

    Empty files take none of a file system's size, and bubblewrap cannot limit their number.
    """
    if not settings["private"]:
        return False
    found = [os.statvfs(path) for path in WRITABLE]
    allowed: int = settings["files"]
    return sum(one.f_files - one.f_ffree for one in found) > allowed


def kill_everyone_else(private: bool, child: int) -> None:
    """Kill the processes that a program has left, daemons included, and wait for all of them.

    `private`: this process is the first of a process namespace of its own, in which all processes are the sandbox's.
    """
    while True:
        if private and os.getpid() == 1:
            _kill(-1)
        else:
            for process in descendants(os.getpid()) or [child]:
                _kill(process)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.0005)


def _kill(process: int) -> None:
    try:  # noqa: SIM105
        os.kill(process, _signal.SIGKILL)
    except ProcessLookupError:
        pass


def descendants(process: int) -> list[int]:
    """Return all descendants of this process, children first. Empty if there is no /proc."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{task}/children") as children:
                for child in children.read().split():
                    found += [int(child), *descendants(int(child))]
    except OSError:
        pass
    return found
