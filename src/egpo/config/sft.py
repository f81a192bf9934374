"""Every knob of supervised fine-tuning: the root of a recipe for `egpo sft`."""

from typing import Annotated

from pydantic import Field, model_validator

from egpo.config.sections.keep import Checkpoints, Trackers
from egpo.config.sections.model import Model
from egpo.config.sections.section import Count, Every, PathText, Positive, RunName, RunsFolder, Section, Seed, raised
from egpo.config.sections.update import Optimization
from egpo.errors import Fault


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
