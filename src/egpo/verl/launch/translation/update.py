"""The optimizer, and the policy update that it makes."""

from collections.abc import Iterator

from egpo.config import Config
from egpo.verl.launch.translation.setting import ACTOR, Setting

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
