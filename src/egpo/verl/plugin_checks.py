"""Refuses verl configurations under which our estimators would get no entropy or a wrong one. verl is not imported.

- `plugin_plan`: reads verl's configuration and refuses unsupported settings before the first step
- `refuse_our_estimators`, `refuse_separate_trainers`: make trainers that lack entropy refuse our estimators
- `check_data_sources`: checks data sources, tags and sandbox if the rewards are ours
- `end_on_failures`: ends the run if a rollout or a reward raised
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from egpo.errors import ConfigError, EgpoError, Fault, nearest
from egpo.verl.control import controller_faults
from egpo.verl.losses import loss_faults
from egpo.verl.settings import VERLS_OWN, Settings, is_ours, read_settings


def refuse_our_estimators(trainer: Any, fix: str, allowed: type | None = None) -> None:
    """Make the constructor of `trainer` refuse a config that names one of our estimators.

    The check also applies to derived classes, except those derived from `allowed`. A derived class that does not call
    this constructor is refused by `refuse_separate_trainers`, or by the estimator itself.
    """
    construct = trainer.__init__

    @functools.wraps(construct)
    def construct_or_refuse(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        if not (allowed is not None and isinstance(self, allowed)):
            _refuse(config, f"`{type(self).__name__}`", fix)
        construct(self, config, *args, **kwargs)

    trainer.__init__ = construct_or_refuse


def refuse_separate_trainers(main_ppo: Any, fix: str) -> None:
    """Make `main_ppo.run_ppo` refuse our estimators if training and sampling use separate GPUs.

    verl's experimental `fully_async_policy` and `one_step_off_policy` do not call the constructor that they inherit.
    Both call `run_ppo` with `hybrid_engine=False`, which no supported trainer does, so they are refused in `run_ppo`,
    before Ray starts.
    """
    run = main_ppo.run_ppo

    @functools.wraps(run)
    def run_or_refuse(config: Any, *args: Any, **kwargs: Any) -> None:
        if not config.actor_rollout_ref.hybrid_engine:
            _refuse(config, "a trainer with separate GPUs for rollouts (`hybrid_engine=False`)", fix)
        run(config, *args, **kwargs)

    main_ppo.run_ppo = run_or_refuse


TRAINER_KEYS = ("controller", "random_rewards")
"""Keys under `algorithm.egpo` that only our trainers read, under any estimator."""


def _refuse(config: Any, trainer: str, fix: str) -> None:
    estimator = str(config.algorithm.adv_estimator)
    if is_ours(estimator):
        what = f"{trainer} does not pass `{estimator}` the entropy it needs"
        raise ConfigError([Fault(what, "algorithm.adv_estimator", fix)])
    for key in TRAINER_KEYS:
        if (getattr(config.algorithm, "egpo", None) or {}).get(key) is not None:
            raise ConfigError([Fault(f"{trainer} would ignore `{key}`", f"algorithm.egpo.{key}", fix)])


PREFIX = "egpo_"
HOOKED_MODES = ("sync", "colocate_async")
"""verl's trainer modes that the plug-in supports. With the prefix `egpo_`, they log our metrics in every run."""
OUR_REWARD = "egpo.verl.reward"
HYBRID_MANAGER = "hybrid"
"""The reward manager that the plug-in adds to verl's (`egpo.verl.hybrid_manager`)."""


@dataclass(frozen=True)
class PluginPlan:
    """What the plug-in does in a run: nothing if `active` is false.

    `mode` is verl's name of the trainer mode, without our prefix `egpo_`.
    """

    settings: Settings
    mode: str
    active: bool


def plugin_plan(config: Mapping[str, Any]) -> PluginPlan:
    """Return what the plug-in does under this configuration of verl (plain values). ConfigError lists every fault."""
    settings = read_settings(config["algorithm"])
    trainer = config.get("trainer") or {}
    mode = str((trainer.get("v1") or {}).get("trainer_mode", "sync"))
    active = settings.asked or mode.startswith(PREFIX)
    if faults := [*loss_faults(config), *(_refusals(config, settings, mode) if active else ())]:
        raise ConfigError(faults)
    return PluginPlan(settings, mode.removeprefix(PREFIX), active)


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
            f"bypass_mode skips the pass that computes the entropy, which {what_for} needs",
            "algorithm.rollout_correction",
            "algorithm.rollout_correction.bypass_mode=False",
        )
    yield from controller_faults(settings.controller)
    if settings.controller and (config.get("distillation") or {}).get("enabled"):
        what = "a controller replaces the loss of verl's workers, and with it that of the distillation"
        yield Fault(what, "algorithm.egpo.controller", "leave one of the two out")
    if settings.random_rewards is not None and not (settings.ours or settings.estimator in VERLS_OWN):
        what = f"`random_rewards` are drawn by the plug-in, which does not compute `{settings.estimator}`"
        yield Fault(what, "algorithm.egpo.random_rewards", "set algorithm.adv_estimator=grpo")
    if settings.random_rewards is not None and (config["algorithm"].get("filter_groups") or {}).get("enable"):
        what = "verl filters groups by their real rewards, before `random_rewards` are drawn"
        yield Fault(what, "algorithm.egpo.random_rewards", "algorithm.filter_groups.enable=False")
    temperature = rollout.get("temperature", 1.0)
    if not temperature > 0:
        yield Fault(
            f"temperature is {temperature:g}: the entropy of greedy sampling is 0 everywhere",
            "actor_rollout_ref.rollout",
            "set a temperature above 0",
        )


def _unhooked(mode: str, what_for: str) -> Fault:
    known = [*HOOKED_MODES, *(PREFIX + name for name in HOOKED_MODES)]
    advice = nearest(mode, known) if mode.startswith(PREFIX) else f"choose from {', '.join(f'`{n}`' for n in known)}"
    what = f"trainer mode `{mode}` does not pass {what_for} the entropy it needs"
    return Fault(what, "trainer.v1.trainer_mode", advice)


def check_data_sources(config: Mapping[str, Any], data_sources: Iterable[str], tokenizer: Any) -> None:
    """Check data sources, tags and sandbox of a run that uses our rewards; do nothing for other rewards.

    Each data source must have a reward, its tags must survive verl's decoding, and programs need a working sandbox.
    """
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


def end_on_failures(replay_buffer: Any) -> None:
    """Make `replay_buffer` raise an EgpoError as soon as the responses of a prompt have failed.

    If a rollout or reward raises, verl logs a traceback and trains on the rest of the group; an asynchronous trainer
    samples replacements forever.
    """
    synchronise = replay_buffer._sync_metadata_from_transfer_queue

    @functools.wraps(synchronise)
    def synchronise_and_check() -> None:
        synchronise()
        num_failed = sum(len(uids) for uids in replay_buffer.failure_keys.values())
        if num_failed:
            raise EgpoError(
                f"the rollout or the reward of {num_failed} prompt{'s' * (num_failed > 1)} raised an exception",
                where="rollouts",
                fix="see the traceback above, after `Error in _run_prompt`, and fix its cause",
            )

    replay_buffer._sync_metadata_from_transfer_queue = synchronise_and_check
