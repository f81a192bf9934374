"""Which sandbox is in force, and whether it works here."""

import os
from dataclasses import dataclass, replace
from typing import Protocol

from egpo.errors import EgpoError, InputError, nearest
from egpo.rewards.sandbox.bubblewrap import OLDEST, Bubblewrap, bubblewrap_version
from egpo.rewards.sandbox.http import HttpSandbox
from egpo.rewards.sandbox.job import Job, Report, Scripts
from egpo.rewards.sandbox.limits import Limits
from egpo.rewards.sandbox.limits_only import LimitsOnly

VARIABLE = "EGPO_SANDBOX"
PACKAGES_VARIABLE = "EGPO_SANDBOX_PACKAGES"
TIERS = ("bubblewrap", "limits", "http")

_OTHERS = (
    f"or name another tier: `{VARIABLE}=http://HOST:PORT/run_code` (a sandbox service), "
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
    "limits": "see that this interpreter starts, and that the temporary directory can be written",
}
# A thread too: it shows that the limit on processes counts the program's own only.
_TRIAL = """\
import threading
thread = threading.Thread(target=print, args=("works",))
thread.start()
thread.join()
"""


class Sandbox(Protocol):
    """Runs a job and reports. Never raises on what a program does; its own failures are in the report."""

    @property
    def tier(self) -> str: ...

    @property
    def limits(self) -> Limits: ...

    def run(self, job: Job) -> Report: ...


@dataclass(frozen=True)
class SandboxStatus:
    """Whether a tier works on this machine: `detail` says what was found, `fix` what to do where it does not."""

    tier: str
    ok: bool
    detail: str
    fix: str = ""


def choose_sandbox(tier: str | None = None, *, limits: Limits | None = None) -> Sandbox:
    """The sandbox of `tier`: bubblewrap, limits, or the URL of a service. None: what EGPO_SANDBOX names, or bubblewrap.

    There is no falling back from one to another: a weaker tier is in force only when somebody named it.
    """
    name = tier or os.environ.get(VARIABLE) or "bubblewrap"
    limits = limits or Limits()
    if name == "bubblewrap":
        return Bubblewrap(limits, packages=_packages())
    if name == "limits":
        return LimitsOnly(limits, _packages())
    if name.startswith(("http://", "https://")):
        path_is_missing = name.count("/") == 2 or (name.count("/") == 3 and name.endswith("/"))
        return HttpSandbox(name.rstrip("/") + "/run_code" if path_is_missing else name, limits)
    advice = "give the service's URL" if name == "http" else nearest(name, TIERS)
    raise InputError(f"`{name}` names no sandbox", where=VARIABLE if not tier else "sandbox tier", fix=advice)


def _packages() -> tuple[str, ...]:
    """The directories in EGPO_SANDBOX_PACKAGES, from which programs may import."""
    paths = tuple(filter(None, os.environ.get(PACKAGES_VARIABLE, "").split(os.pathsep)))
    for path in paths:
        if not os.path.isdir(path):
            raise InputError(f"`{path}` is no directory", where=PACKAGES_VARIABLE, fix="name a site-packages directory")
    return paths


def sandbox_status(tier: str | None = None) -> SandboxStatus:
    """Run a trivial program, and say how that went. Takes a few milliseconds, and never more than half a minute."""
    sandbox = choose_sandbox(tier)
    if sandbox.tier == "bubblewrap" and (missing := _bubblewrap_missing()):
        return missing
    report = sandbox.run(Job(_TRIAL, Scripts((b"",)), replace(sandbox.limits, wall_s=5.0, total_s=5.0)))
    if report.outcomes and report.outcomes[0].output == b"works\n":
        return SandboxStatus(sandbox.tier, True, _description(sandbox))
    said = report.failure or report.stopped or (report.outcomes and report.outcomes[0].error.strip()[-300:])
    detail = f"a trivial program did not run: {said or 'no answer'}"
    return SandboxStatus(sandbox.tier, False, detail, _FIXES[sandbox.tier])


def require_sandbox(tier: str | None = None, *, limits: Limits | None = None) -> Sandbox:
    """The sandbox of `tier`, once it has run a program. EgpoError where it cannot: before training, not during it."""
    status = sandbox_status(tier)
    if not status.ok:
        raise EgpoError(status.detail, where=f"sandbox [{status.tier}]", fix=status.fix)
    return choose_sandbox(tier, limits=limits)


def _bubblewrap_missing() -> SandboxStatus | None:
    version = bubblewrap_version()
    if version is None:
        return SandboxStatus("bubblewrap", False, "bubblewrap (`bwrap`) is not installed", _INSTALL)
    if version < OLDEST:
        found, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST))
        return SandboxStatus("bubblewrap", False, f"bubblewrap {found} is too old: {oldest} is needed", _INSTALL)
    return None


def _description(sandbox: Sandbox) -> str:
    if isinstance(sandbox, HttpSandbox):
        return f"sandbox service at {sandbox.url}"
    if sandbox.tier == "limits":
        return "resource limits only: NO SECURITY BOUNDARY"
    version = ".".join(map(str, bubblewrap_version() or ()))
    return f"bubblewrap {version}: no network, no host files, own processes"
