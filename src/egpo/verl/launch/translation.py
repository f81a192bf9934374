"""How rewards become advantages: the estimators of the plug-in, and the trainer that feeds them.

Problems and their reward.

How long, what is kept, and where it lies: verl's trainer, in our run folder.

Sampling, for training and for validation.

The optimizer, and the policy update that it makes.

Our recipe -> verl's: about twenty keys to some hundred.
"""

import json
from collections.abc import Iterator

from egpo.config import Config
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.problems import ProblemFiles
from egpo.verl.launch.resources import (
    ACTOR,
    ROLLOUT,
    Setting,
    machine_settings,
    merged,
    model_settings,
    platform_settings,
)
from egpo.verl.launch.schema.snapshot import leaves
from egpo.verl.settings import is_ours

TRAINER_MODE = "egpo_sync"
"""verl's synchronous trainer, and every metric of ours besides. It serves verl's own `grpo`, too."""


def algorithm_settings(config: Config) -> Iterator[Setting]:
    """`constant_groups: drop` has been refused: verl counts every group in the mean of the loss."""
    algorithm = config.algorithm
    yield Setting("algorithm.adv_estimator", algorithm.estimator, "algorithm.estimator")
    yield Setting("algorithm.norm_adv_by_std_in_grpo", algorithm.normalize, "algorithm.normalize")
    yield Setting("trainer.v1.trainer_mode", TRAINER_MODE, "algorithm.estimator")
    yield Setting("algorithm.egpo.tags", list(config.segments.tags), "segments.tags")
    if is_ours(algorithm.estimator):
        home = "estimator_settings" if ":" in algorithm.estimator else algorithm.estimator
        for name, value in algorithm.own_settings.items():
            yield Setting(f"algorithm.egpo.{name}", value, f"algorithm.{home}.{name}")
    if algorithm.constant_groups == "replace":
        yield Setting("algorithm.filter_groups.enable", True, "algorithm.constant_groups")
        yield Setting("algorithm.filter_groups.metric", "reward", "algorithm.constant_groups")


REWARD = "reward.custom_reward_function"


def data_settings(config: Config, files: ProblemFiles) -> Iterator[Setting]:
    """verl wants a file to validate on even where it never does: then it is the training file."""
    limit = config.rollout.max_prompt_tokens
    yield Setting("data.train_files", str(files.train), "task")
    yield Setting("data.val_files", str(files.test or files.train), "task, validation.problems")
    yield Setting("data.train_batch_size", config.rollout.prompts, "rollout.prompts")
    yield Setting("data.max_prompt_length", files.longest_prompt, files.longest_prompt_source)
    yield Setting("data.max_response_length", config.rollout.max_response_tokens, "rollout.max_response_tokens")
    yield Setting("data.filter_overlong_prompts", limit is not None, "rollout.max_prompt_tokens")
    yield Setting("data.seed", config.seed, "seed")
    yield from _reward(config, files)


def _reward(config: Config, files: ProblemFiles) -> Iterator[Setting]:
    """A task of the package is judged by the reward of its data source, in its own mode; one from outside by itself."""
    if files.data_source is None:
        yield Setting(f"{REWARD}.path", "pkg://egpo.verl.launch.task_reward", "task.name")
        yield Setting(f"{REWARD}.name", "compute_score", "task.name")
        yield Setting(f"{REWARD}.reward_kwargs.task", config.task.name, "task.name")
        yield Setting(f"{REWARD}.reward_kwargs.settings", json.dumps(config.task.settings), "task.settings")
        if config.task.judge_timeout_s is not None:
            seconds = config.task.judge_timeout_s
            yield Setting(f"{REWARD}.reward_kwargs.judge_timeout_s", seconds, "task.judge_timeout_s")
        return
    yield Setting(f"{REWARD}.path", "pkg://egpo.verl.reward", "task.name")
    yield Setting(f"{REWARD}.name", "compute_score", "task.name")
    yield Setting(f"{REWARD}.reward_kwargs.reasons", [files.data_source], "task.name")
    if files.mode is not None:
        yield Setting(f"{REWARD}.reward_kwargs.mode", files.mode, "task.settings")


NEVER = -1


def keep_settings(config: Config, places: VerlPlaces, start: int) -> Iterator[Setting]:
    """`start` is the step whose checkpoint the run goes on from; 0 for its beginning, where it is validated first.

    Old checkpoints are removed by the launcher (`keep_last`, `keep_best`), and trackers fed by it, as under the local
    engine: verl has no best checkpoints, and a tracker of its own would not go on with a resumed run's curve.
    """
    every = config.validation.every
    yield Setting("trainer.project_name", "egpo", "name")
    yield Setting("trainer.experiment_name", config.name, "name")
    yield Setting("trainer.total_training_steps", config.steps, "steps")
    # An epoch has one step at least: so many epochs hold all steps, whatever the size of the data.
    yield Setting("trainer.total_epochs", config.steps, "steps")
    # verl saves nothing at all at a period of 0; ours still saves the last step.
    yield Setting("trainer.save_freq", config.checkpoints.every or config.steps, "checkpoints.every")
    yield Setting("trainer.test_freq", every or NEVER, "validation.every")
    yield Setting("trainer.val_before_train", bool(every) and not start, "validation.every")
    yield Setting("trainer.logger", ["console", "file"], "metrics.jsonl, watch.trackers")
    yield Setting("trainer.default_local_dir", str(places.folder.checkpoints.absolute()), "runs, name")
    yield Setting("trainer.rollout_data_dir", str(places.rollouts), "watch.rollouts_every")
    yield Setting("trainer.validation_data_dir", str(places.validations), "validation")
    yield Setting("trainer.resume_mode", "resume_path" if start else "disable", "--resume")
    if start:
        checkpoint = str(places.folder.checkpoint_of(start).absolute())
        yield Setting("trainer.resume_from_path", checkpoint, "--resume")
    yield Setting("hydra.run.dir", str(places.hydra), "runs, name")
    yield Setting("hydra.output_subdir", None, "config.yaml holds it all")


ALL_TOKENS = -1
"""verl's and vLLM's word for a `top_k` that leaves nothing out; ours is 0."""


def rollout_settings(config: Config, longest_prompt: int) -> Iterator[Setting]:
    """`longest_prompt` in tokens. `min_p`, `stop` and `stop_tokens`, which verl has not, have been refused."""
    rollout = config.rollout
    yield Setting(f"{ROLLOUT}.name", "vllm", "the rollout engine")
    yield Setting(f"{ROLLOUT}.n", rollout.n, "rollout.n")
    yield Setting(f"{ROLLOUT}.temperature", rollout.temperature, "rollout.temperature")
    yield Setting(f"{ROLLOUT}.top_p", rollout.top_p, "rollout.top_p")
    yield Setting(f"{ROLLOUT}.top_k", rollout.top_k or ALL_TOKENS, "rollout.top_k")
    room = longest_prompt + rollout.max_response_tokens
    yield Setting(f"{ROLLOUT}.max_model_len", room, "rollout: longest prompt + max_response_tokens")
    if rollout.rows_at_once is not None:
        yield Setting(f"{ROLLOUT}.max_num_seqs", rollout.rows_at_once, "rollout.rows_at_once")
    yield Setting(f"{ROLLOUT}.seed", config.seed, "seed")
    yield from _validation(config)


def _validation(config: Config) -> Iterator[Setting]:
    """As the local engine: at its own temperature, and otherwise as in training."""
    validation, sampled = config.validation, config.validation.temperature > 0
    yield Setting(f"{ROLLOUT}.val_kwargs.n", validation.n, "validation.n")
    yield Setting(f"{ROLLOUT}.val_kwargs.temperature", validation.temperature, "validation.temperature")
    yield Setting(f"{ROLLOUT}.val_kwargs.do_sample", sampled, "validation.temperature")
    yield Setting(f"{ROLLOUT}.val_kwargs.top_p", config.rollout.top_p, "rollout.top_p")
    yield Setting(f"{ROLLOUT}.val_kwargs.top_k", config.rollout.top_k or ALL_TOKENS, "rollout.top_k")


NO_DUAL_CLIP = 1e9
"""verl always clips the loss of negative advantages at some multiple: at this one never, since it cuts ratios at
exp(20) = 4.9e8 before."""

AGGREGATIONS = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "fixed_length": "seq-mean-token-sum-norm",
}
USUAL_MICRO_TOKENS = 16384


def update_settings(config: Config, longest_prompt: int) -> Iterator[Setting]:
    """`schedule: linear` has been refused."""
    update = config.update
    yield Setting(f"{ACTOR}.optim.lr", update.lr, "update.lr")
    yield Setting(f"{ACTOR}.optim.lr_scheduler_type", update.schedule, "update.schedule")
    yield Setting(f"{ACTOR}.optim.lr_warmup_steps", update.warmup_steps, "update.warmup_steps")
    yield Setting(f"{ACTOR}.optim.weight_decay", update.weight_decay, "update.weight_decay")
    yield Setting(f"{ACTOR}.optim.betas", list(update.betas), "update.betas")
    yield Setting(f"{ACTOR}.optim.clip_grad", update.max_grad_norm, "update.max_grad_norm")
    yield Setting(f"{ACTOR}.ppo_epochs", update.epochs, "update.epochs")
    yield Setting(f"{ACTOR}.ppo_mini_batch_size", update.mini_batch or config.rollout.prompts, "update.mini_batch")
    yield Setting(f"{ACTOR}.data_loader_seed", config.seed, "seed")
    yield Setting(f"{ACTOR}.fsdp_config.seed", config.seed, "seed")
    yield from _clips(config)
    yield from _kl(config)
    yield from _micro_batches(config, longest_prompt)


def _clips(config: Config) -> Iterator[Setting]:
    update = config.update
    yield Setting(f"{ACTOR}.clip_ratio", update.clip, "update.clip")
    yield Setting(f"{ACTOR}.clip_ratio_low", update.clip, "update.clip")
    yield Setting(f"{ACTOR}.clip_ratio_high", update.clip_high or update.clip, "update.clip_high")
    yield Setting(f"{ACTOR}.clip_ratio_c", update.dual_clip or NO_DUAL_CLIP, "update.dual_clip")
    yield Setting(f"{ACTOR}.loss_agg_mode", AGGREGATIONS[update.aggregation], "update.aggregation")
    if update.aggregation == "fixed_length":
        length = config.rollout.max_response_tokens
        yield Setting(f"{ACTOR}.loss_scale_factor", length, "update.aggregation, rollout.max_response_tokens")


def _kl(config: Config) -> Iterator[Setting]:
    """verl takes our names of the estimators, beside its own (k1 is `kl`, k2 `mse`, k3 `low_var_kl`)."""
    update = config.update
    in_loss, in_reward = update.kl > 0 and update.kl_in == "loss", update.kl > 0 and update.kl_in == "reward"
    yield Setting(f"{ACTOR}.use_kl_loss", in_loss, "update.kl, update.kl_in")
    yield Setting("algorithm.use_kl_in_reward", in_reward, "update.kl, update.kl_in")
    if in_loss:
        yield Setting(f"{ACTOR}.kl_loss_coef", update.kl, "update.kl")
        yield Setting(f"{ACTOR}.kl_loss_type", update.kl_estimator, "update.kl_estimator")
    if in_reward:
        yield Setting("algorithm.kl_ctrl.kl_coef", update.kl, "update.kl")
        yield Setting("algorithm.kl_penalty", update.kl_estimator, "update.kl_estimator")


def _micro_batches(config: Config, longest_prompt: int) -> Iterator[Setting]:
    """By tokens, never fewer than the longest sequence has; verl halves nothing by itself when memory runs out."""
    longest = longest_prompt + config.rollout.max_response_tokens
    tokens = max(config.update.micro_tokens or USUAL_MICRO_TOKENS, longest)
    yield Setting(f"{ACTOR}.use_dynamic_bsz", True, "update.micro_tokens")
    yield Setting(f"{ACTOR}.ppo_max_token_len_per_gpu", tokens, "update.micro_tokens")


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
