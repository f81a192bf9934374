"""Problems and their reward."""

import json
from collections.abc import Iterator

from egpo.config import Config
from egpo.verl.launch.problems import ProblemFiles
from egpo.verl.launch.translation.setting import Setting

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
