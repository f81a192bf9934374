"""Sampling."""

from typing import Annotated

from pydantic import Field, model_validator

from egpo.config.sections.section import (
    LARGEST_COUNT,
    Count,
    CountOrZero,
    Fraction,
    Positive,
    Section,
    Words,
    raised,
)
from egpo.errors import Fault


class Rollout(Section):
    prompts: Count = 16
    """Problems per step (P)."""
    n: Count = 8
    """Responses per problem (G): a group. Two at least for a comparison."""
    temperature: Positive = 1.0
    """Of the sampling distribution; log-probabilities and entropies are those of the tempered distribution."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample among the likeliest tokens that hold this much probability together."""
    top_k: CountOrZero = 0
    """Sample among this many likeliest tokens; 0 for all."""
    min_p: Fraction = 0.0
    """Leave out tokens less likely than this share of the likeliest one's probability."""
    max_response_tokens: Count = 1024
    """Longest response; what is cut off counts as truncated."""
    max_prompt_tokens: Count | None = None
    """Problems with longer prompts are left out, and counted."""
    stop: Words = ()
    """Strings that end a response; it keeps them."""
    stop_tokens: Annotated[tuple[CountOrZero, ...], Field(strict=False)] = ()
    """Token ids that end a response, besides the model's own."""
    rows_at_once: Count | None = None
    """Responses sampled together; none: all of a step. Halved by itself where memory runs out."""

    @model_validator(mode="after")
    def _countable_batch(self) -> "Rollout":
        if self.batch > LARGEST_COUNT:
            what = f"`prompts` times `n` is {self.batch:,} responses per step"
            raise raised(Fault(what, "n", f"it must be {LARGEST_COUNT:,} at most"))
        return self

    @property
    def batch(self) -> int:
        """Responses per step (B = P * G)."""
        return self.prompts * self.n
