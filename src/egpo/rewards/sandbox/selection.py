"""The selection of a sandbox, and the check that it works on this machine."""

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from egpo.errors import EgpoError, InputError, nearest
from egpo.rewards.sandbox.cgroups import find_cgroups
from egpo.rewards.sandbox.http import HttpSandbox
from egpo.rewards.sandbox.jobs import Limits, Report, SandboxJob, Scripts
from egpo.rewards.sandbox.seccomp import one_process_filter
from egpo.rewards.sandbox.tiers import NOT_INSTALLED, OLDEST, Bubblewrap, LimitsOnly, bubblewrap_version

VARIABLE = "EGPO_SANDBOX"
PACKAGES_VARIABLE = "EGPO_SANDBOX_PACKAGES"
TIERS = ("bubblewrap", "limits", "http")
_SERVICE = "http://HOST:PORT/run_code"

_OTHERS = (
    f"or name another tier: `{VARIABLE}={_SERVICE}` (a sandbox service), "
    f"`{VARIABLE}=limits` (resource limits only, no security boundary)"
)
_INSTALL = f"install it (apt-get, dnf or pacman install bubblewrap; conda install -c conda-forge bubblewrap), {_OTHERS}"
_NAMESPACES = (
    "allow namespaces (as root: `sysctl -w user.max_user_namespaces=15000 kernel.unprivileged_userns_clone=1 "
    "kernel.apparmor_restrict_unprivileged_userns=0`, those that exist; in Docker: `docker run --privileged`), "
    f"{_OTHERS}"
)
_FIXES = {
    "bubblewrap": _NAMESPACES,
    "http": f"start the service, {_OTHERS}",
    "limits": "check that this Python interpreter starts, and that the temporary directory can be written",
}
# The trial program starts a thread, to show that the limit on processes counts only those of the program.
_TRIAL = """\
import threading
thread = threading.Thread(target=print, args=("works",))
thread.start()
thread.join()
"""


class Sandbox(Protocol):
    """A sandbox. `run` never raises because of what a program does; failures of the sandbox are in the report."""

    @property
    def tier(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    def run(self, job: SandboxJob) -> Report: ...


@dataclass(frozen=True)
class SandboxStatus:
    """Whether a tier works on this machine: `detail` is what was found, `fix` what to do if it does not."""

    tier: str
    ok: bool
    detail: str
    fix: str = ""


def choose_sandbox(tier: str | None = None, *, limits: Limits | None = None) -> Sandbox:
    """Return the sandbox of `tier`: bubblewrap, limits, or a service's URL. Default: EGPO_SANDBOX, else bubblewrap.

    There is no fallback from one to another: a weaker tier is used only when it was named.
    """
    name = _name(tier)
    limits = limits or Limits()
    if name == "bubblewrap":
        return Bubblewrap(limits, packages=_packages())
    if name == "limits":
        return LimitsOnly(limits, _packages())
    if name.startswith(("http://", "https://")):
        path_is_missing = name.count("/") == 2 or (name.count("/") == 3 and name.endswith("/"))
        return HttpSandbox(name.rstrip("/") + "/run_code" if path_is_missing else name, limits)
    raise InputError(f"`{name}` is not a sandbox", where=VARIABLE if not tier else "sandbox tier", fix=_advice(name))


def _advice(name: str) -> str:
    """Return which sandbox the user may have meant. For the tier `http`, that is the URL of a service."""
    if name == "http":
        return f"give the URL of the service, `{_SERVICE}`"
    return nearest(name, TIERS).replace("`http`", f"`{_SERVICE}`")


def _name(tier: str | None) -> str:
    return tier or os.environ.get(VARIABLE) or "bubblewrap"


def _packages() -> tuple[str, ...]:
    """Return the directories in EGPO_SANDBOX_PACKAGES, from which programs may import."""
    paths = tuple(filter(None, os.environ.get(PACKAGES_VARIABLE, "").split(os.pathsep)))
    for path in paths:
        if not os.path.isdir(path):
            raise InputError(
                f"`{path}` is not a directory", where=PACKAGES_VARIABLE, fix="name a site-packages directory"
            )
    return paths


def sandbox_status(tier: str | None = None) -> SandboxStatus:
    """Run a trivial program, and return whether it worked. Takes a few milliseconds, and at most about a minute."""
    return _tried(choose_sandbox(tier))


def _tried(sandbox: Sandbox) -> SandboxStatus:
    if isinstance(sandbox, Bubblewrap) and (missing := _bubblewrap_missing(sandbox)):
        return missing
    report = sandbox.run(SandboxJob(_TRIAL, Scripts((b"",)), Limits(wall_s=5.0, total_s=5.0)))
    if report.outcomes and report.outcomes[0].output == b"works\n":
        return SandboxStatus(sandbox.tier, True, describe(sandbox))
    said = report.failure or report.stopped or (report.outcomes and report.outcomes[0].error.strip()[-300:])
    detail = f"a trivial program did not run: {said or 'no answer'}"
    return SandboxStatus(sandbox.tier, False, detail, _FIXES[sandbox.tier])


def require_sandbox(tier: str | None = None, *, limits: Limits | None = None) -> Sandbox:
    """Return the sandbox of `tier` after it has run a program; EgpoError if it cannot. For use before training."""
    sandbox = choose_sandbox(tier, limits=limits)
    return _if_it_works(sandbox, _tried(sandbox))


def working_sandbox(tier: str | None = None) -> Sandbox:
    """Return the result of `require_sandbox`, which is tried once per process, whether it succeeds or not."""
    return _if_it_works(*_tried_once(_name(tier), os.environ.get(PACKAGES_VARIABLE)))


@lru_cache(maxsize=8)
def _tried_once(name: str, packages: str | None) -> tuple[Sandbox, SandboxStatus]:
    """Return a sandbox and its status, tried once per process. `packages` is the value of EGPO_SANDBOX_PACKAGES, which
    `choose_sandbox` reads: another value is tried again."""
    sandbox = choose_sandbox(name)
    return sandbox, _tried(sandbox)


def _if_it_works(sandbox: Sandbox, status: SandboxStatus) -> Sandbox:
    if not status.ok:
        raise EgpoError(status.detail, where=f"sandbox [{status.tier}]", fix=status.fix)
    return sandbox


def _bubblewrap_missing(sandbox: Bubblewrap) -> SandboxStatus | None:
    version = bubblewrap_version(sandbox.executable)
    if version is None:
        return SandboxStatus("bubblewrap", False, NOT_INSTALLED, _INSTALL)
    if version < OLDEST:
        found, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST))
        return SandboxStatus("bubblewrap", False, f"bubblewrap {found} is too old: {oldest} is needed", _INSTALL)
    return None


def describe(sandbox: Sandbox) -> str:
    """Return one line on what protects the host from the programs in `sandbox`."""
    if isinstance(sandbox, HttpSandbox):
        return f"sandbox service at {sandbox.url}"
    if isinstance(sandbox, Bubblewrap):
        version = ".".join(map(str, bubblewrap_version(sandbox.executable) or ()))
        return f"bubblewrap {version}: no network, no host files, own processes; memory bounded by {_memory(sandbox)}"
    if isinstance(sandbox, LimitsOnly) and sandbox.cgroups is not None:
        return f"resource limits only: NO SECURITY BOUNDARY; memory bounded by {_memory(sandbox)}"
    return "resource limits only: NO SECURITY BOUNDARY; resident memory measured ten times a second"


def _memory(sandbox: Bubblewrap | LimitsOnly) -> str:
    """Return what limits a program to `memory_mb`."""
    divided = isinstance(sandbox, Bubblewrap) and (sandbox.divide_memory or sandbox.cgroups is None)
    if sandbox.cgroups is not None and not divided:
        return f"a cgroup (version {sandbox.cgroups.version})"
    if one_process_filter() is None:
        return "the address space of each process and measurements of resident memory: no system call filter here"
    why = f" (no cgroup: {find_cgroups().why_not})" if sandbox.cgroups is None and find_cgroups().why_not else ""
    return f"its address space, one process per program{why}"
