"""What is trained on, and how a response is read.

What is trained.

Sampling.

The optimizer, and the policy update that it makes.

What a run keeps, how it is tried on what it does not train on, and where to look.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from egpo.errors import Fault
from egpo.sections import LARGEST_COUNT, Count, CountOrZero, Every, Fraction, PathText, Positive, Section, Words, raised
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


class Lora(Section):
    rank: Count = 16
    """Of the two matrices beside each adapted layer."""
    alpha: Positive = 32.0
    """Their product is scaled by alpha / rank."""
    layers: Words = ()
    """Names of the layers to adapt (`q_proj`, ...); none: every linear layer but the head."""


class Model(Section):
    path: PathText
    """A folder with a transformers causal language model, its name on the hub, or `egpo-tiny` of the package."""
    init: Literal["pretrained", "random"] = "pretrained"
    """`random`: the folder's config.json and tokenizer, with weights drawn afresh from `seed`."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto`: the GPU where there is one. (The local engine's; verl has its own.)"""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the weights: `auto` is bfloat16 on a GPU, with a float32 copy in the optimizer, and float32 on a CPU."""
    deterministic: bool = False
    """On a GPU: the same seed gives the same bits, by torch's deterministic algorithms, for a little time. A CPU gives
    them anyway. (The local engine's.)"""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    template: dict[str, str | bool | int] = Field({})
    """Variables for the chat template, such as `enable_thinking: false`."""
    lora: Lora | None = None
    """Train adapters in place of the weights (needs peft); merged when a checkpoint is written."""


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


Decay = Annotated[float, Field(ge=0, lt=1)]


class Optimization(Section):
    """AdamW, as every kind of training here uses it."""

    lr: Positive = 1e-6
    """Learning rate, at its highest."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up: `linear` and `cosine` fall to 0 at the last step."""
    warmup_steps: CountOrZero = 0
    """Steps over which the learning rate rises from 0."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled, on matrices only."""
    betas: Annotated[tuple[Decay, Decay], Field(strict=False)] = (0.9, 0.999)
    """Of the two moving averages."""
    max_grad_norm: Positive = 1.0
    """Longer gradients are scaled down to this."""
    micro_tokens: Count | None = None
    """Tokens in one forward and backward pass; none: 2,048 on a CPU, whose cache they fit, and 16,384 on a GPU. Halved
    by itself where memory runs out. It changes the result by rounding alone."""


class Update(Optimization):
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The policy ratio is clipped below at 1 - clip, and above at 1 + clip unless `clip_high` says otherwise."""
    clip_high: Positive | None = None
    """Upper clip, where it differs from the lower."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """Where the advantage is negative the loss is at most this times its size."""
    kl: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL divergence from the starting policy."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """k1 = logp - ref, k2 = (logp - ref)^2 / 2, k3 = exp(ref - logp) - 1 + logp - ref."""
    kl_in: Literal["loss", "reward"] = "loss"
    """`loss`: a term beside the surrogate. `reward`: taken off each response's reward, before the estimator."""
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean"
    """`token_mean`: all tokens alike. `sequence_mean`: all responses alike. `fixed_length`: the sum over tokens,
    divided by rollout.max_response_tokens, so that length neither helps nor hurts."""
    epochs: Count = 1
    """Passes over each batch of rollouts."""
    mini_batch: Count | None = None
    """Problems per optimizer step; none: all of the step's."""


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
