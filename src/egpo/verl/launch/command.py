"""A Ray cluster that is joined may ask for a token: `ray start` turns that on by itself, and `ray.init` does not.

The process that trains: its words and its environment.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from egpo.config import Config
from egpo.processes.launches import MARK
from egpo.rewards.sandbox.selection import VARIABLE as SANDBOX_VARIABLE
from egpo.verl.cpu import settings as cpu
from egpo.verl.launch.hydra_overrides import word
from egpo.verl.launch.resources import Setting
from egpo.verl.settings import VARIABLE as DUMPS_VARIABLE

_MODE = "RAY_AUTH_MODE"
_TOKENS = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def cluster_access(address: str | None) -> Mapping[str, str]:
    """What joining adds to the environment: the token's mode, where there is a token and nobody chose the mode."""
    if address is None or _MODE in os.environ:
        return {}
    has_token = any(name in os.environ for name in _TOKENS) or (Path.home() / ".ray" / "auth_token").is_file()
    return {_MODE: "token"} if has_token else {}


METRICS_VARIABLE = "VERL_FILE_LOGGER_PATH"


@dataclass(frozen=True)
class Command:
    """`environment` holds what is added to this process' own."""

    words: tuple[str, ...]
    environment: Mapping[str, str]

    def __str__(self) -> str:
        """As it can be pasted into a shell."""
        added = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " \\\n  ".join([*added, shlex.join(self.words[:3]), *map(shlex.quote, self.words[3:])])


def command(config: Config, settings: Sequence[Setting], python: str, metrics: Path, launch_id: str) -> Command:
    """A cluster that is joined has environments of its own: Ray hands ours to its workers there."""
    environment = _environment(config, metrics) | {MARK: launch_id}
    if config.verl.address is not None:
        handed = [
            Setting(f"ray_kwargs.ray_init.runtime_env.env_vars.{name}", value, "verl.address")
            for name, value in environment.items()
        ]
        settings = [*settings, *handed]
    words = (python, "-m", "verl.trainer.main_ppo", *map(word, settings))
    return Command(words, {**environment, **cluster_access(config.verl.address)})


def _environment(config: Config, metrics: Path) -> dict[str, str]:
    here = str(Path.cwd())
    environment = {
        METRICS_VARIABLE: str(metrics),
        DUMPS_VARIABLE: str(config.watch.rollouts_every),
        "HYDRA_FULL_ERROR": "1",
        "PYTHONUNBUFFERED": "1",
        # Every line is kept: Ray would fold those that look alike, tracebacks of several ranks among them.
        "RAY_DEDUP_LOGS": "0",
        "RAY_COLOR_PREFIX": "0",
        # Tasks from outside lie where the command was given; Ray's workers do not.
        "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])),
    }
    if sandbox := config.task.settings.get("sandbox"):
        environment[SANDBOX_VARIABLE] = str(sandbox)
    return environment | (cpu.ENVIRONMENT if config.verl.device == "cpu" else {})
