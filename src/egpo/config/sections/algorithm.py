"""How rewards become advantages."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from egpo.errors import Fault
from egpo.sections import Count, Fraction, Positive, Section, raised

Segment = Literal["thinking", "answer", "response"]


class Egpo(Section):
    lam: Positive = 0.4
    """Strength of the bonus, less than alpha. (At 0 it is grpo: then say so.)"""
    alpha: Annotated[float, Field(gt=1)] = 2.0
    """The cap is |A| / alpha."""
    form: Literal["clip_entropy", "clip_bonus"] = "clip_entropy"
    """`clip_entropy`: lam * clip(H, cap). `clip_bonus`, the paper's equation: min(lam * H, cap)."""
    entropy_mode: Segment = "thinking"
    """The segment whose entropy counts."""

    @model_validator(mode="after")
    def _no_sign_turns(self) -> "Egpo":
        if not self.lam < self.alpha:
            what = f"`lam` {self.lam:g} is not less than `alpha` {self.alpha:g}"
            raise raised(Fault(what, "lam", "a bonus of that size turns signs"))
        return self


class EgpoCalibrated(Section):
    lambda_min: Fraction = 0.5
    """Lowest weight."""
    lambda_max: Annotated[float, Field(ge=1)] = 2.0
    """Highest weight."""
    eps: Positive = 1e-6
    """Keeps the ratio finite where the entropy is 0."""
    sides: Literal["both", "asymmetric", "positive_only"] = "both"
    """`both`; `asymmetric`: right rows in [1, lambda_max], wrong in [lambda_min, 1]; `positive_only`: wrong rows 1."""
    measure: Literal["entropy", "nll"] = "entropy"
    """`entropy`, exact; `nll`, the mean of -log p of the sampled tokens."""
    entropy_mode: Segment = "answer"
    """The segment that is measured."""


class Algorithm(Section):
    estimator: Literal["grpo", "egpo", "egpo_calibrated"] = "grpo"
    """How rewards become advantages."""
    normalize: bool = True
    """Divide by the group's standard deviation."""
    constant_groups: Literal["keep", "drop", "replace"] = "keep"
    """Groups whose rewards agree teach nothing. `keep`: they count in the mean of the loss. `drop`: they do not.
    `replace`: further problems are sampled in their place (dynamic sampling)."""
    max_refills: Count = 3
    """Under `replace`: so many further rounds of sampling at most; then the step goes on with what there is."""
    egpo: Egpo = Egpo()
    """Settings of the estimator `egpo`."""
    egpo_calibrated: EgpoCalibrated = EgpoCalibrated()
    """Settings of the estimator `egpo_calibrated`."""

    @property
    def settings(self) -> dict[str, Any]:
        """The keyword arguments of the chosen estimator."""
        if self.estimator == "grpo":
            return {"normalize": self.normalize}
        chosen: Section = self.egpo if self.estimator == "egpo" else self.egpo_calibrated
        return {"normalize": self.normalize} | chosen.model_dump(exclude={"entropy_mode"})

    @property
    def segment(self) -> Segment | None:
        """The segment that the chosen estimator measures; none under grpo."""
        modes: dict[str, Segment] = {
            "egpo": self.egpo.entropy_mode,
            "egpo_calibrated": self.egpo_calibrated.entropy_mode,
        }
        return modes.get(self.estimator)
