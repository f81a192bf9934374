"""What is refused before the first step: configurations under which entropy would be missing or wrong. No verl."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from egpo.errors import ConfigError, Fault, nearest
from egpo.verl.settings import Settings, read_settings

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
    from egpo.rewards.scoring import reward_name
    from egpo.rewards.visible_tags import require_visible_tags

    names = {source: reward_name(source) for source in (["mixed"] if hybrid else data_sources)}
    tags = (reward.get("reward_kwargs") or {}).get("tags") or ()
    for source in names:
        require_visible_tags(tokenizer, source, tuple(tags))
    if {"code", "hybrid"} & set(names.values()):
        require_sandbox()
