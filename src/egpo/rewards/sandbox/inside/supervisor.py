"""The supervisor, the first process inside the sandbox. It starts the program in another process, watches and reports.

In: frames on descriptor 0. The first is the job (program, limits, inputs). The second has the test code with its
expected values and is read only after the last fork, so that no process of the program has ever contained them.
Out: records on the descriptor that was 1: `ready` once the job is read, then one per test. A record is
`status code size_of_output size_of_error\\n`, then both. The record `late` asks the host for a frame:
seconds to add to the time limit of the current test.
"""

from __future__ import annotations

import marshal
import posix as os
import select
import sys
import time

from egpo.rewards.sandbox.inside.containment import (
    bound_supervisor,
    confine,
    kill_everyone_else,
    shield,
    too_many_files,
)
from egpo.rewards.sandbox.inside.deadline import Deadline
from egpo.rewards.sandbox.inside.script import run_script
from egpo.rewards.sandbox.inside.wire import read_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ERROR_TAIL = 2000
TICK_S = 0.02
SIGXCPU = 24


def main(armoured: bool = False) -> None:
    """Read a job from descriptor 0, run it, and exit. `armoured`: frames and reports are base64, for services that
    transfer text only."""
    out = os.dup(1)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
    unarmour = _unarmour if armoured else bytes
    report = Reporter(out, armoured)
    job = marshal.loads(unarmour(read_frame(0)))
    shield(job["walled"])
    bound_supervisor(job["supervisor_bytes"])
    report("ready")
    sys.path.extend(job["packages"])
    if job["kind"] == "scripts":
        run_scripts(job, report)
    else:
        run_functions(job, report, lambda: marshal.loads(unarmour(read_frame(0))))
    os._exit(0)


def _unarmour(content: bytes) -> bytes:
    import binascii

    return binascii.a2b_base64(content)


class Reporter:
    """The writer of records to the host."""

    def __init__(self, fd: int, armoured: bool) -> None:
        self.fd, self.armoured = fd, armoured

    def __call__(self, status: str, code: int = 0, output: bytes = b"", error: bytes = b"") -> None:
        content = b"%s %d %d %d\n" % (status.encode(), code, len(output), len(error)) + output + error
        if self.armoured:
            import binascii

            content = binascii.b2a_base64(content)
        while content:
            content = content[os.write(self.fd, content) :]


def run_scripts(job: dict[str, Any], report: Reporter) -> None:
    """Run the whole program once per input, each time in a new fork of this clean process."""
    for index, stdin in enumerate(job["stdins"]):
        outcome = run_one(job, index, stdin, report)
        report(*outcome)
        if job["stop_early"] and outcome[:2] != ("exit", 0):
            return


def run_one(job: dict[str, Any], index: int, stdin: bytes, report: Reporter) -> tuple[str, int, bytes, bytes]:
    try:
        source = _input_file(job["stdin_path"], stdin)
    except OSError as error:
        if index == 0:
            raise
        # An earlier run of the same program has put something at this path that cannot be deleted.
        return "exit", 1, b"", str(error).encode()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    child = fork(job, index, (source, out_write, err_write), lambda: run_script(job["program"]))
    for fd in (source, out_write, err_write):
        os.close(fd)
    watch = ProgramWatch(child, out_read, err_read, job, report)
    status, code = watch.until_the_end()
    kill_everyone_else(job["private"], child)
    os.close(out_read)
    os.close(err_read)
    return status, code, bytes(watch.output), bytes(watch.error)


def _input_file(path: str, content: bytes) -> int:
    try:  # noqa: SIM105
        os.unlink(path)
    except FileNotFoundError:
        pass
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    while content:
        content = content[os.write(fd, content) :]
    os.close(fd)
    return os.open(path, os.O_RDONLY)


def fork(job: dict[str, Any], index: int, streams: tuple[int, ...], work: Callable[[], int | None]) -> int:
    """Start a child that does `work`, with `streams` as its descriptors 0, 1, 2, ... and nothing else open."""
    supervisor = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        # First to numbers from 64 on, so that no target overwrites a source that is still needed.
        for place, fd in enumerate(streams):
            os.dup2(fd, 64 + place)
        for place in range(len(streams)):
            os.dup2(64 + place, place)
        os.closerange(len(streams), 256)
        _enter_directory(job["work_dir"], index)
        confine(job, 1 if job["kind"] == "scripts" else job["num_checks"], supervisor)
        code = work() or 0
    except BaseException:  # boundary: a child must never return into the supervisor's code
        sys.__excepthook__(*sys.exc_info())
    finally:
        os._exit(code)


def _enter_directory(work_dir: str, index: int) -> None:
    """Make a new directory for a run and enter it, so that files of the previous run do not affect this one."""
    os.chdir(work_dir)
    try:
        os.mkdir(str(index), 0o777)
        os.chmod(str(index), 0o777)
        os.chdir(str(index))
    except OSError:
        # The program has filled /tmp or taken the name: the run has no directory of its own then.
        pass


class ProgramWatch:
    """The watch over a child: what it prints until it ends, runs out of time, prints too much, or makes too many
    files."""

    def __init__(self, child: int, out: int, err: int, job: dict[str, Any], report: Reporter) -> None:
        self.child, self.out, self.err, self.job = child, out, err, job
        self.limit: int = job["output_bytes"]
        self.deadline = Deadline(job, report)
        self.output, self.error = bytearray(), bytearray()
        self.poller = select.poll()
        for fd in (out, err):
            os.set_blocking(fd, False)
            self.poller.register(fd, select.POLLIN)
        self.num_open = 2

    def until_the_end(self) -> tuple[str, int]:
        nap_s = TICK_S / 1000
        while True:
            if self.num_open:
                self.read(TICK_S)
            else:
                # The child has closed its output: in most cases it ends at once.
                time.sleep(nap_s)
                nap_s = min(2 * nap_s, TICK_S)
            if len(self.output) > self.limit:
                return "output", 0
            ended, status = os.waitpid(self.child, os.WNOHANG)
            if ended:
                self.read(0)
                code = os.waitstatus_to_exitcode(status)
                return ("exit", code) if code >= 0 else ("signal", -code)
            if stopped := self.over_a_limit():
                return stopped, 0

    def over_a_limit(self) -> str:
        if len(self.output) > self.limit:
            return "output"
        if too_many_files(self.job):
            return "files"
        return "timeout" if self.deadline.has_passed() else ""

    def read(self, wait_s: float) -> None:
        """Read the available output, waiting for the first byte only. Of stderr only the end is kept."""
        ready = self.poller.poll(int(wait_s * 1000))
        while ready:
            for fd, _ in ready:
                chunk = os.read(fd, 1 << 16)
                if not chunk:
                    self.poller.unregister(fd)
                    self.num_open -= 1
                elif fd == self.out:
                    self.output += chunk
                else:
                    self.error = (self.error + chunk)[-ERROR_TAIL:]
            if self.over_a_limit():
                return
            ready = self.poller.poll(0)


def run_functions(job: dict[str, Any], report: Reporter, read_checks: Callable[[], dict[str, Any]]) -> None:
    """Load the program in a child; only then read the tests, so that the child never has them, and run them here."""
    from egpo.rewards.sandbox.inside.check_runner import run_checks
    from egpo.rewards.sandbox.inside.remote import Connection
    from egpo.rewards.sandbox.inside.server import Server

    requests_read, requests_write = os.pipe()
    answers_read, answers_write = os.pipe()
    nothing = os.open("/dev/null", os.O_RDWR)
    streams = (nothing, nothing, nothing, requests_read, answers_write)
    child = fork(job, 0, streams, lambda: Server(3, 4).serve(job["program"]))
    for fd in streams[2:]:
        os.close(fd)

    def labelled(status: str, *rest: Any) -> None:
        report("timeout" if status == "died" and _ran_out_of_processor_time(child) else status, *rest)

    run_checks(job, read_checks(), Connection(requests_write, answers_read), labelled)


def _ran_out_of_processor_time(child: int) -> bool:
    """Return whether a child whose pipe has closed was ended by its limit of processor time (SIGXCPU)."""
    for _ in range(100):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status) == -SIGXCPU
        time.sleep(TICK_S / 10)
    return False
