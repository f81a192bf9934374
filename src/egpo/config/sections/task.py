"""What is trained on, and how a response is read."""

from typing import Any

from pydantic import Field, model_validator

from egpo.config.sections.section import Positive, Section, raised
from egpo.errors import Fault
from egpo.tags import THINK_TAGS, tags_fault


class Task(Section):
    name: str = Field(min_length=1)
    """A task of the package (`countdown`, `gsm8k`, ...), or one of yours as `module:Class`."""
    settings: dict[str, Any] = Field({})
    """What the task is made with: `source` (a directory of `egpo prepare`), `mode`, ..."""
    judge_timeout_s: Positive | None = None
    """Seconds that judging one response may take; a response without a verdict by then is left out as `failed`. None:
    the task's own `judge_timeout_s`, else 300."""


class Segments(Section):
    tags: tuple[str, str] = Field(THINK_TAGS, strict=False)
    """The pair that opens and closes the thinking, as in the model's chat template."""

    @model_validator(mode="after")
    def _tags_differ(self) -> "Segments":
        if fault := tags_fault(self.tags):
            raise raised(Fault("`tags` are `{}` and `{}`".format(*self.tags), "tags", fault))
        return self
