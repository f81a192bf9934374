"""Every module can be imported where parts of Linux are missing, and `egpo doctor` names the missing parts.

The parts are hidden in a child process: this shows what happens at import on systems without them, and is no test of
macOS or Windows themselves.
"""

import subprocess
import sys

import pytest

HIDDEN = """
import os, signal, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name in {"fcntl", "resource", "posix", "termios", "pwd", "grp"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
"""
WINDOWS = (
    HIDDEN
    + """
# Other packages are imported as they are on this system.
import asyncio, httpx, multiprocessing.util, pyarrow.parquet, random, subprocess, tempfile, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationMixin, PreTrainedModel
sys.meta_path.insert(0, Hidden())
for name in ("fcntl", "resource", "posix", "termios", "pwd", "grp"):
    sys.modules.pop(name, None)
for name in ("fork", "register_at_fork", "sysconf", "sched_getaffinity", "killpg", "waitid", "geteuid", "getuid",
             "pread", "O_NOFOLLOW", "O_DIRECTORY"):
    delattr(os, name)
for name in ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXCPU", "SIGKILL", "SIGALRM", "SIGPROF", "SIGPIPE"):
    delattr(signal, name)
"""
)
IMPORT_ALL = """
import importlib, pkgutil, egpo
# What runs in other processes or environments: candidates' programs, BFCL's evaluator, verl, TRL, children's guard.
ELSEWHERE = ("egpo.rewards.sandbox.inside", "egpo.evals.bfcl.inside", "egpo.verl.", "egpo.processes.guard")
ELSEWHERE += ("egpo.__main__", "egpo.environments.bfcl.inside", "egpo.environments.inside", "egpo.trl")
KERNELS = ("egpo.token_stats.kernels", "egpo.local.models.cuda.kernels", "egpo.local.sampling.cuda.kernels")
names = [one.name for one in pkgutil.walk_packages(egpo.__path__, "egpo.", onerror=lambda name: None)]
names = [name for name in names if not name.startswith((*ELSEWHERE, *KERNELS))]
assert len(names) > 200, len(names)
failed = []
for name in names:
    try:
        importlib.import_module(name)
    except Exception as error:
        if getattr(error, "name", "") == "triton":
            continue  # only for GPUs, and imported only there
        failed.append(f"{name}: {type(error).__name__}: {error}")
print("\\n".join(failed) or "all imported")
"""


def run(code):
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


@pytest.mark.timeout(600)
def test_every_module_can_be_imported_without_the_parts_that_windows_lacks():
    assert run(WINDOWS + IMPORT_ALL) == ["all imported"]


def test_the_doctor_names_the_missing_parts():
    code = WINDOWS + "from egpo.machine_checks import check_platform\nprint(check_platform())"
    (line,) = run(code)
    assert "amber" in line
    for part in ("file locks", "memory limits", "forked"):
        assert part in line


def test_the_doctor_is_satisfied_with_linux():
    from egpo.machine_checks import check_platform

    if sys.platform == "linux":
        assert (check_platform().state, check_platform().fix) == ("green", "")
