"""How rewards become advantages: the estimators of the plug-in, and the trainer that feeds them."""

from collections.abc import Iterator

from egpo.config import Config
from egpo.verl.launch.translation.setting import Setting

TRAINER_MODE = "egpo_sync"
"""verl's synchronous trainer, and every metric of ours besides. It serves verl's own `grpo`, too."""


def algorithm_settings(config: Config) -> Iterator[Setting]:
    """`constant_groups: drop` has been refused: verl counts every group in the mean of the loss."""
    algorithm = config.algorithm
    yield Setting("algorithm.adv_estimator", algorithm.estimator, "algorithm.estimator")
    yield Setting("algorithm.norm_adv_by_std_in_grpo", algorithm.normalize, "algorithm.normalize")
    yield Setting("trainer.v1.trainer_mode", TRAINER_MODE, "algorithm.estimator")
    yield Setting("algorithm.egpo.tags", list(config.segments.tags), "segments.tags")
    chosen = {"egpo": algorithm.egpo, "egpo_calibrated": algorithm.egpo_calibrated}.get(algorithm.estimator)
    if chosen is not None:
        for name, value in chosen.model_dump().items():
            yield Setting(f"algorithm.egpo.{name}", value, f"algorithm.{algorithm.estimator}.{name}")
    if algorithm.constant_groups == "replace":
        yield Setting("algorithm.filter_groups.enable", True, "algorithm.constant_groups")
        yield Setting("algorithm.filter_groups.metric", "reward", "algorithm.constant_groups")
