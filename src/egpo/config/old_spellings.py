"""Config keys of other systems: those of earlier EGPO repositories are translated, those of other tools are suggested.

`algorithm.egpo_lambda: 0.4` in a recipe, as an override, or on verl's command line is read as
`algorithm.egpo.lam: 0.4`, and a notice is printed once on stderr. All old keys are below `algorithm`. To add one, add a
row to OLD_KEYS or OLD_VALUES; recipes and the verl plug-in both read these tables.

`learning_rate: 1e-6`, a key of TRL, is an error whose message names `update.lr`. To add a key, add it to OTHER_TOOLS;
docs/coming_from.md shows the same pairs, and a test compares the two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from egpo.config.yaml_text import Document
from egpo.errors import ConfigError, Fault, notify_once
from egpo.sections import KeyPath

SECTION = "algorithm"


@dataclass(frozen=True)
class OldKey:
    """An old key with its current key in a recipe and in verl's configuration. All are dotted and relative to
    `algorithm`. In verl's configuration the settings of both EGPO estimators are below `egpo`."""

    old: str
    recipe: str
    verl: str


OLD_KEYS = (
    OldKey("egpo_lambda", recipe="egpo.lam", verl="egpo.lam"),
    OldKey("egpo_alpha", recipe="egpo.alpha", verl="egpo.alpha"),
    OldKey("egpo.entropy_epsilon", recipe="egpo_calibrated.eps", verl="egpo.eps"),
    OldKey("egpo.lambda_min", recipe="egpo_calibrated.lambda_min", verl="egpo.lambda_min"),
    OldKey("egpo.lambda_max", recipe="egpo_calibrated.lambda_max", verl="egpo.lambda_max"),
    OldKey("egpo_calibrated.entropy_epsilon", recipe="egpo_calibrated.eps", verl="egpo.eps"),
)
"""The table of old keys. The last four are settings of the estimator `egpo_calibrated`."""

OLD_VALUES = {"entropy_mode": {"joint": "response"}}
"""The table of old values: last part of the key -> {old value: current value}."""

_ACTOR, _ROLLOUT, _MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
OTHER_TOOLS = {
    # TRL and transformers
    "model_name_or_path": "model.path",
    "reward_funcs": "task.name",
    "num_generations": "rollout.n",
    "per_device_train_batch_size": "rollout.prompts",
    "gradient_accumulation_steps": "update.mini_batch",
    "max_prompt_length": "rollout.max_prompt_tokens",
    "max_completion_length": "rollout.max_response_tokens",
    "learning_rate": "update.lr",
    "lr_scheduler_type": "update.schedule",
    "beta": "update.kl",
    "epsilon": "update.clip",
    "epsilon_high": "update.clip_high",
    "delta": "update.dual_clip",
    "num_iterations": "update.epochs",
    "loss_type": "update.aggregation",
    "entropy_coef": "update.entropy_weight",
    "use_adaptive_entropy": "update.controller",
    "entropy_target": "update.adaptive_entropy.target",
    "entropy_coef_delta": "update.adaptive_entropy.delta",
    "vllm_importance_sampling_clip_max": "update.importance_cap",
    "scale_rewards": "algorithm.normalize",
    "max_steps": "steps",
    "save_steps": "checkpoints.every",
    "save_total_limit": "checkpoints.keep_last",
    "eval_steps": "validation.every",
    "report_to": "watch.trackers",
    "log_completions": "watch.rollouts_every",
    "peft_config": "model.lora.rank",
    "chat_template_kwargs": "model.template",
    "output_dir": "runs",
    "use_vllm": "engine",
    # Other libraries
    "max_new_tokens": "rollout.max_response_tokens",
    "max_tokens": "rollout.max_response_tokens",
    "num_train_epochs": "epochs",
    "batch_size": "rollout.prompts",
    "train_batch_size": "rollout.prompts",
    "group_size": "rollout.n",
    "num_samples": "rollout.n",
    "kl_coef": "update.kl",
    "clip_range": "update.clip",
    "clip_ratio": "update.clip",
    "gradient_clipping": "update.max_grad_norm",
    "num_steps": "steps",
    "total_steps": "steps",
    "run_name": "name",
    "model_name": "model.path",
    "lora_r": "model.lora.rank",
    "lora_alpha": "model.lora.alpha",
    # verl
    f"{_MODEL}.path": "model.path",
    f"{_MODEL}.enable_gradient_checkpointing": "model.gradient_checkpointing",
    f"{_MODEL}.lora_rank": "model.lora.rank",
    f"{_MODEL}.lora_alpha": "model.lora.alpha",
    f"{_MODEL}.target_modules": "model.lora.layers",
    "data.train_batch_size": "rollout.prompts",
    "data.max_prompt_length": "rollout.max_prompt_tokens",
    "data.max_response_length": "rollout.max_response_tokens",
    "data.seed": "seed",
    "reward.custom_reward_function.path": "task.name",
    f"{_ROLLOUT}.n": "rollout.n",
    f"{_ROLLOUT}.temperature": "rollout.temperature",
    f"{_ROLLOUT}.top_p": "rollout.top_p",
    f"{_ROLLOUT}.top_k": "rollout.top_k",
    f"{_ROLLOUT}.max_num_seqs": "rollout.rows_at_once",
    f"{_ROLLOUT}.tensor_model_parallel_size": "verl.tensor_parallel",
    f"{_ROLLOUT}.val_kwargs.n": "validation.n",
    f"{_ROLLOUT}.val_kwargs.temperature": "validation.temperature",
    "algorithm.adv_estimator": "algorithm.estimator",
    "algorithm.norm_adv_by_std_in_grpo": "algorithm.normalize",
    "algorithm.egpo.tags": "segments.tags",
    "algorithm.filter_groups.enable": "algorithm.constant_groups",
    "algorithm.use_kl_in_reward": "update.kl_in",
    "algorithm.kl_ctrl.kl_coef": "update.kl",
    "algorithm.kl_penalty": "update.kl_estimator",
    f"{_ACTOR}.use_kl_loss": "update.kl_in",
    f"{_ACTOR}.kl_loss_coef": "update.kl",
    f"{_ACTOR}.kl_loss_type": "update.kl_estimator",
    f"{_ACTOR}.policy_loss.loss_mode": "update.loss",
    f"{_ACTOR}.entropy_coeff": "update.entropy_weight",
    "algorithm.rollout_correction.rollout_is_threshold": "update.importance_cap",
    f"{_ACTOR}.optim.lr": "update.lr",
    f"{_ACTOR}.optim.lr_scheduler_type": "update.schedule",
    f"{_ACTOR}.optim.lr_warmup_steps": "update.warmup_steps",
    f"{_ACTOR}.optim.weight_decay": "update.weight_decay",
    f"{_ACTOR}.optim.betas": "update.betas",
    f"{_ACTOR}.optim.clip_grad": "update.max_grad_norm",
    f"{_ACTOR}.ppo_mini_batch_size": "update.mini_batch",
    f"{_ACTOR}.ppo_epochs": "update.epochs",
    f"{_ACTOR}.ppo_max_token_len_per_gpu": "update.micro_tokens",
    f"{_ACTOR}.clip_ratio_low": "update.clip",
    f"{_ACTOR}.clip_ratio_high": "update.clip_high",
    f"{_ACTOR}.clip_ratio_c": "update.dual_clip",
    f"{_ACTOR}.loss_agg_mode": "update.aggregation",
    "trainer.total_training_steps": "steps",
    "trainer.total_epochs": "steps",
    "trainer.save_freq": "checkpoints.every",
    "trainer.max_actor_ckpt_to_keep": "checkpoints.keep_last",
    "trainer.test_freq": "validation.every",
    "trainer.logger": "watch.trackers",
    "trainer.experiment_name": "name",
    "trainer.default_local_dir": "runs",
    "trainer.device": "verl.device",
    "trainer.n_gpus_per_node": "verl.gpus",
    "trainer.nnodes": "verl.nodes",
    "ray_kwargs.ray_init.address": "verl.address",
}
"""The table of other tools' words: their key -> the key here. A key is looked up whole, and by its last part."""

_IN_RECIPES: dict[KeyPath, KeyPath] = {
    (SECTION, *row.old.split(".")): (SECTION, *row.recipe.split(".")) for row in OLD_KEYS
}


def current_value(key: str, value: Any) -> Any:
    """Return the current spelling of a value; print a notice if the value is an old one. `key` is its dotted key."""
    new = OLD_VALUES.get(key.rpartition(".")[2], {}).get(value) if isinstance(value, str) else None
    if new is None:
        return value
    notify_once(f"the old value {key}={value} is read as {key}={new}")
    return new


def current_override(path: KeyPath, value: Any) -> tuple[KeyPath, Any]:
    """Return the key and value of an override in their current spelling. The value may be a section with old keys."""
    if isinstance(value, dict) and path[:1] == (SECTION,):
        nested: Any = value
        for part in reversed(path):
            nested = {part: nested}
        found = current_document(Document(nested, {}), f"override `{'.'.join(path)}`").value
        for part in path:
            found = found.get(part, {})
        return path, found
    new = _IN_RECIPES.get(path, path)
    if new != path:
        _notify(path, new)
    return new, current_value(".".join(new), value) if new[:1] == (SECTION,) else value


def current_document(document: Document, where: str) -> Document:
    """Return the values of a file with current keys and values; each keeps its line number. Raise ConfigError if a
    setting is given in both spellings with different values."""
    if not isinstance(document.value, dict) or not isinstance(document.value.get(SECTION), dict):
        return document
    value, line_of = _copied(document.value), dict(document.line_of)
    for old, new in _IN_RECIPES.items():
        parent = _section(value, old[:-1])
        if parent is None or old[-1] not in parent:
            continue
        target = _section(value, new[:-1], make=True)
        if target is None:
            continue  # a plain value in place of a section: the schema reports it
        given = parent.pop(old[-1])
        place = f"{where}:{line_of[old]}" if old in line_of else where
        if new[-1] in target and target[new[-1]] != given:
            names = f"`{'.'.join(old)}` is {given} and `{'.'.join(new)}` is {target[new[-1]]}"
            what = f"{names}, but they are the same setting"
            raise ConfigError([Fault(what, place, f"keep {'.'.join(new)}")])
        target[new[-1]] = given
        if old in line_of:
            line_of[new] = line_of.pop(old)
        _notify(old, new)
    _replace_values(value[SECTION], SECTION)
    return Document(value, line_of)


def _replace_values(section: dict[str, Any], name: str) -> None:
    for key, value in section.items():
        if isinstance(value, dict):
            _replace_values(value, f"{name}.{key}")
        else:
            section[key] = current_value(f"{name}.{key}", value)


def _section(value: dict[str, Any], path: KeyPath, make: bool = False) -> dict[str, Any] | None:
    """Return the section at `path`, or None if it is missing or a plain value. With `make`, create it if missing."""
    for part in path:
        found = value.setdefault(part, {}) if make else value.get(part)
        if not isinstance(found, dict):
            return None
        value = found
    return value


def _copied(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(inner) if isinstance(inner, dict) else inner for key, inner in value.items()}


def _notify(old: KeyPath, new: KeyPath) -> None:
    notify_once(f"the old key {'.'.join(old)} is read as {'.'.join(new)}")
