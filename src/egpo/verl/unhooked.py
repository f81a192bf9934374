"""Trainers that do not feed our estimators refuse them as they are made, not after the first rollouts."""

import functools
from typing import Any

from egpo.errors import ConfigError, Fault
from egpo.verl.settings import ESTIMATORS


def refuse_ours(trainer: Any, fix: str, fed: type | None = None) -> None:
    """`trainer(config, ...)` and what is derived from it, but for what is `fed`, refuses a config that names us.

    What is derived from it and never calls its constructor meets the estimator's own refusal, at its first advantage.
    """
    construct = trainer.__init__

    @functools.wraps(construct)
    def construct_or_refuse(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        estimator = str(config.algorithm.adv_estimator)
        if estimator in ESTIMATORS and not (fed is not None and isinstance(self, fed)):
            what = f"`{type(self).__name__}` does not feed `{estimator}` the entropy it needs"
            raise ConfigError([Fault(what, "algorithm.adv_estimator", fix)])
        construct(self, config, *args, **kwargs)

    trainer.__init__ = construct_or_refuse
