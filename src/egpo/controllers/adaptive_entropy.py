"""Adaptive entropy control (Skywork-OR1, He et al. 2025, arXiv:2505.22312)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from egpo.controllers.control import Control, State
from egpo.errors import Fault
from egpo.sections import Positive, Section, raised

ENTROPY, COEFFICIENT = "actor/entropy", "controller/entropy_coefficient"


class AdaptiveEntropySettings(Section):
    """The settings of `adaptive_entropy`."""

    target: Positive = 0.2
    """Target of the entropy (the metric `actor/entropy`), in nats per token. Set it near the value that you observe
    early in training."""
    delta: Positive = 0.005
    """Change of the coefficient in each step."""
    start: Annotated[float, Field(ge=0)] = 0.0
    """Coefficient in the first step."""
    lowest: Annotated[float, Field(ge=0)] = 0.0
    """Lower bound of the coefficient."""
    highest: Positive = 1.0
    """Upper bound of the coefficient."""

    @model_validator(mode="after")
    def _start_within_bounds(self) -> AdaptiveEntropySettings:
        if not self.lowest <= self.start <= self.highest:
            what = f"`start` is {self.start:g}, outside `lowest` {self.lowest:g} and `highest` {self.highest:g}"
            raise raised(Fault(what, "start", "choose it within the bounds"))
        return self


def adaptive_entropy(
    state: State,
    measured: Mapping[str, float],
    *,
    target: float = 0.2,
    delta: float = 0.005,
    start: float = 0.0,
    lowest: float = 0.0,
    highest: float = 1.0,
) -> Control:
    """Set the weight of the entropy term from the entropy e[k] of the policy that sampled in step k:

        weight[k] = c[k]  if e[k] <= target,  else 0
        c[k + 1]  = min(c[k] + delta, highest)  if e[k] <= target,  else max(c[k] - delta, lowest)

    c[0] is `start`. The entropy is measured before the update, so that the weight acts in the step in which it falls to
    the target.
    """
    coefficient = float(state.get("coefficient", start))
    is_low = measured[ENTROPY] <= target
    following = min(coefficient + delta, highest) if is_low else max(coefficient - delta, lowest)
    return Control(
        update={"entropy_weight": coefficient if is_low else 0.0},
        state={"coefficient": following},
        metrics={COEFFICIENT: coefficient},
    )
