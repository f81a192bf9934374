"""What a run keeps, how it is tried on what it does not train on, and where to look."""

from typing import Annotated, Literal

from pydantic import Field

from egpo.config.sections.section import Count, CountOrZero, Every, Section


class Checkpoints(Section):
    every: Every = 50
    """Steps between checkpoints; the last step is always saved."""
    keep_last: Count = 2
    """So many of the latest are kept."""
    keep_best: CountOrZero = 1
    """So many of the best by validation accuracy (by mean score where there is no validation) are kept besides."""


class Validation(Section):
    every: Every = 10
    """Steps between validations on held-out problems; also before the first step and after the last."""
    problems: Count = 64
    """The first so many of the task's test split."""
    n: Count = 1
    """Responses per problem."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """0 is greedy."""


class Trackers(Section):
    trackers: Annotated[tuple[Literal["tensorboard", "wandb", "trackio", "swanlab"], ...], Field(strict=False)] = ()
    """Where metrics go besides `metrics.jsonl`."""


class Watch(Trackers):
    rollouts_every: Every = 10
    """Steps between dumps of the rollouts; the first and the last step's are always kept."""
