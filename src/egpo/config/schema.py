"""The two kinds of recipe: `Config` for reinforcement learning, `SftConfig` for supervised fine-tuning by `egpo sft`.

Each joins the sections of `config/sections/`. Nothing here imports torch, so that `egpo config` starts at once.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from egpo.config.sections.algorithm import Algorithm
from egpo.config.sections.experiment import Bfcl, ColdStart, Convert, Eval, Prepare, ProbeStage, Verl
from egpo.config.sections.training import (
    Checkpoints,
    Logging,
    Lora,
    Model,
    Optimization,
    Rollout,
    Segments,
    Task,
    Trackers,
    Update,
    Validation,
)
from egpo.controllers import CONTROLLERS
from egpo.errors import Fault
from egpo.sections import Count, Every, PathText, Positive, RunName, RunsFolder, Section, Seed, raised

__all__ = [
    "Algorithm",
    "Bfcl",
    "Checkpoints",
    "ColdStart",
    "Config",
    "Convert",
    "Eval",
    "Logging",
    "Lora",
    "Model",
    "Optimization",
    "Prepare",
    "ProbeStage",
    "Rollout",
    "Section",
    "Segments",
    "Task",
    "Trackers",
    "Update",
    "Validation",
    "Verl",
]


class Config(Section):
    """A recipe for reinforcement learning: one training run and the stages of `egpo run` around it."""

    name: RunName = "run"
    """Name of the run and of its folder."""
    engine: Literal["local", "verl"] = "local"
    """Training engine. `local`: the embedded engine, in this process, on a CPU or one GPU. `verl`: Ray, FSDP and vLLM
    on one or more GPUs."""
    seed: Seed = 0
    """Random seed of the sampling and of the order of the problems."""
    steps: Count = 100
    """Number of training steps; each samples and learns from one batch of rollouts."""
    runs: RunsFolder = "runs"
    """Folder of all runs. This run is written to `runs`/`name`."""
    model: Model
    """The model to train."""
    task: Task
    """The task: problems, prompts and reward."""
    rollout: Rollout = Rollout()
    """Sampling of responses."""
    segments: Segments = Segments()
    """How a response is divided into thinking and answer."""
    algorithm: Algorithm = Algorithm()
    """How advantages are computed from rewards."""
    update: Update = Update()
    """Optimizer and policy loss."""
    checkpoints: Checkpoints = Checkpoints()
    """When checkpoints are written, and which are kept."""
    validation: Validation = Validation()
    """Validation on held-out problems during training."""
    watch: Logging = Logging()
    """Experiment trackers and dumps of rollouts."""
    prepare: Prepare = Prepare()
    """Preparation of the task's data."""
    cold_start: ColdStart | None = None
    """Supervised fine-tuning on gold answers before the training, made by `egpo run`. Default: none."""
    probe: ProbeStage = ProbeStage()
    """Probe before the training, made by `egpo run`."""
    eval: Eval = Eval()
    """Evaluations after the training, made by `egpo run`."""
    verl: Verl = Verl()
    """Settings of the verl engine, used with `engine: verl`."""

    @model_validator(mode="after")
    def _settings_agree(self) -> "Config":
        overlong, longest = self.algorithm.overlong, self.rollout.max_response_tokens
        if overlong is not None and overlong.range_below(longest) > longest:
            what = f"`overlong.tokens` is {overlong.tokens}, and responses have at most {longest} tokens"
            raise raised(Fault(what, "algorithm", "make it smaller than rollout.max_response_tokens"))
        if self.update.controller in CONTROLLERS:
            for key in CONTROLLERS[self.update.controller].sets:
                if getattr(self.update, key) != type(self.update).model_fields[key].default:
                    what = f"`update.{key}` is set, and the controller `{self.update.controller}` sets it too"
                    raise raised(Fault(what, "update", f"leave {key} out, or the controller"))
        return self

    def writes_rollouts(self, step: int) -> bool:
        """Return whether the rollouts of a step, counted from 1, are written to `rollouts/`."""
        every = self.watch.rollouts_every
        return step in (1, self.steps) or bool(every and step % every == 0)


class SftData(Section):
    path: PathText
    """Training conversations: JSON, JSON lines or parquet with `messages` (and `tools`), or parquet written by
    `egpo prepare`."""
    eval_path: PathText | None = None
    """Conversations for the evaluation loss, in the same formats. Default: none."""
    eval_frac: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Instead of `eval_path`: the fraction of `path`, drawn by `seed`, that is held out for the evaluation loss."""
    max_tokens: Count | None = None
    """Maximum length of an example, in tokens. Longer ones are skipped and counted. Default: the model's context."""

    @model_validator(mode="after")
    def _one_evaluation_set(self) -> "SftData":
        if self.eval_path is not None and self.eval_frac:
            raise raised(Fault("`eval_frac` and `eval_path` are both set", "eval_frac", "leave one of them out"))
        return self


class SftUpdate(Optimization):
    lr: Positive = 1e-5
    """Peak learning rate."""
    batch_tokens: Count = 16384
    """Tokens per optimizer step, including prompts. A step takes as many whole examples as fit, and at least one."""


class SftValidation(Section):
    every: Every = 50
    """Steps between measurements of the evaluation loss; it is also measured before the first step and after the last.
    0: never."""


class SftConfig(Section):
    """A recipe for supervised fine-tuning: one run of `egpo sft`."""

    name: RunName = "sft"
    """Name of the run and of its folder."""
    seed: Seed = 0
    """Random seed of the data order, of the split by `data.eval_frac`, and of the weights with `model.init: random`."""
    epochs: Count = 1
    """Passes over the data; each is shuffled anew."""
    runs: RunsFolder = "runs"
    """Folder of all runs. This run is written to `runs`/`name`."""
    model: Model
    """The model to train."""
    data: SftData
    """The conversations to train and evaluate on."""
    update: SftUpdate = SftUpdate()
    """Optimizer and batch size."""
    checkpoints: Checkpoints = Checkpoints()
    """When checkpoints are written, and which are kept. The best are those with the lowest evaluation loss."""
    validation: SftValidation = SftValidation()
    """When the evaluation loss is measured."""
    watch: Trackers = Trackers()
    """Experiment trackers."""
