"""What a sandbox may hold in memory: with a cgroup, and where none can be made."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from egpo.rewards.code import judge_code
from egpo.rewards.sandbox import Limits, Sandbox, SandboxJob, Scripts, cgroups, sandbox_status
from egpo.rewards.sandbox.audit import AUDIT_LIMITS, _used_mb, judge_attempt, run_attempt, used_memory_mb
from egpo.rewards.sandbox.cgroups import Cgroup, CgroupParent, find_cgroups, remove_stale
from egpo.rewards.sandbox.escapes import Attempt
from egpo.rewards.sandbox.inside.containment import descendants
from egpo.rewards.sandbox.jobs import MEGABYTE, divided_memory
from egpo.rewards.sandbox.memory_attempts import HOLDS_MEMORY
from egpo.rewards.sandbox.selection import describe
from egpo.rewards.sandbox.tiers import Bubblewrap
from tests.waiting import all_end, becomes_true


@pytest.fixture
def parent(works: None) -> CgroupParent:
    found = find_cgroups()
    if found.parent is None:
        pytest.skip(found.why_not)
    return found.parent


@pytest.mark.parametrize("attempt", HOLDS_MEMORY, ids=lambda attempt: attempt.name)
def test_no_program_holds_more_than_its_limit(attempt: Attempt, sandbox: Sandbox, bait: dict[str, object]) -> None:
    """Two copies at once. The peak is the kernel's count of the whole sandbox, 0 where no cgroup can be made."""
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: run_attempt(sandbox, attempt, bait), range(2)))
    for report in reports:
        finding = judge_attempt(attempt, report, str(bait["marker"]))
        assert finding.contained, finding
        assert report.peak_bytes <= AUDIT_LIMITS.memory_mb * MEGABYTE


_SHARED = """\
import mmap, os
for _ in range(2):
    if os.fork() == 0:
        shared = mmap.mmap(-1, 192 << 20)
        for at in range(0, len(shared), 1 << 20):
            shared[at:at + (1 << 20)] = b'x' * (1 << 20)
            shared.madvise(mmap.MADV_DONTNEED, at, 1 << 20)
        while True: pass
import time
time.sleep(2)
print('done')
"""


def test_shared_pages_dropped_with_madvise_are_not_correct(sandbox: Sandbox) -> None:
    """Resident memory does not show them: 384 MB were held under a limit of 256 MB."""
    limits = Limits(memory_mb=256, wall_s=20)
    tests = {"inputs": [""], "outputs": ["done"]}
    verdict = judge_code(f"```python\n{_SHARED}```", tests, sandbox=sandbox, limits=limits)
    assert not verdict.correct
    assert verdict.reason in ("memory", "runtime_error")


def test_a_program_that_is_killed_for_memory_is_told_so(parent: CgroupParent) -> None:
    program = """\
import os
if os.fork() == 0:
    x = bytearray(200 << 20)
    os._exit(0)
y = bytearray(200 << 20)
os.wait()
print('done')
"""
    program = program.replace("    os._exit", "    import time\n    time.sleep(60)\n    os._exit")
    report = Bubblewrap().run(SandboxJob(program, Scripts((b"",)), Limits(memory_mb=256, wall_s=60)))
    assert report.stopped == "memory" or [outcome.status for outcome in report.outcomes] == ["memory"]


def test_the_cgroup_is_gone_after_the_run(parent: CgroupParent) -> None:
    Bubblewrap().run(SandboxJob("print(1)", Scripts((b"",))))
    assert not list(Path(parent.path).glob(f"egpo-sandbox-{cgroups._owner(os.getpid())}-*"))


def test_cgroups_of_a_killed_process_are_removed_by_the_next(parent: CgroupParent) -> None:
    code = (
        "from egpo.rewards.sandbox import *\n"
        "job = SandboxJob('import time\\ntime.sleep(600)', Scripts((b'',)), Limits(wall_s=500, total_s=500))\n"
        "choose_sandbox('bubblewrap').run(job)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    pattern = f"egpo-sandbox-*-{process.pid}-*"
    below = becomes_true(lambda: found if len(found := descendants(process.pid)) >= 3 else [])
    assert len(list(Path(parent.path).glob(pattern))) == 1
    remove_stale(parent)
    assert len(list(Path(parent.path).glob(pattern))) == 1, "its owner lives"
    process.kill()
    process.wait()
    assert all_end(below)
    remove_stale(parent)
    assert not list(Path(parent.path).glob(pattern))


_V1 = "30 25 0:26 {root} /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
_V2 = "30 25 0:26 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("own", "mounts", "found"),
    [
        ("4:memory:/\n0::/\n", _V1.format(root="/"), [("/sys/fs/cgroup/memory", 1)]),
        ("4:cpu,memory:/user/7\n", _V1.format(root="/"), [("/sys/fs/cgroup/memory/user/7", 1)]),
        # Docker mounts the container's own directory.
        ("4:memory:/docker/ab/x\n", _V1.format(root="/docker/ab"), [("/sys/fs/cgroup/memory/x", 1)]),
        ("0::/\n", _V2, [("/sys/fs/cgroup", 2)]),
        ("0::/user.slice/s.scope\n", _V2, [("/sys/fs/cgroup/user.slice/s.scope", 2), ("/sys/fs/cgroup/user.slice", 2)]),
        # Where version 1 has the memory controller, version 2 does not.
        ("4:memory:/a\n0::/b\n", _V2 + _V1.format(root="/"), [("/sys/fs/cgroup/memory/a", 1)]),
        ("1:cpu:/\n", "", []),
    ],
)  # fmt: skip
def test_where_cgroups_are_looked_for(own: str, mounts: str, found: list[tuple[str, int]]) -> None:
    assert [(parent.path, parent.version) for parent in cgroups._candidates(own, mounts)] == found


def test_version_2_by_its_files(tmp_path: Path) -> None:
    """What is written and read there; no kernel is behind it."""
    cgroup = CgroupParent(str(tmp_path), 2).make(1 << 28)
    folder = Path(cgroup.path)
    written = {name: (folder / name).read_text() for name in ("memory.max", "memory.swap.max", "memory.oom.group")}
    assert written == {"memory.max": str(1 << 28), "memory.swap.max": "0", "memory.oom.group": "1"}
    assert not cgroup.killed_for_memory()
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 12\noom 1\noom_kill 3\noom_group_kill 1\n")
    (folder / "memory.peak").write_text("77\n")
    assert cgroup.killed_for_memory()
    assert cgroup.peak_bytes() == 77


def test_version_2_without_the_controller_says_so(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu pids\n")
    assert "does not enable the memory controller" in cgroups._problem(CgroupParent(str(tmp_path), 2))


def test_a_directory_in_which_none_can_be_made_says_so(tmp_path: Path) -> None:
    assert "No such file" in cgroups._problem(CgroupParent(str(tmp_path / "missing"), 1))


@pytest.mark.parametrize("memory_mb", [256, 512, 1024, 4096])
@pytest.mark.parametrize("tests_run_inside", [False, True])
def test_divided_memory_adds_up(memory_mb: int, tests_run_inside: bool) -> None:
    shares = divided_memory(Limits(memory_mb=memory_mb), tests_run_inside, 1000)
    kernel = 64 * MEGABYTE
    assert shares.program >= memory_mb * MEGABYTE // 4
    if memory_mb > 256:
        assert shares.program + shares.supervisor + shares.tmp + kernel <= memory_mb * MEGABYTE


def test_status_names_the_protection(parent: CgroupParent) -> None:
    assert f"a cgroup (version {parent.version})" in sandbox_status("bubblewrap").detail
    without = replace(Bubblewrap(), cgroups=None)
    assert "its address space, one process per program" in describe(without)


def test_stale_members_are_killed(parent: CgroupParent) -> None:
    """Only what is in a cgroup of ours is ever killed."""
    cgroup = parent.make(None)
    sleeper = subprocess.Popen(cgroup.entering(["sleep", "600"]))
    assert becomes_true(lambda: sleeper.pid in cgroup.members())
    Cgroup(cgroup.path, cgroup.version).remove()
    assert sleeper.wait() == -9
    assert not os.path.exists(cgroup.path)


def test_free_pages_on_the_lists_of_processors_are_not_in_use() -> None:
    """Hundreds of megabytes come and go there. Files in memory are in use, cached ones are not."""
    kilobytes = {"MemTotal": 8192, "MemFree": 2048, "Buffers": 256, "Cached": 1792, "Shmem": 1024, "SwapTotal": 512}
    meminfo = "".join(f"{name}:   {value} kB\n" for name, value in {**kilobytes, "SwapFree": 512}.items())
    zoneinfo = "    cpu: 0\n              count:    {}\n              high:     900\n    cpu: 1\n  count:    0\n"
    assert _used_mb(meminfo, zoneinfo.format(0)) == 5.0
    assert _used_mb(meminfo, zoneinfo.format(MEGABYTE // os.sysconf("SC_PAGE_SIZE"))) == 4.0
    assert 0 < used_memory_mb() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / MEGABYTE
