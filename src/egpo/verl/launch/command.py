"""The process that trains: its words and its environment."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from egpo.config import Config
from egpo.rewards.sandbox.choose import VARIABLE as SANDBOX_VARIABLE
from egpo.verl.cpu import settings as cpu
from egpo.verl.dump_period import VARIABLE as DUMPS_VARIABLE
from egpo.verl.launch.cluster_access import cluster_access
from egpo.verl.launch.hydra_words import word
from egpo.verl.launch.translation.setting import Setting

MARK = "EGPO_LAUNCH"
"""In the environment of every process of a launch: by it they are found again, whoever their parent has become."""
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
