"""Our recipe -> verl's: about twenty keys to some hundred."""

from egpo.config import Config
from egpo.verl.launch.places import VerlPlaces
from egpo.verl.launch.problems import ProblemFiles
from egpo.verl.launch.schema.snapshot import leaves
from egpo.verl.launch.translation.algorithm import algorithm_settings
from egpo.verl.launch.translation.data import data_settings
from egpo.verl.launch.translation.keep import keep_settings
from egpo.verl.launch.translation.machine import machine_settings, platform_settings
from egpo.verl.launch.translation.model import model_settings
from egpo.verl.launch.translation.rollout import rollout_settings
from egpo.verl.launch.translation.setting import Setting, merged
from egpo.verl.launch.translation.update import update_settings


def translate(config: Config, places: VerlPlaces, files: ProblemFiles, start: int = 0) -> list[Setting]:
    """In the order of who wins: what a CPU must be told, our sections, and last what the recipe says in verl's words.

    `refuse_what_verl_lacks` comes before.
    """
    return merged(
        [
            *platform_settings(config, joins=config.verl.address is not None),
            *model_settings(config),
            *data_settings(config, files),
            *rollout_settings(config, files.longest_prompt),
            *algorithm_settings(config),
            *update_settings(config, files.longest_prompt),
            *keep_settings(config, places, start),
            *machine_settings(config),
            *(Setting(key, value, "verl") for key, value in leaves(config.verl.raw)),
        ]
    )
