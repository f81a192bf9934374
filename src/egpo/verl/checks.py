"""Trainers that do not feed our estimators refuse them as they are made, not after the first rollouts.

What is refused before the first step: configurations under which entropy would be missing or wrong. No verl.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from egpo.errors import ConfigError, Fault, nearest
from egpo.verl.settings import Settings, is_ours, read_settings


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
    if is_ours(estimator):
        what = f"{who} does not feed `{estimator}` the entropy it needs"
        raise ConfigError([Fault(what, "algorithm.adv_estimator", fix)])


PREFIX = "egpo_"
HOOKED_MODES = ("sync", "colocate_async")
"""verl's trainer modes that the plug-in feeds; `egpo_` before one asks for its metrics under any estimator."""
OUR_REWARD = "egpo.verl.reward"
HYBRID_MANAGER = "hybrid"
"""The reward manager that the plug-in adds to verl's (`egpo.verl.hybrid_manager`)."""


@dataclass(frozen=True)
class Plan:
    """`mode`: verl's own name of the trainer mode. `active`: whether the plug-in has a part in the run."""

    settings: Settings
    mode: str
    active: bool


def plan_of(config: Mapping[str, Any]) -> Plan:
    """What the plug-in does in a run of this configuration (verl's, as plain values). ConfigError: every refusal."""
    settings = read_settings(config["algorithm"])
    trainer = config.get("trainer") or {}
    mode = str((trainer.get("v1") or {}).get("trainer_mode", "sync"))
    active = settings.asked or mode.startswith(PREFIX)
    if active and (faults := list(_refusals(config, settings, mode))):
        raise ConfigError(faults)
    return Plan(settings, mode.removeprefix(PREFIX), active)


def _refusals(config: Mapping[str, Any], settings: Settings, mode: str) -> Iterator[Fault]:
    trainer, rollout = config.get("trainer") or {}, (config.get("actor_rollout_ref") or {}).get("rollout") or {}
    what_for = f"`{settings.estimator}`" if settings.ours else f"`{mode}`"
    if not trainer.get("use_v1", True):
        yield Fault(
            f"trainer.use_v1 is false, and {what_for} needs the entropy that this deprecated trainer drops",
            "trainer",
            "trainer.use_v1=True",
        )
    elif mode.removeprefix(PREFIX) not in HOOKED_MODES:
        yield _unhooked(mode, what_for)
    if (config["algorithm"].get("rollout_correction") or {}).get("bypass_mode"):
        yield Fault(
            f"bypass_mode skips the pass that computes the entropy of {what_for}",
            "algorithm.rollout_correction",
            "algorithm.rollout_correction.bypass_mode=False",
        )
    temperature = rollout.get("temperature", 1.0)
    if not temperature > 0:
        yield Fault(
            f"temperature is {temperature:g}: the entropy of greedy sampling is 0 everywhere",
            "actor_rollout_ref.rollout",
            "set it above 0",
        )


def _unhooked(mode: str, what_for: str) -> Fault:
    known = [*HOOKED_MODES, *(PREFIX + name for name in HOOKED_MODES)]
    advice = nearest(mode, known) if mode.startswith(PREFIX) else f"choose from {', '.join(f'`{n}`' for n in known)}"
    return Fault(f"trainer mode `{mode}` does not feed {what_for}", "trainer.v1.trainer_mode", advice)


def check_data_sources(config: Mapping[str, Any], data_sources: Iterable[str], tokenizer: Any) -> None:
    """Where the rewards are ours: every data source is known, its tags survive verl's decoding, programs have a
    sandbox that works."""
    section = config.get("reward") or {}
    reward = section.get("custom_reward_function") or {}
    hybrid = (section.get("reward_manager") or {}).get("name") == HYBRID_MANAGER
    if OUR_REWARD not in str(reward.get("path")) and not hybrid:
        return
    from egpo.rewards.sandbox import require_sandbox
    from egpo.rewards.scoring import require_visible_tags, reward_name

    names = {source: reward_name(source) for source in (["mixed"] if hybrid else data_sources)}
    tags = (reward.get("reward_kwargs") or {}).get("tags") or ()
    for source in names:
        require_visible_tags(tokenizer, source, tuple(tags))
    if {"code", "hybrid"} & set(names.values()):
        require_sandbox()
