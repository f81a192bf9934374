"""verl as the peer of a whole step: `egpo train` with engine=verl on a job of benchmarks/_gpu_job.py, one GPU.

The same recipe as ours, with the settings that the launcher derives from the machine. verl cannot end
rows at given lengths: a job must have one length, to which vLLM samples every row (`ignore_eos`).
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

import _gpu_job as jobs
import _words

HERE = Path(__file__).parent
LAUNCH_S, END_S = 240, 40
"""The time limit of a launch, most of which is start-up, and the time that it gets to end its processes, in seconds."""


SPECIAL = ("\n", "<|im_end|>")
"""Tokens that verl's agent loop requires in every tokenizer of a Qwen model."""


def recipe(
    job: jobs.Job, model: Path, runs: Path, steps: int, micro_rows: int, device: str = "cuda"
) -> dict[str, object]:
    """Return the recipe of a job. `model` is a folder with weights. `device=cpu` is for testing the benchmark."""
    if job.shortest != job.longest:
        raise ValueError("verl cannot end rows at given lengths: the job must have one length")
    return {
        "name": "verl",
        "runs": str(runs),
        "engine": "verl",
        "verl": {"gpus": 1, "device": device, "actor_rollout_ref": {"rollout": {"ignore_eos": True}}},
        "steps": steps,
        "model": {"path": str(model), "dtype": "bfloat16" if device == "cuda" else "float32"},
        "task": {"name": "_words:Words", "settings": {"texts": job.texts()}},
        "rollout": {
            "prompts": job.prompts,
            "n": job.group,
            "max_prompt_tokens": job.prompt_tokens,
            "max_response_tokens": job.longest,
        },
        "algorithm": {"estimator": "grpo"},
        "update": {"lr": 1e-6, "micro_tokens": micro_rows * (job.prompt_tokens + job.longest)},
        "validation": {"every": 0},
        "watch": {"rollouts_every": 0},
        "checkpoints": {"every": steps + 1},
    }


def train(
    job: jobs.Job, model: Path, folder: Path, steps: int, micro_rows: int, device: str = "cuda"
) -> Iterator[dict[str, object]]:
    """Train for some steps, and yield what `measured` returns of each."""
    model = _with_special_tokens(job, model, folder / "model")
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe(job, model, folder / "runs", steps, micro_rows, device)))
    _launch([sys.executable, "-m", "egpo", "train", str(path)])
    run = folder / "runs" / "verl"
    metrics, timings = (
        [json.loads(line) for line in (run / f"{name}.jsonl").read_text().splitlines()]
        for name in ("metrics", "timings")
    )
    for figures, times in zip(metrics, timings, strict=True):
        yield measured(job, figures, times)


def _launch(words: list[str]) -> None:
    """Run a launch. If it takes too long, end its launcher by SIGTERM, because only that finds all of its processes."""
    process = subprocess.Popen(words, env=_environment())
    try:
        code = process.wait(LAUNCH_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(END_S)
        finally:
            process.kill()
        raise
    if code:
        raise subprocess.CalledProcessError(code, words)


def measured(job: jobs.Job, figures: dict[str, float], times: dict[str, float]) -> dict[str, object]:
    """Return seconds by stage, tokens and the trainer's peak GiB of a step.

    The rollout includes the transfer of the weights, as in TRL's. The checkpoint of the last step is left out: the
    other contenders write none.
    """
    seconds = {stage.removeprefix("timing_s/"): value for stage, value in times.items() if "timing_s/" in stage}
    rollout, update = seconds["gen"] + seconds["update_weights"], seconds["update_actor"]
    step = seconds["step"] - seconds.get("save_checkpoint", 0.0)
    peaks = [value for name, value in times.items() if name.endswith("perf/max_memory_allocated_gb")]
    return {
        "rollout": rollout,
        "update": update,
        "between": step - rollout - update,
        "step": step,
        "stages": seconds,
        "tokens": round(figures["response_length/mean"] * job.rows),
        "gib": max(peaks, default=0.0),
    }


def _with_special_tokens(job: jobs.Job, model: Path, folder: Path) -> Path:
    """Return a folder with links to a model's weights, and a tokenizer that verl accepts."""
    folder.mkdir()
    for file in model.iterdir():
        if not file.name.startswith("tokenizer"):
            (folder / file.name).symlink_to(file)
    _words.make_tokenizer(job.vocabulary, SPECIAL).save_pretrained(folder)
    return folder


def _environment() -> dict[str, str]:
    known = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": known}


def start_s(folder: Path) -> float:
    """Return the seconds from the start of verl until its first step was recorded."""
    text = (folder / "runs" / "verl" / "verl" / "starts.jsonl").read_text()
    return json.loads(text.splitlines()[-1])["seconds"]


def differences(folder: Path) -> list[str]:
    """Return what the launcher set because of this machine, and what the columns mean for verl."""
    words = ["train", str(folder / "recipe.yaml"), f"runs={folder / 'planned'}"]  # the folder of the run exists already
    told = subprocess.run(
        [sys.executable, "-m", "egpo", *words, "--dry-run"],
        env=_environment(),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    ).stdout
    machine = [" ".join(line.split()) for line in told.splitlines() if "this machine" in line]
    return [*machine, "processes of its own, before our rounds", "GiB is the trainer's alone"]
