"""Every knob, with its meaning under it. No torch here: `egpo config` and the editors' schema answer at once."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from egpo.errors import Fault
from egpo.tags import THINK_TAGS, tags_fault

Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Segment = Literal["thinking", "answer", "response"]


class Section(BaseModel):
    """Unknown keys are faults, values keep their types, and nothing changes after loading."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


class Model(Section):
    path: str = Field(min_length=1)
    """A folder with a transformers causal language model, or its name on the hub."""


class Task(Section):
    name: str = Field(min_length=1)
    """A task of the package (`countdown`, `gsm8k`, ...), or one of yours as `module:Class`."""


class Segments(Section):
    tags: tuple[str, str] = Field(THINK_TAGS, strict=False)
    """The pair that opens and closes the thinking, as in the model's chat template."""

    @model_validator(mode="after")
    def _tags_differ(self) -> "Segments":
        if fault := tags_fault(self.tags):
            raise _raised(Fault("`tags` are `{}` and `{}`".format(*self.tags), "tags", fault))
        return self


class Rollout(Section):
    prompts: Count = 16
    """Problems per step (P)."""
    n: Count = 8
    """Responses per problem (G): a group. Two at least for a comparison."""
    temperature: Positive = 1.0
    """Of the sampling distribution; log-probabilities and entropies are those of the tempered distribution."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample among the likeliest tokens that hold this much probability together."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Sample among this many likeliest tokens; 0 for all."""
    min_p: Fraction = 0.0
    """Leave out tokens less likely than this share of the likeliest one's probability."""
    max_response_tokens: Count = 1024
    """Longest response; what is cut off counts as truncated."""

    @property
    def batch(self) -> int:
        """Responses per step (B = P * G)."""
        return self.prompts * self.n


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
            raise _raised(Fault(what, "lam", "a bonus of that size turns signs"))
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


class Update(Section):
    lr: Positive = 1e-6
    """Learning rate."""
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The policy ratio is clipped below at 1 - clip, and above at 1 + clip unless `clip_high` says otherwise."""
    clip_high: Positive | None = None
    """Upper clip, where it differs from the lower."""
    kl: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL divergence from the starting policy."""
    epochs: Count = 1
    """Passes over each batch of rollouts."""


class Config(Section):
    """One experiment."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """Name of the run, and of its folder."""
    engine: Literal["local", "verl"] = "local"
    """`local`: this process. `verl`: Ray, FSDP and vLLM."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Decides sampling and data order."""
    steps: Count = 100
    """Optimizer steps."""
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


def _raised(fault: Fault) -> PydanticCustomError:
    """A fault between fields, in the form that pydantic collects; `where` is the field to blame."""
    return PydanticCustomError("between_fields", "{text}", {"fault": fault, "text": str(fault)})
