"""Trainers that do not feed our estimators refuse them as they are made, not after the first rollouts."""

import functools
from typing import Any

from egpo.errors import ConfigError, Fault
from egpo.verl.settings import ESTIMATORS


def refuse_ours(trainer: Any, fix: str, fed: type | None = None) -> None:
    """`trainer(config, ...)` and what is derived from it, but for what is `fed`, refuses a config that names us.

    What is derived from it and never calls its constructor meets `refuse_ours_apart`, or the estimator's own refusal.
    """
    construct = trainer.__init__

    @functools.wraps(construct)
    def construct_or_refuse(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        if not (fed is not None and isinstance(self, fed)):
            _refuse(config, f"`{type(self).__name__}`", fix)
        construct(self, config, *args, **kwargs)

    trainer.__init__ = construct_or_refuse


def refuse_ours_apart(main_ppo: Any, fix: str) -> None:
    """verl's experimental `fully_async_policy` and `one_step_off_policy` sample on GPUs of their own, and skip the
    constructor that they inherit: refused where their mains start, before Ray does.

    They call `run_ppo` of verl's `main_ppo`, and ask for `hybrid_engine=False`, which no trainer that feeds us does.
    """
    run = main_ppo.run_ppo

    @functools.wraps(run)
    def run_or_refuse(config: Any, *args: Any, **kwargs: Any) -> None:
        if not config.actor_rollout_ref.hybrid_engine:
            _refuse(config, "a trainer apart from its rollouts (`hybrid_engine=False`)", fix)
        run(config, *args, **kwargs)

    main_ppo.run_ppo = run_or_refuse


def _refuse(config: Any, who: str, fix: str) -> None:
    estimator = str(config.algorithm.adv_estimator)
    if estimator in ESTIMATORS:
        what = f"{who} does not feed `{estimator}` the entropy it needs"
        raise ConfigError([Fault(what, "algorithm.adv_estimator", fix)])
