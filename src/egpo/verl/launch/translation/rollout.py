"""Sampling, for training and for validation."""

from collections.abc import Iterator

from egpo.config import Config
from egpo.verl.launch.translation.setting import ROLLOUT, Setting

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
