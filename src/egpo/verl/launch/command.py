"""The command that starts verl: its interpreter, arguments and environment."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from egpo.config import Config
from egpo.config.machine import this_machine
from egpo.rewards.sandbox.selection import VARIABLE as SANDBOX_VARIABLE
from egpo.verl.cpu import launch_settings as cpu
from egpo.verl.launch.hosts import Host, host_environment
from egpo.verl.launch.hydra_overrides import format_override
from egpo.verl.launch.translation import Setting
from egpo.verl.settings import VARIABLE as DUMPS_VARIABLE

MARK = "EGPO_LAUNCH"
"""Environment variable with the launch id: it identifies the processes of a launch, even if their parent has ended."""
METRICS_VARIABLE = "VERL_FILE_LOGGER_PATH"
"""Environment variable that tells verl's file logger where to write."""


def verl_python(config: Config) -> str:
    """Return the interpreter that runs verl: the recipe's, the machine file's, or the one that runs this process."""
    return config.verl.python or this_machine().environments.verl or sys.executable


@dataclass(frozen=True)
class Command:
    """A command line. `environment` is added to the environment variables of this process."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]

    def __str__(self) -> str:
        """Return the command as text for a shell, one setting per line."""
        added = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " \\\n  ".join([*added, shlex.join(self.arguments[:3]), *map(shlex.quote, self.arguments[3:])])


def command(
    config: Config,
    settings: Sequence[Setting],
    python: str,
    metrics: Path,
    launch_id: str,
    host: Host | None = None,
) -> Command:
    """Return the command that starts verl. In a Ray cluster, a setting of Ray passes our environment to the workers."""
    environment = _environment(config, metrics) | host_environment(config, host) | {MARK: launch_id}
    if config.verl.address is not None:
        handed = [
            Setting(f"ray_kwargs.ray_init.runtime_env.env_vars.{name}", value, "verl.address")
            for name, value in environment.items()
        ]
        settings = [*settings, *handed]
    overrides = [format_override(setting.key, setting.value) for setting in settings]
    arguments = (python, "-m", "verl.trainer.main_ppo", *overrides)
    return Command(arguments, {**environment, **cluster_access(config.verl.address)})


def _environment(config: Config, metrics: Path) -> dict[str, str]:
    here = str(Path.cwd())
    environment = {
        METRICS_VARIABLE: str(metrics),
        DUMPS_VARIABLE: str(config.watch.rollouts_every),
        "HYDRA_FULL_ERROR": "1",
        "PYTHONUNBUFFERED": "1",
        # Otherwise Ray merges similar lines, for example the tracebacks of several ranks.
        "RAY_DEDUP_LOGS": "0",
        "RAY_COLOR_PREFIX": "0",
        # A user's task is imported from the current folder, and Ray's workers start in another one.
        "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])),
    }
    if sandbox := config.task.settings.get("sandbox"):
        environment[SANDBOX_VARIABLE] = str(sandbox)
    return environment | (cpu.ENVIRONMENT if config.verl.device == "cpu" else {})


_MODE = "RAY_AUTH_MODE"
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def cluster_access(address: str | None) -> Mapping[str, str]:
    """Return the environment variables that a process needs to join a Ray cluster.

    If the user has a Ray token, this is the variable that turns token authentication on: `ray start` does so by
    itself, but `ray.init` does not. If the variable is already set, it is not changed.
    """
    if address is None or _MODE in os.environ:
        return {}
    has_token = any(name in os.environ for name in _TOKENS) or (Path.home() / ".ray" / "auth_token").is_file()
    return {_MODE: "token"} if has_token else {}
