"""Every knob of an experiment: the root that joins the sections. No torch here: `egpo config` and the editors' schema
answer at once.

Every knob of supervised fine-tuning: the root of a recipe for `egpo sft`.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from egpo.config.sections.algorithm import Algorithm
from egpo.config.sections.experiment import Bfcl, Convert, Eval, Prepare, Probe, Verl
from egpo.config.sections.training import (
    Checkpoints,
    Lora,
    Model,
    Optimization,
    Rollout,
    Segments,
    Task,
    Trackers,
    Update,
    Validation,
    Watch,
)
from egpo.errors import Fault
from egpo.sections import Count, Every, PathText, Positive, RunName, RunsFolder, Section, Seed, raised

__all__ = [
    "Algorithm",
    "Bfcl",
    "Checkpoints",
    "Config",
    "Convert",
    "Eval",
    "Lora",
    "Model",
    "Optimization",
    "Prepare",
    "Probe",
    "Rollout",
    "Section",
    "Segments",
    "Task",
    "Trackers",
    "Update",
    "Validation",
    "Verl",
    "Watch",
]


class Config(Section):
    """One experiment."""

    name: RunName = "run"
    """Name of the run, and of its folder."""
    engine: Literal["local", "verl"] = "local"
    """`local`: this process. `verl`: Ray, FSDP and vLLM."""
    seed: Seed = 0
    """Decides sampling and data order."""
    steps: Count = 100
    """Batches of rollouts."""
    runs: RunsFolder = "runs"
    """Where run folders lie: this one's is `runs`/`name`."""
    model: Model
    """What is trained."""
    task: Task
    """What it is trained on."""
    rollout: Rollout = Rollout()
    """Sampling."""
    segments: Segments = Segments()
    """Thinking and answer."""
    algorithm: Algorithm = Algorithm()
    """The advantage."""
    update: Update = Update()
    """The policy update."""
    checkpoints: Checkpoints = Checkpoints()
    """What is kept of the model."""
    validation: Validation = Validation()
    """How it is watched on problems it does not train on."""
    watch: Watch = Watch()
    """Where to look."""
    prepare: Prepare = Prepare()
    """Its data, by `egpo run`."""
    probe: Probe = Probe()
    """The probe before it, by `egpo run`."""
    eval: Eval = Eval()
    """The evaluations after it, by `egpo run`."""
    verl: Verl = Verl()
    """The second engine, where `engine` names it."""


class SftData(Section):
    path: PathText
    """Conversations: JSON, JSON lines or parquet of `messages` (with `tools`), or parquet of `egpo prepare`."""
    eval_path: PathText | None = None
    """Conversations to evaluate on, in the same forms."""
    eval_frac: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Or this share of `path`, drawn by `seed` and kept out of training."""
    max_tokens: Count | None = None
    """Longer examples are left out, and counted; none: what the model's context holds."""

    @model_validator(mode="after")
    def _one_evaluation_set(self) -> "SftData":
        if self.eval_path is not None and self.eval_frac:
            raise raised(Fault("`eval_frac` and `eval_path` are both set", "eval_frac", "leave one of them out"))
        return self


class SftUpdate(Optimization):
    lr: Positive = 1e-5
    """Learning rate, at its highest."""
    batch_tokens: Count = 16384
    """Tokens per optimizer step, prompts included: whole examples, as many as fit; one at least."""


class SftValidation(Section):
    every: Every = 50
    """Steps between evaluation losses; also before the first step and after the last. 0: none at all."""


class SftConfig(Section):
    """One supervised run."""

    name: RunName = "sft"
    """Name of the run, and of its folder."""
    seed: Seed = 0
    """Decides the data order, the evaluation share, and the weights under `model.init: random`."""
    epochs: Count = 1
    """Passes over the data, each in an order of its own."""
    runs: RunsFolder = "runs"
    """Where run folders lie: this one's is `runs`/`name`."""
    model: Model
    """What is trained."""
    data: SftData
    """What it is trained on."""
    update: SftUpdate = SftUpdate()
    """The optimizer."""
    checkpoints: Checkpoints = Checkpoints()
    """What is kept of the model; the best are those of the lowest evaluation loss."""
    validation: SftValidation = SftValidation()
    """When the evaluation loss is measured."""
    watch: Trackers = Trackers()
    """Where to look."""
