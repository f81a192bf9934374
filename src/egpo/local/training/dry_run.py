"""`egpo train --dry-run`: load everything, take two small steps, print what a run would cost, keep nothing."""

import time
from dataclasses import dataclass
from itertools import islice

from egpo.config import Config
from egpo.local.checkpoints.checkpoint import room_for
from egpo.local.models.policy import prompt_text
from egpo.local.run import Run
from egpo.local.sampling.prompt_lengths import prompt_lengths
from egpo.local.step import StepOutcome, step
from egpo.local.training.preflight import check_before_training, checkpoint_bytes, num_prompts_checked, size_text
from egpo.local.training.rl_session import open_seeded
from egpo.local.training.session import run_folder
from egpo.model_sources import display_name

_PROMPTS_OF_THE_STEP = 2
_PROMPTS_COUNTED = 1_000


@dataclass(frozen=True)
class Memory:
    """Bytes that are in use throughout training, without activations and the cache of keys and values."""

    weights: int
    gradients: int
    optimizer: int

    @classmethod
    def of(cls, run: Run) -> "Memory":
        weights = sum(weight.numel() * weight.element_size() for weight in run.policy.model.parameters())
        trained = sum(weight.numel() for weight in run.policy.model.parameters() if weight.requires_grad)
        # Gradients are summed in float32, whatever the precision of the weights.
        return cls(weights, 4 * trained, checkpoint_bytes(run) - weights)


def dry_run(config: Config) -> str:
    """Take two small steps, and return a description of the run: data, prompt, memory, disk, and time of a step."""
    few = min(_PROMPTS_OF_THE_STEP, config.rollout.prompts)
    small = config.model_copy(update={"rollout": config.rollout.model_copy(update={"prompts": few})})
    run = open_seeded(small)
    sandbox = check_before_training(run)
    described = [*_recipe(config), *_model(run), *_data(run), *_disk(run, config)]
    described += [("sandbox", sandbox)] if sandbox else []
    # The first step warms up memory, threads and judge workers, and is not timed.
    step(run, 0)
    run.stages.take()
    start = time.perf_counter()
    outcome = step(run, 1)
    described += _cost(run, config, time.perf_counter() - start)
    lines = [f"{name:<10}{text}" for name, text in described]
    last = "Nothing was kept. To start the run, leave out --dry-run."
    return "\n".join([*lines, "", *_example(run, outcome), "", last])


def _recipe(config: Config) -> list[tuple[str, str]]:
    batch = f"{config.rollout.prompts} problems x {config.rollout.n} responses"
    chosen = f"{config.algorithm.estimator} on {config.task.name}"
    return [("run", f"{run_folder(config).path}: {chosen}, {config.steps} steps of {batch}")]


def _model(run: Run) -> list[tuple[str, str]]:
    weights = list(run.policy.model.parameters())
    total, trained = (sum(w.numel() for w in some) for some in (weights, [w for w in weights if w.requires_grad]))
    memory = Memory.of(run)
    held = {"weights": memory.weights, "gradients": memory.gradients, "optimizer": memory.optimizer}
    parts = ", ".join(f"{name} {size_text(size)}" for name, size in held.items())
    dtype = str(run.policy.model.dtype).removeprefix("torch.")
    name = display_name(run.config.model.path)
    return [
        ("model", f"{name}: {total:,} parameters, {trained:,} trained, {dtype} on {run.policy.device}"),
        ("memory", f"{parts}; {size_text(sum(held.values()))} before activations and the cache of keys and values"),
    ]


def _data(run: Run) -> list[tuple[str, str]]:
    problems = run.task.problems("train")
    counted = list(islice(problems, min(_PROMPTS_COUNTED, num_prompts_checked(run, problems))))
    lengths = prompt_lengths(run.policy, run.task, counted, run.config.rollout.episodes)
    limits = f"{run.config.rollout.max_response_tokens} for a response, {run.policy.context} in the model's context"
    return [("data", f"{len(problems):,} problems; prompts of {min(lengths)} to {max(lengths)} tokens, {limits}")]


def _disk(run: Run, config: Config) -> list[tuple[str, str]]:
    need = checkpoint_bytes(run)
    return [("disk", f"{size_text(need)} per checkpoint, room for {room_for(run_folder(config).path, need):,}")]


def _cost(run: Run, config: Config, seconds: float) -> list[tuple[str, str]]:
    """Describe the measured time of a step, and the time of the run scaled from it by the number of problems.

    The scaled time is an upper bound, because larger batches are more efficient.
    """
    taken = run.config.rollout.prompts
    stages = ", ".join(f"{name} {spent:.2f} s" for name, spent in run.stages.take().items())
    whole = seconds * config.rollout.prompts / taken
    return [
        ("step", f"{seconds:.2f} s for {taken} problems x {config.rollout.n} responses ({stages})"),
        ("cost", f"at most about {whole:.1f} s per step, {whole * config.steps / 60:.1f} min for {config.steps} steps"),
    ]


def _example(run: Run, outcome: StepOutcome) -> list[str]:
    rollouts, verdict = outcome.batch.rollouts, outcome.batch.verdicts[0]
    problem, tokens = rollouts.problems[0], rollouts.prompts[0]
    episodes = rollouts.episodes is not None  # whose prompts have what their environments say first, and the tools
    shown = run.policy.tokenizer.decode(tokens) if episodes else prompt_text(run.policy, run.task, problem)
    return [
        f"The prompt as the model sees it ({len(tokens)} tokens):",
        _visible(shown),
        "",
        f"A response ({int(rollouts.length_B[0])} tokens; reward {verdict.reward:g}, {verdict.reason}):",
        _visible(rollouts.texts[0]),
    ]


def _visible(text: str) -> str:
    """Escape control characters: a model may write terminal escape sequences."""
    return "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in text)
