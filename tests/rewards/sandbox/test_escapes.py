"""Attack programs, in the sandbox and out of it."""

import os
import subprocess
import sys

import pytest

from egpo.rewards.sandbox import Limits, Sandbox, SandboxJob, Scripts
from egpo.rewards.sandbox.audit import try_to_escape
from egpo.rewards.sandbox.escapes import ESCAPES, Attempt
from egpo.rewards.sandbox.inside.containment import descendants
from egpo.rewards.sandbox.tiers import LimitsOnly
from tests.waiting import all_end, becomes_true


@pytest.mark.parametrize("attempt", ESCAPES, ids=lambda attempt: attempt.name)
def test_attempt_is_contained(attempt: Attempt, sandbox: Sandbox, bait: dict[str, object]) -> None:
    if attempt.name == "fork bomb" and os.geteuid() == 0 and not sandbox.private_user:
        pytest.skip("the kernel exempts root's own id from the limit: that is why root gives programs another")
    finding = try_to_escape(sandbox, attempt, bait)
    assert finding.contained, finding


@pytest.mark.parametrize("name", ["read a host file", "write a host file", "connect to a host port", "disk fill"])
def test_audit_sees_what_gets_through_where_nothing_holds_it(name: str, bait: dict[str, object]) -> None:
    (attempt,) = (attempt for attempt in ESCAPES if attempt.name == name)
    assert not try_to_escape(LimitsOnly(), attempt, bait).contained


def test_bait_is_untouched(sandbox: Sandbox, bait: dict[str, object]) -> None:
    for attempt in ESCAPES[:12]:
        try_to_escape(sandbox, attempt, bait)
    with open(str(bait["file"])) as file:
        assert file.read().rstrip("x") == bait["marker"]


def test_killed_with_the_parent(works: None) -> None:
    code = (
        "from egpo.rewards.sandbox import *\n"
        "job = SandboxJob('import time\\ntime.sleep(600)', Scripts((b'',)), Limits(wall_s=500, total_s=500))\n"
        "choose_sandbox('bubblewrap').run(job)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    # bubblewrap, the supervisor, the program
    below = becomes_true(lambda: found if len(found := descendants(parent.pid)) >= 3 else [])
    parent.kill()
    parent.wait()
    assert all_end(below), below


def test_nothing_of_one_program_reaches_the_next(sandbox: Sandbox) -> None:
    leave = "import os\nopen('/tmp/left', 'w').write('x')\nos.path.isdir('/dev/shm') and open('/dev/shm/left', 'w')"
    look = "import os\nprint(sorted(os.listdir('/tmp')), sorted(os.listdir('/dev/shm')))"
    sandbox.run(SandboxJob(leave, Scripts((b"",))))
    (outcome,) = sandbox.run(SandboxJob(look, Scripts((b"",)))).outcomes
    assert outcome.output == b"['0'] ['0']\n"


def test_root_is_read_only_and_minimal(sandbox: Sandbox) -> None:
    program = """\
import os
print(sorted(set(os.listdir('/')) - {'usr', 'lib', 'lib32', 'lib64', 'tmp', 'dev'}))
writable = []
for folder, names, _ in os.walk('/', onerror=print):
    if folder.startswith('/tmp'): names.clear(); continue
    if len(folder.split('/')) > 5: names.clear()
    try: os.close(os.open(folder + '/egpo-x', os.O_CREAT | os.O_WRONLY)); writable.append(folder)
    except OSError: pass
print(writable)
"""
    (outcome,) = sandbox.run(SandboxJob(program, Scripts((b"",)), Limits(wall_s=30, cpu_s=30))).outcomes
    top, writable = outcome.output.decode().splitlines()
    assert set(eval(top)) <= {sys.base_prefix.split("/")[1]}
    # /dev is a capped file system of the sandbox's own, which holds the program's input.
    assert set(eval(writable)) <= {"/dev"}


def test_packages_beside_the_interpreter_do_not_show(sandbox: Sandbox) -> None:
    program = (
        "import os, sysconfig\npath = sysconfig.get_path('purelib')\nprint(os.path.isdir(path) and os.listdir(path))"
    )
    (outcome,) = sandbox.run(SandboxJob(program, Scripts((b"",)))).outcomes
    assert outcome.output.strip() in (b"[]", b"False")
