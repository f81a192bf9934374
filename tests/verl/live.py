"""verl for real, on the CPU: stock `python -m verl.trainer.main_ppo` with egpo-tiny, vLLM, FSDP2 and Ray.

A run takes about two minutes and 6.5 GiB, so tests share one wherever they can.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.assets import resolve_model
from egpo.tasks.loading import load_task
from egpo.tasks.preparation import prepare
from egpo.verl.cpu.launch_settings import ENVIRONMENT, OVERRIDES
from egpo.verl.dumps import Recorded, read_record

TIME_LIMIT_S = 400
ONE_CALL = {"max_turns": 1, "max_calls": 1, "max_tools": 2, "describe_tools": False, "instruction": ""}
"""Tool calls as egpo-tiny knows them."""

EVERY_STEP = {
    "actor/entropy", "actor/pg_loss", "actor/grad_norm", "critic/score/mean", "response_length/mean",
    "response_length/clip_ratio", "entropy/thinking", "entropy/answer", "entropy/response", "groups/zero_variance_frac",
    "groups/all_right_frac", "groups/none_right_frac", "critic/acc/mean", "reward/error_frac",
}  # fmt: skip
BY_EGPO = {f"egpo/{name}" for name in ("bonus/mean", "bonus/max", "entropy/seq_mean", "entropy/group_mean")}
BY_CALIBRATION = {f"egpo/weight/{name}" for name in ("mean", "std", "min", "max")} | {"egpo/ratio/max"}

_ACTOR, _ROLLOUT, _REF = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "ref"))
SMALL = {
    "algorithm.use_kl_in_reward": False,
    "data.train_batch_size": 4,
    "data.max_prompt_length": 512,
    "data.max_response_length": 112,
    f"{_ACTOR}.optim.lr": 3e-5,
    f"{_ACTOR}.use_kl_loss": False,
    f"{_ACTOR}.ppo_mini_batch_size": 4,
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": 4,
    f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu": 4,
    f"{_REF}.log_prob_micro_batch_size_per_gpu": 4,
    f"{_ROLLOUT}.n": 4,
    f"{_ROLLOUT}.max_model_len": 640,
    "reward.custom_reward_function.path": "pkg://egpo.verl.reward",
    "reward.custom_reward_function.name": "compute_score",
    # Beside another cluster on the machine Ray would join that one.
    "+ray_kwargs.ray_init.address": "local",
    "trainer.nnodes": 1,
    "trainer.total_epochs": 1,
    "trainer.logger": "[console,file]",
    "trainer.val_before_train": False,
    "trainer.test_freq": -1,
    "trainer.save_freq": -1,
    "trainer.resume_mode": "disable",
}


@dataclass(frozen=True)
class LiveRun:
    """`metrics`: verl's own log, one dictionary a step. `log`: all that its processes said."""

    folder: Path
    exit_code: int
    metrics: tuple[Mapping[str, Any], ...]
    log: str


def records_in(folder: Path) -> list[Recorded]:
    """The recorded batch of every step, in the order of the steps (fewer than ten)."""
    return [read_record(path) for path in sorted(folder.glob("step_*.npz"))]


def reasons_of(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if key.startswith("reward/reason/")}


def model_that_opens_the_tag(folder: Path) -> Path:
    """egpo-tiny with a chat template like Qwen3-Thinking's: the prompt ends with `<think>`."""
    shutil.copytree(resolve_model("egpo-tiny"), folder)
    template = folder / "chat_template.jinja"
    opening = "{{- '<|im_start|>assistant\\n' }}"
    text = template.read_text()
    assert opening in text
    template.write_text(text.replace(opening, "{{- '<|im_start|>assistant\\n<think>\\n' }}"))
    return folder


def write_data(folder: Path, task: str, *, train: int = 64, test: int = 8, **settings: Any) -> Path:
    prepare(load_task(task, **settings), folder, train=train, test=test)
    return folder


def run_verl(
    folder: Path,
    *,
    data: Path,
    steps: int,
    model: Path | None = None,
    environment: Mapping[str, str] = {},
    limit_s: float = TIME_LIMIT_S,
    **others: Any,
) -> LiveRun:
    """Two underscores in a keyword are a dot: `algorithm__adv_estimator="egpo"`; `more` is a list of raw overrides."""
    folder.mkdir(parents=True, exist_ok=True)
    more = others.pop("more", [])
    overrides = {
        **OVERRIDES,
        **SMALL,
        "actor_rollout_ref.model.path": model or resolve_model("egpo-tiny"),
        "data.train_files": data / "train.parquet",
        "data.val_files": data / "test.parquet",
        "trainer.total_training_steps": steps,
        "trainer.default_local_dir": folder / "checkpoints",
        **{key.replace("__", "."): value for key, value in others.items()},
    }
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *(f"{k}={v}" for k, v in overrides.items()), *more]
    metrics = folder / "verl.jsonl"
    said = {"VERL_FILE_LOGGER_PATH": str(metrics), "HYDRA_FULL_ERROR": "1", "HF_HUB_OFFLINE": "1"}
    exit_code = _run(command, folder, {**os.environ, **ENVIRONMENT, **said, **environment}, limit_s)
    lines = metrics.read_text().splitlines() if metrics.exists() else []
    log = (folder / "log").read_text(errors="replace")
    return LiveRun(folder, exit_code, tuple(json.loads(line)["data"] for line in lines), log)


def _run(command: list[str], folder: Path, environment: dict[str, str], limit_s: float) -> int:
    """Its own session, so that a run that hangs takes its processes with it."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait(limit_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(30)
