"""Translates a recipe into verl's configuration: about twenty keys into about a hundred.

`translate` calls one function per section and merges their `Setting`s; each setting names the key of the recipe that it
follows from. The inverse is `recipe_import.py`. To pass another key of a recipe to verl, yield it in its section's
function, and read it back in `recipe_sections.py`.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.config import Config
from egpo.config.machine import require_model_place
from egpo.verl.cpu import launch_settings as cpu
from egpo.verl.launch.hosts import (
    USUAL_WORKERS,
    Host,
    attention_settings,
    host_settings,
    largest_cache_bytes,
    plain_shape,
)
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.problems import ProblemFiles
from egpo.verl.launch.schema.known import leaves
from egpo.verl.losses import NO_DUAL_CLIP, VERLS_LOSSES, loss_mode
from egpo.verl.settings import is_ours

MODEL, ACTOR = "actor_rollout_ref.model", "actor_rollout_ref.actor"
ROLLOUT, REFERENCE = "actor_rollout_ref.rollout", "actor_rollout_ref.ref"


@dataclass(frozen=True)
class Setting:
    """A key of verl with its value. `source` is the key of the recipe that it follows from, or the reason for it."""

    key: str
    value: Any
    source: str


def merged(settings: Iterable[Setting]) -> list[Setting]:
    """Return the settings with each key once, at its first position, with its last value."""
    return list({setting.key: setting for setting in settings}.values())


def translate(
    config: Config, places: VerlPlaces, files: ProblemFiles, start: int = 0, host: Host | None = None
) -> list[Setting]:
    """Return every setting that the recipe makes in verl, each key once.

    Later settings win: first what a CPU needs, then our sections and the sizes for the machine `host` (None: verl's
    own), last the recipe's own keys below `verl:`. `start` is the step to resume from, 0 for a new run. Call
    `refuse_what_verl_lacks` first.
    """
    return merged(
        [
            *platform_settings(config, joins=config.verl.address is not None),
            *model_settings(config),
            *data_settings(config, files),
            *rollout_settings(config, files.longest_prompt),
            *algorithm_settings(config),
            *update_settings(config, files.longest_prompt),
            *trainer_settings(config, places, start),
            *machine_settings(config),
            *settings_of_host(config, host, files.longest_prompt),
            *(Setting(key, value, "verl") for key, value in leaves(config.verl.raw)),
        ]
    )


def model_settings(config: Config) -> Iterator[Setting]:
    """Yield the model's settings. `device` has no effect; `refusals.py` refuses `init: random` and `deterministic`."""
    model = config.model
    yield Setting(f"{MODEL}.path", model_place(model.path), "model.path")
    for key in (f"{MODEL}.trust_remote_code", "data.trust_remote_code"):
        yield Setting(key, False, "code from a model folder never runs")
    yield Setting(
        f"{MODEL}.enable_gradient_checkpointing", model.gradient_checkpointing, "model.gradient_checkpointing"
    )
    for name, value in model.template.items():
        yield Setting(f"data.apply_chat_template_kwargs.{name}", value, "model.template")
    if model.dtype == "float32":
        yield from float32_settings()
    if model.lora is not None:
        yield Setting(f"{MODEL}.lora_rank", model.lora.rank, "model.lora")
        yield Setting(f"{MODEL}.lora_alpha", model.lora.alpha, "model.lora")
        yield Setting(f"{MODEL}.target_modules", list(model.lora.layers) or "all-linear", "model.lora")


def model_place(path: str) -> str:
    """Return a folder as an absolute path, since Ray's workers run elsewhere; a name on the hub unchanged."""
    folder = Path(require_model_place(path, f"model {path}")).expanduser()
    return str(folder.absolute()) if folder.is_dir() else path


def float32_settings() -> Iterator[Setting]:
    """Yield settings that make verl compute and sample in float32. (Its weights are float32 in any case.)"""
    for engine in (f"{ACTOR}.fsdp_config", f"{REFERENCE}.fsdp_config"):
        yield Setting(f"{engine}.dtype", "float32", "model.dtype")
        for part in ("param_dtype", "reduce_dtype", "buffer_dtype"):
            yield Setting(f"{engine}.mixed_precision.{part}", "fp32", "model.dtype")
    yield Setting(f"{ROLLOUT}.dtype", "float32", "model.dtype")


TRAINER_MODE = "egpo_sync"
"""The trainer mode for every estimator, verl's own `grpo` included: verl's synchronous trainer with our metrics."""


def algorithm_settings(config: Config) -> Iterator[Setting]:
    """Yield the estimator's settings. `constant_groups: drop` is refused by `refusals.py`."""
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
        metric = FILTER_METRICS.get(algorithm.filter, "reward")
        yield Setting("algorithm.filter_groups.enable", True, "algorithm.constant_groups")
        yield Setting("algorithm.filter_groups.metric", metric, "algorithm.constant_groups, algorithm.filter")
    if (probability := algorithm.random_rewards) is not None:
        yield Setting("algorithm.egpo.random_rewards", probability, "algorithm.random_rewards")
    yield from _controller(config)


FILTER_METRICS = {"constant": "reward", "all_or_none": "acc"}
"""The filters of groups (`algorithm.filter`), and the metric by which verl filters in the same way."""


def _controller(config: Config) -> Iterator[Setting]:
    """Yield the controller of the weight of the entropy term. verl has none; the plug-in's trainer calls ours."""
    update: Any = config.update
    name = update.controller
    if name != "none":
        home = "controller_settings" if ":" in name else name
        yield Setting("algorithm.egpo.controller.name", name, "update.controller")
        for key, value in update.settings_of_controller.items():
            yield Setting(f"algorithm.egpo.controller.settings.{key}", value, f"update.{home}.{key}")


REWARD = "reward.custom_reward_function"
OVERLONG, EPISODES_OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg", "algorithm.egpo.overlong"


def data_settings(config: Config, files: ProblemFiles) -> Iterator[Setting]:
    """Yield data files and reward. verl needs a validation file even if it never validates: the training file."""
    limit = config.rollout.max_prompt_tokens
    yield Setting("data.train_files", str(files.train), "task")
    yield Setting("data.val_files", str(files.test or files.train), "task, validation.problems")
    yield Setting("data.train_batch_size", config.rollout.prompts, "rollout.prompts")
    yield Setting("data.max_prompt_length", files.longest_prompt, files.longest_prompt_source)
    yield Setting("data.max_response_length", config.rollout.max_response_tokens, "rollout.max_response_tokens")
    # Episodes whose prompt is too long are not in the files: verl would measure another prompt, without the tools.
    filters = limit is not None and not files.episodes
    yield Setting("data.filter_overlong_prompts", filters, "rollout.max_prompt_tokens")
    yield Setting("data.seed", config.seed, "seed")
    if files.episodes:
        yield from _episodes(config)
    else:
        yield from _reward(config, files)
    yield from _overlong(config, files)


def _episodes(config: Config) -> Iterator[Setting]:
    """Yield the limits of episodes, for the agent loop. The environments judge: there is no reward function."""
    for name, value in config.rollout.episodes.model_dump(exclude_none=True).items():
        yield Setting(f"algorithm.egpo.episodes.{name}", value, f"rollout.episodes.{name}")


def _overlong(config: Config, files: ProblemFiles) -> Iterator[Setting]:
    """Yield DAPO's overlong penalty: verl's own reward manager has it, the agent loop of episodes has ours."""
    overlong, source = config.algorithm.overlong, "algorithm.overlong"
    if overlong is None:
        return
    if files.episodes:
        yield Setting(f"{EPISODES_OVERLONG}.tokens", overlong.tokens, f"{source}.tokens")
        yield Setting(f"{EPISODES_OVERLONG}.penalty", overlong.penalty, f"{source}.penalty")
        return
    yield Setting("reward.reward_manager.name", "dapo", source)
    yield Setting(f"{OVERLONG}.enable", True, source)
    yield Setting(f"{OVERLONG}.len", overlong.tokens, f"{source}.tokens")
    yield Setting(f"{OVERLONG}.penalty_factor", overlong.penalty, f"{source}.penalty")
    yield Setting(f"{OVERLONG}.log", False, source)
    yield Setting("reward.reward_kwargs.max_resp_len", config.rollout.max_response_tokens, f"{source}, rollout")


def _reward(config: Config, files: ProblemFiles) -> Iterator[Setting]:
    """Yield the reward's settings: a built-in task is judged by its data source, a custom task by its own `judge`."""
    if files.data_source is None:
        yield Setting(f"{REWARD}.path", "pkg://egpo.verl.launch.task_reward", "task.name")
        yield Setting(f"{REWARD}.name", "compute_score", "task.name")
        yield Setting(f"{REWARD}.reward_kwargs.task", config.task.name, "task.name")
        yield Setting(
            f"{REWARD}.reward_kwargs.settings", json.dumps(config.task.settings, sort_keys=True), "task.settings"
        )
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


def trainer_settings(config: Config, places: VerlPlaces, start: int) -> Iterator[Setting]:
    """Yield steps, periods and folders. `start` is the step to resume from, 0 for a new run, which validates first.

    The launcher itself removes old checkpoints (`keep_last`, `keep_best`) and writes to trackers: verl keeps no best
    checkpoints, and its own trackers would not continue the curve of a resumed run.
    """
    every = config.validation.every
    yield Setting("trainer.project_name", "egpo", "name")
    yield Setting("trainer.experiment_name", config.name, "name")
    yield Setting("trainer.total_training_steps", config.steps, "steps")
    # An epoch has at least one step, so this many epochs are enough for data of any size.
    yield Setting("trainer.total_epochs", config.steps, "steps")
    # At a period of 0 verl saves nothing; a recipe still saves the last step.
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
    yield Setting("hydra.output_subdir", None, "config.yaml has all settings")


ALL_TOKENS = -1
"""The `top_k` that means all tokens in verl and vLLM; in a recipe it is 0."""


def rollout_settings(config: Config, longest_prompt: int) -> Iterator[Setting]:
    """Yield sampling settings. `longest_prompt` is in tokens; `refusals.py` refuses `min_p`, `stop`, `stop_tokens`."""
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
    """Yield validation settings. Only n and temperature differ from training, as under the embedded engine."""
    validation, sampled = config.validation, config.validation.temperature > 0
    yield Setting(f"{ROLLOUT}.val_kwargs.n", validation.n, "validation.n")
    yield Setting(f"{ROLLOUT}.val_kwargs.temperature", validation.temperature, "validation.temperature")
    yield Setting(f"{ROLLOUT}.val_kwargs.do_sample", sampled, "validation.temperature")
    yield Setting(f"{ROLLOUT}.val_kwargs.top_p", config.rollout.top_p, "rollout.top_p")
    yield Setting(f"{ROLLOUT}.val_kwargs.top_k", config.rollout.top_k or ALL_TOKENS, "rollout.top_k")


AGGREGATIONS = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "fixed_length": "seq-mean-token-sum-norm",
}
USUAL_MICRO_TOKENS = 16384


def update_settings(config: Config, longest_prompt: int) -> Iterator[Setting]:
    """Yield optimizer and loss settings. `schedule: linear` is refused by `refusals.py`."""
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
    yield from loss_settings(config)
    yield from _clips(config)
    yield from _corrections(config)
    yield from _kl(config)
    yield from _micro_batches(config, longest_prompt)


LOSS_MODE = f"{ACTOR}.policy_loss.loss_mode"


def loss_settings(config: Config) -> Iterator[Setting]:
    """Yield the loss form: verl's own if it has it, with its keys, else a mode that the plug-in registers."""
    update = config.update
    settings = update.settings_of_loss
    yield Setting(LOSS_MODE, loss_mode(update.loss, settings), "update.loss")
    if update.loss in VERLS_LOSSES:
        for ours, theirs in VERLS_LOSSES[update.loss].keys.items():
            yield Setting(f"{ACTOR}.policy_loss.{theirs}", settings[ours], f"update.{update.loss}.{ours}")


CORRECTION = "algorithm.rollout_correction"


def _corrections(config: Config) -> Iterator[Setting]:
    """Yield the weight of the entropy term, and the cap of the weights that correct for the sampler's arithmetic."""
    if weight := config.update.entropy_weight:
        yield Setting(f"{ACTOR}.entropy_coeff", weight, "update.entropy_weight")
    if (cap := config.update.importance_cap) is not None:
        yield Setting(f"{CORRECTION}.rollout_is", "token", "update.importance_cap")
        yield Setting(f"{CORRECTION}.rollout_is_threshold", cap, "update.importance_cap")
        yield Setting(f"{ROLLOUT}.calculate_log_probs", True, "update.importance_cap")


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
    """Yield KL settings. verl accepts our names of the estimators and its own (k1 `kl`, k2 `mse`, k3 `low_var_kl`)."""
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
    """Yield the micro-batch size in tokens, at least the longest sequence. verl does not adapt it to memory."""
    longest = longest_prompt + config.rollout.max_response_tokens
    tokens = max(config.update.micro_tokens or USUAL_MICRO_TOKENS, longest)
    yield Setting(f"{ACTOR}.use_dynamic_bsz", True, "update.micro_tokens")
    yield Setting(f"{ACTOR}.ppo_max_token_len_per_gpu", tokens, "update.micro_tokens")


WEIGHTS_PER_GPU = 10e9
"""Maximum number of weights per GPU; vLLM splits a larger model over several GPUs."""


def platform_settings(config: Config, *, joins: bool) -> Iterator[Setting]:
    """Yield what verl needs on a CPU. Settings of a new Ray instance are left out if verl joins a cluster."""
    if config.verl.device == "cpu":
        for key, value in cpu.OVERRIDES.items():
            name = key.removeprefix("+")
            if not (joins and name.startswith("ray_kwargs.ray_init.")) and ".override_config." not in name:
                yield Setting(name, value, "verl.device=cpu")
        for name, value in attention_settings(config, packs=plain_shape(model_place(config.model.path)) is not None):
            yield Setting(name, value, "verl.device=cpu, no flash-attn")


def machine_settings(config: Config) -> Iterator[Setting]:
    verl, parallel = config.verl, tensor_parallel(config)
    yield Setting("trainer.device", verl.device, "verl.device")
    yield Setting("trainer.n_gpus_per_node", verl.gpus, "verl.gpus")
    yield Setting("trainer.nnodes", verl.nodes, "verl.nodes")
    yield Setting(f"{ACTOR}.strategy", "fsdp2", "what egpo is tested with")
    yield Setting(f"{ROLLOUT}.tensor_model_parallel_size", parallel, "verl.tensor_parallel, model size")
    # By default Ray would join the cluster that was started last on this machine.
    yield Setting("ray_kwargs.ray_init.address", verl.address or "local", "verl.address")
    if verl.device == "cuda":
        yield Setting(f"{ROLLOUT}.agent.num_workers", min(USUAL_WORKERS, config.rollout.prompts), "rollout.prompts")


def settings_of_host(config: Config, host: Host | None, longest_prompt: int) -> Iterator[Setting]:
    """Yield what verl needs on this machine with GPUs: the numbers of processes, memory and attention (`hosts.py`)."""
    if host is not None and config.verl.device == "cuda":
        model = model_place(config.model.path)
        shape = plain_shape(model)
        cache = largest_cache_bytes(config, shape, longest_prompt + config.rollout.max_response_tokens)
        for key, value in host_settings(config, host, num_weights(model), cache, packs=shape is not None):
            yield Setting(key, value, f"this machine: {host.reason(key)}")


def tensor_parallel(config: Config) -> int:
    """Return how many GPUs share a model in vLLM: as set, or the fewest with at most 10 billion weights per GPU."""
    if config.verl.tensor_parallel is not None:
        return config.verl.tensor_parallel
    gpus, weights = config.verl.gpus, num_weights(model_place(config.model.path))
    divisors = [size for size in range(1, gpus + 1) if gpus % size == 0]
    return next((size for size in divisors if weights / size <= WEIGHTS_PER_GPU), gpus)


def num_weights(model: str) -> float:
    """Return the number of weights by file size (2 bytes per weight), else by name (`Qwen3-32B`), else 0."""
    files = list(Path(model).glob("*.safetensors")) if Path(model).is_dir() else []
    if files:
        return sum(path.stat().st_size for path in files) / 2
    named = re.search(r"(\d+(?:\.\d+)?)B\b", Path(model).name, re.IGNORECASE)
    return float(named[1]) * 1e9 if named else 0.0
