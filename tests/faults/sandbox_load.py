"""Run N hostile programs at once beside N honest ones in the sandbox, and watch the memory of the host.

    python -m tests.faults.sandbox_load                            every mode that this machine allows, five rounds each
    python -m tests.faults.sandbox_load --programs 2 --rounds 1 --mode root
    python -m tests.faults.sandbox_load --list                     the modes, and why one cannot be run here

A round judges 30 hostile programs and as many honest ones with the code reward, N of each kind at a time. Before
them, N programs that each hold nearly all of their memory start together. Nothing else may run on the machine: the peak
of its memory is compared with a baseline of the second before the round.

A mode is one way in which the product limits memory (a cgroup, or the address space), as root or as an ordinary user.
Each runs in a process of its own, which can give up root. An ordinary user can run the modes of an ordinary user only.
The exit code is 1 if a mode did not keep the promise of docs/reliability.md.
"""

import argparse
import ctypes
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import IO, Any

from egpo.rewards.code import judge_code
from egpo.rewards.sandbox import Limits, Report, Sandbox, SandboxJob
from egpo.rewards.sandbox.audit import used_memory_mb
from egpo.rewards.sandbox.cgroups import Cgroup, find_cgroups
from egpo.rewards.sandbox.escapes import GOT_THROUGH, USES_UP, Attempt
from egpo.rewards.sandbox.inside.containment import PR_SET_CHILD_SUBREAPER, descendants
from egpo.rewards.sandbox.memory_attempts import HOLDS_MEMORY
from egpo.rewards.sandbox.tiers import Bubblewrap
from tests.faults.hostile_programs import SCRIPT, STRATEGIES

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
ALLOWED_FRAC = 1.05
"""Allowed memory of the host, as a fraction of N times the limit."""
LOOK_S, BASELINE_S = 0.004, 1.0


@dataclass(frozen=True)
class Program:
    """A program with its tests. `kind` is what a hostile one uses up, or "honest" for a right program."""

    name: str
    kind: str
    text: str
    tests: Mapping[str, Any]


def _right(name: str, text: str, output: str = "done") -> Program:
    return Program(name, "honest", text, {"inputs": [""], "outputs": [output]})


def _computes(seconds: float) -> str:
    return f"import time\nx = 0\nwhile time.process_time() < {seconds}: x = (x * 31 + 7) % 1000003\nprint('done')"


LONGEST = "3 s of processor time"
"""Half of the default limit on wall-clock time: other programs make this one late before all others."""
HONEST = (
    _right(LONGEST, _computes(3.0)),
    Program("three inputs", "honest", "print(sum(map(int, input().split())))",
            {"inputs": ["1 2\n", "3 4\n", "5 6\n"], "outputs": ["3", "7", "11"]}),
    Program("a function with 20 tests", "honest", "def solve(n): return sorted(str(n * k) for k in range(9))",
            {"assert": [f"assert solve({n}) == {sorted(str(n * k) for k in range(9))}" for n in range(20)]}),
    _right("100 files, written by a thread", """\
import os, threading
def work():
    for name in range(100):
        with open(f'file-{name}', 'w') as file: file.write('x' * 9999)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(sum(os.path.getsize(name) for name in os.listdir() if name.startswith('file-')))
""", "999900"),
    _right("a sleep of one second", "import time\ntime.sleep(1)\nprint('done')"),
    _right("48 MB of memory", "x = bytearray(48 << 20)\nx[::4096] = b'x' * 12288\nprint(x.count(b'x'))", "12288"),
    _right("20,000 lines of output", "for n in range(20000): print('line', n)",
           "\n".join(f"line {n}" for n in range(20000))),
    _right("1 s of processor time", _computes(1.0)),
)  # fmt: skip

# Nine tenths of the limit, or less if refused, kept for a while, so that N programs hold theirs at once.
_HOLDS = """\
kept, size = [], 0
try:
    while size < BAIT['memory_mb'] * 9 // 10 << 20:
        kept.append(b'x' * (4 << 20))
        size += 4 << 20
except MemoryError: pass
import time
time.sleep(3)
"""


def hostile_programs(memory_mb: int) -> list[Program]:
    """Return a program for each road to more memory, and for processes, descriptors, inodes, output and time."""
    by_name = {attempt.name: attempt for attempt in USES_UP}
    bait = f"BAIT = {{'memory_mb': {memory_mb}, 'marker': 'egpo-load'}}\n"

    def tried(kind: str, attempt: Attempt) -> Program:
        tests = {"assert": ["assert f(1) == 'a right value'"]} if attempt.forges else SCRIPT
        return Program(attempt.name, kind, bait + attempt.program, tests)

    def chosen(kind: str, strategy: str, *numbers: int) -> list[Program]:
        return [Program(f"{strategy} {n}", kind, STRATEGIES[strategy][n], SCRIPT) for n in numbers]

    return [
        *(tried("sockets" if "socket" in one.name or "connect" in one.name else "memory", one) for one in HOLDS_MEMORY),
        *(tried("processes", by_name[name]) for name in ("fork bomb", "daemon that outlives the program")),
        *chosen("processes", "forks", 0, 1),
        *chosen("descriptors", "files", 2),
        *(tried("inodes", by_name[name]) for name in ("too many empty files", "too many links, with closed output")),
        *chosen("output", "output", 0, 1),
        *chosen("time", "endless", 0, 1),
    ]


def holder(memory_mb: int) -> Program:
    return Program("nearly all memory, held", "memory", f"BAIT = {{'memory_mb': {memory_mb}}}\n{_HOLDS}", SCRIPT)


@dataclass(frozen=True)
class Judged:
    """The verdict on one program, the wall-clock seconds until it, and the seconds that the sandbox charged."""

    name: str
    kind: str
    correct: bool
    failed: bool
    reason: str
    escaped: bool
    wall_s: float
    charged_s: float


class Recording:
    """A sandbox that keeps the report of its last run: `judge_code` returns only the verdict."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.tier, self.limits = sandbox, sandbox.tier, sandbox.limits
        self.report = Report(())

    def run(self, job: SandboxJob) -> Report:
        self.report = self.sandbox.run(job)
        return self.report


def judge(program: Program, sandbox: Sandbox) -> Judged:
    recording = Recording(sandbox)
    start = time.monotonic()
    verdict = judge_code(f"```python\n{program.text}\n```", program.tests, sandbox=recording)
    wall_s, report = time.monotonic() - start, recording.report
    escaped = any(GOT_THROUGH.encode() in outcome.output for outcome in report.outcomes)
    said = f"{verdict.reason}: {report.failure}" if report.failure else verdict.reason
    return Judged(
        program.name, program.kind, verdict.correct, verdict.failed, said, escaped, wall_s, report.charged_s
    )  # fmt: skip


def run_round(
    sandbox: Sandbox, num_at_once: int, hostile: Sequence[Program], honest: Sequence[Program] = HONEST
) -> list[Judged]:
    """Judge all hostile programs and as many honest ones, `num_at_once` of each at a time."""
    with ThreadPoolExecutor(num_at_once) as bad, ThreadPoolExecutor(num_at_once) as good:
        running = [bad.submit(judge, program, sandbox) for program in hostile]
        running += [good.submit(judge, program, sandbox) for program in islice(cycle(honest), len(hostile))]
        return [one.result() for one in running]


# The process of a mode


@dataclass(frozen=True)
class Mode:
    """A way to run the sandbox: as root or as an ordinary user, with a cgroup or without."""

    name: str
    as_root: bool
    with_cgroup: bool


MODES = (
    Mode("root", True, False),
    Mode("root-cgroup", True, True),
    Mode("user", False, False),
    Mode("user-cgroup", False, True),
)


def serve(mode: Mode, num_at_once: int, memory_mb: int) -> None:
    """Run a round for each line on standard input, and print its verdicts as a line of JSON."""
    sys.stdin.readline()  # until then, this process may be moved into another cgroup
    limits = Limits(memory_mb=memory_mb)
    sandbox = Bubblewrap(limits) if mode.with_cgroup else Bubblewrap(limits, cgroups=None)
    if mode.with_cgroup and sandbox.cgroups is None:
        raise SystemExit(f"no cgroup can be made: {find_cgroups().why_not}")
    alone = [judge(program, sandbox) for program in HONEST]
    version = sandbox.cgroups.version if sandbox.cgroups else 0
    print(json.dumps({"cgroup": version, "alone": [asdict(one) for one in alone]}), flush=True)
    hostile = [*[holder(memory_mb)] * num_at_once, *hostile_programs(memory_mb)]
    for _ in sys.stdin:
        print(json.dumps([asdict(one) for one in run_round(sandbox, num_at_once, hostile)]), flush=True)


# What is left on the host, and how much memory it uses


def leftovers(temporary: Path) -> dict[str, int]:
    """Count what a sandbox could leave on the host."""
    _collect_ended()
    parent = find_cgroups().parent
    groups = list(Path(parent.path).rglob("egpo-sandbox-*")) if parent else []
    shared = Path("/proc/sysvipc/shm")
    return {
        "processes": len(descendants(os.getpid())) + sum(map(_is_of_a_sandbox, Path("/proc").glob("[0-9]*"))),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "cgroups": len([path for path in groups if path.is_dir()]),
        "temporary files": sum(1 for _ in temporary.rglob("*")),
        "shared memory": len(shared.read_text().splitlines()) if shared.exists() else 0,
    }


def _collect_ended() -> None:
    """Collect the processes that this one has adopted and that have ended, as the first process of a host does."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _is_of_a_sandbox(process: Path) -> bool:
    """Return whether a process has one of the user ids that root gives to programs."""
    try:
        return process.stat().st_uid >= 1 << 30
    except OSError:
        return False


class HostMemory:
    """The memory that the host uses, read every 4 ms: a baseline before the load, and the peak during it."""

    def __init__(self) -> None:
        end, found = time.monotonic() + BASELINE_S, []
        while time.monotonic() < end:
            found.append(used_memory_mb())
            time.sleep(LOOK_S)
        self.baseline_mb = self.peak_mb = statistics.median(found)
        self.longest_gap_s, self.last_s = 0.0, time.monotonic()

    def watch_until_readable(self, stream: IO[str]) -> None:
        while not select.select([stream], [], [], LOOK_S)[0]:
            self.peak_mb = max(self.peak_mb, used_memory_mb())
            now = time.monotonic()
            self.longest_gap_s, self.last_s = max(self.longest_gap_s, now - self.last_s), now

    @property
    def rose_by_mb(self) -> float:
        return self.peak_mb - self.baseline_mb


# The modes, measured


@dataclass(frozen=True)
class Round:
    """One round: its verdicts, its seconds, by how much the memory of the host rose, and the longest time between two
    looks at it."""

    judged: Sequence[Judged]
    wall_s: float
    rose_by_mb: float
    longest_gap_s: float


@dataclass(frozen=True)
class Measured:
    """The rounds of a mode, the honest programs each alone, and what was left behind on the host."""

    mode: Mode
    cgroup: int
    alone: Sequence[Judged]
    rounds: Sequence[Round]
    left: Mapping[str, int]


def measure(mode: Mode, num_at_once: int, num_rounds: int, memory_mb: int) -> Measured:
    with tempfile.TemporaryDirectory(prefix="egpo-load-") as folder:
        os.chmod(folder, 0o1777)
        before = leftovers(Path(folder))
        with _process(mode, num_at_once, memory_mb, folder) as process:
            assert process.stdout is not None
            opening = json.loads(_line(process))
            rounds = []
            for number in range(num_rounds):
                memory, start = HostMemory(), time.monotonic()
                _send(process, "round")
                memory.watch_until_readable(process.stdout)
                judged = [Judged(**one) for one in json.loads(_line(process))]
                rounds.append(Round(judged, time.monotonic() - start, memory.rose_by_mb, memory.longest_gap_s))
                _say(f"{mode.name}: round {number + 1} of {num_rounds}, {_told(rounds[-1])}")
        after = leftovers(Path(folder))
    left = {what: after[what] - before[what] for what in before if after[what] != before[what]}
    return Measured(mode, opening["cgroup"], [Judged(**one) for one in opening["alone"]], rounds, left)


def _send(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if line := process.stdout.readline():
        return line
    raise SystemExit(f"the process of the mode ended with code {process.wait()}")


@contextmanager
def _process(mode: Mode, num_at_once: int, memory_mb: int, folder: str) -> Iterator[subprocess.Popen[str]]:
    """Start the process that runs the rounds of a mode; end it, and remove the cgroup that was made for it."""
    command = [interpreter_of(mode), "-m", "tests.faults.sandbox_load", "--serve", mode.name]
    command += ["--programs", str(num_at_once), "--memory-mb", str(memory_mb)]
    environment = {**os.environ, "TMPDIR": folder, "PYTHONPATH": f"{ROOT}/src", "PYTHONDONTWRITEBYTECODE": "1"}
    user: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if _gives_up_root(mode) else {}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment, **user
    )
    try:
        with _delegated_cgroup(process.pid) if mode.with_cgroup and user else nullcontext():
            _send(process, "start")
            try:
                yield process
            finally:
                process.kill()
                process.wait()
    finally:
        process.kill()


@contextmanager
def _delegated_cgroup(pid: int) -> Iterator[None]:
    """Give an ordinary user a cgroup in which it can make others, as systemd does with `Delegate=yes`, and put its
    process into it."""
    parent = find_cgroups().parent
    assert parent is not None
    top = Path(parent.path, f"egpo-load-{pid}")
    inner = top / "process" if parent.version == 2 else top
    inner.mkdir(parents=True)
    try:
        if parent.version == 2:
            (top / "cgroup.subtree_control").write_text("+memory")
        for path in {top, inner}:
            for name in (".", "cgroup.procs", "cgroup.subtree_control"):
                if (path / name).exists():
                    os.chown(path / name, NOBODY, NOBODY)
        (inner / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for path in dict.fromkeys((inner, top)):
            Cgroup(str(path), parent.version).remove()


def _gives_up_root(mode: Mode) -> bool:
    return not mode.as_root and os.geteuid() == 0


def interpreter_of(mode: Mode) -> str:
    """Return an interpreter that the user of the mode can start: one in root's home cannot be."""
    for path in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin") or ""):
        if path and (not _gives_up_root(mode) or _works_for_nobody(path)):
            return path
    raise SystemExit("no interpreter can be started by an ordinary user")


def _works_for_nobody(path: str) -> bool:
    command = [path, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    try:
        ended = subprocess.run(command, user=NOBODY, group=NOBODY, capture_output=True, timeout=30, check=False)
    except PermissionError:
        return False
    return ended.returncode == 0


def why_not(mode: Mode) -> str:
    """Return why a mode cannot be run here; "" if it can."""
    if os.geteuid() != 0 and mode.as_root:
        return "this process is not root"
    if mode.with_cgroup and find_cgroups().parent is None:
        return f"no cgroup can be made: {find_cgroups().why_not}"
    if _gives_up_root(mode) and not interpreter_of(mode):
        return "no interpreter can be started by an ordinary user"
    return ""


def kept_promise(measured: Measured, num_at_once: int, memory_mb: int) -> bool:
    judged = [one for each in measured.rounds for one in each.judged]
    wrong = any(one.correct != (one.kind == "honest") or one.failed or one.escaped for one in judged)
    over = any(each.rose_by_mb > ALLOWED_FRAC * num_at_once * memory_mb for each in measured.rounds)
    return not (wrong or over or measured.left)


def _told(each: Round) -> str:
    honest = [one for one in each.judged if one.kind == "honest"]
    wrong = Counter(f"{one.name}: {one.reason}" for one in honest if not one.correct)
    longest = max((one for one in honest if one.name == LONGEST), key=lambda one: one.wall_s)
    return (
        f"{each.wall_s:.0f} s, memory +{each.rose_by_mb:.0f} MB, {len(honest)} honest programs, wrong: "
        f"{dict(wrong) or 0}; {LONGEST}: charged {longest.charged_s:.1f} s of {longest.wall_s:.1f} s; "
        f"longest gap {each.longest_gap_s * 1000:.0f} ms"
    )


TITLES = ("mode", "memory limited by", "host memory over its baseline in MB, each round", "allowed", "honest programs",
          "wrong", "failed", "hostile programs", "right, failed or escaped", f"{LONGEST}: charged", "with the waiting",
          "left behind")  # fmt: skip


def row_of(measured: Measured, num_at_once: int, memory_mb: int) -> list[str]:
    judged = [one for each in measured.rounds for one in each.judged]
    honest = [one for one in judged if one.kind == "honest"]
    hostile = [one for one in judged if one.kind != "honest"]
    longest = [one for one in honest if one.name == LONGEST]
    alone = max(one.charged_s for one in measured.alone if one.name == LONGEST)
    return [
        "root" if measured.mode.as_root else "ordinary user",
        f"a cgroup (version {measured.cgroup})" if measured.cgroup else "address space",
        ", ".join(f"{each.rose_by_mb:,.0f}" for each in measured.rounds),
        f"{ALLOWED_FRAC * num_at_once * memory_mb:,.0f}",
        str(len(honest)),
        str(sum(not one.correct and not one.failed for one in honest)),
        str(sum(one.failed for one in honest)),
        str(len(hostile)),
        str(sum(one.correct or one.failed or one.escaped for one in hostile)),
        f"{max(one.charged_s for one in longest):.1f} s (alone {alone:.1f} s)",
        f"{max(one.wall_s for one in longest):.0f} s",
        ", ".join(f"{what} {number:+d}" for what, number in measured.left.items()) or "nothing",
    ]


def print_table(rows: Sequence[Sequence[str]]) -> None:
    print(f"| {' | '.join(TITLES)} |\n|{'---|' * len(TITLES)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _be_first() -> None:
    """Let this process, which measures, run as soon as it wants to, and adopt what the processes of the modes leave."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--programs", type=int, default=8, metavar="N", help="hostile programs at once, and honest ones (default 8)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each mode (default 5)")
    parser.add_argument(
        "--mode",
        action="append",
        choices=[mode.name for mode in MODES],
        help="only this mode; may be repeated. Without `-cgroup`, the address space limits memory",
    )
    parser.add_argument(
        "--memory-mb",
        type=int,
        default=Limits().memory_mb,
        help="memory limit of a program in MB (default: that of the product, %(default)s)",
    )
    parser.add_argument("--list", action="store_true", help="list the modes, and why one cannot be run here")
    parser.add_argument("--json", type=Path, help="also write every verdict to this file")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    modes = {mode.name: mode for mode in MODES}
    if options.serve:
        serve(modes[options.serve], options.programs, options.memory_mb)
        return 0
    runnable = []
    for mode in (modes[name] for name in options.mode or modes):
        reason = why_not(mode)
        if reason or options.list:
            _say(f"{mode.name}: {f'not run, {reason}' if reason else 'can be run'}")
        if not reason:
            runnable.append(mode)
    if options.list:
        return 0
    _be_first()
    found: list[Measured] = []
    for mode in runnable:
        found.append(measure(mode, options.programs, options.rounds, options.memory_mb))
        if options.json:
            options.json.write_text(json.dumps([asdict(one) for one in found]))
    print_table([row_of(one, options.programs, options.memory_mb) for one in found])
    return 0 if all(kept_promise(one, options.programs, options.memory_mb) for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
