"""The sections of a recipe for the stages around the training (data, probe, evaluations) and for the verl engine.

`prepare`, `probe` and `eval` are stages of `egpo run`; `egpo train` ignores the last two. The text under a field is its
help in `egpo config schema` and in the docs.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from egpo.config.sections.training import Task
from egpo.errors import Fault, nearest
from egpo.sections import LARGEST_COUNT, Count, PathText, Positive, Section, Seed, raised


class Convert(Section):
    """How a file of conversations is converted and split: the options of `egpo convert`."""

    format: Literal["hardgen", "messages", "xlam"]
    """Format of the records. docs/data.md describes the three formats."""
    max_samples: Count | None = None
    """Use at most this many rows, chosen before the split. Default: all rows."""
    test_size: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Fraction of the rows that becomes the test split."""
    shuffle: bool = True
    """Choose the `max_samples` rows at random from the whole file. false: take the first ones."""


class Prepare(Section):
    """How the task's rows are written as parquet before training. Recipes with the same settings share one directory.
    Nothing is prepared for a task that names its own `source`, or for a task from outside the package."""

    source: PathText | None = None
    """Raw data: a file, a directory with a train and a test file, or `owner/name` on the hub. Default: the task
    generates its problems."""
    train: Count | None = None
    """Number of training rows. Default: the task's setting `train`, else the task's default."""
    test: Count | None = None
    """Number of test rows. Default: the task's setting `test`, else the task's default."""
    seed: Seed | None = None
    """Seed of the generator or of the split. Default: the task's setting `seed`; 42 with `convert`."""
    convert: Convert | None = None
    """Conversion of a file of conversations. It cannot be combined with `train` and `test`. Default: no conversion."""
    folder: PathText = "data"
    """Folder for all prepared data. Each prepared directory in it is named after the task and a digest of its settings
    and source."""

    @model_validator(mode="after")
    def _one_way(self) -> "Prepare":
        if self.convert is not None and (self.train or self.test):
            what = "`convert` cannot be combined with `train` or `test`"
            raise raised(Fault(what, "convert", "leave out `train` and `test`: convert.test_size sets the split"))
        if self.convert is not None and self.source is None:
            raise raised(Fault("`convert` is set without a source file", "convert", "set prepare.source"))
        return self


class ColdStart(Section):
    """Supervised fine-tuning on the gold answers of the training problems, before reinforcement learning. Recipes with
    the same settings, model and data share one cold start."""

    problems: Count | None = None
    """Learn only from the first N training problems. Default: all of them."""
    epochs: Count = 1
    """Passes over the gold answers."""
    lr: Positive = 1e-5
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate after the warm-up. `linear` and `cosine` fall to 0 at the last step."""
    warmup_steps: Annotated[int, Field(ge=0, le=LARGEST_COUNT)] = 0
    """Number of steps over which the learning rate rises from 0 to `lr`."""
    batch_tokens: Count = 16384
    """Tokens per optimizer step, including prompts."""
    max_tokens: Count | None = None
    """Maximum length of an example, in tokens. Longer ones are skipped and counted. Default: the model's context."""
    thinking: bool | None = None
    """Put the reasoning of a gold answer, which is all but its last line, between the thinking tags. Default: true if
    the estimator measures the entropy of the thinking. Set it in recipes that are compared with each other, so that
    they share one cold start."""
    save_every: Count = 100
    """Steps between checkpoints, from which an interrupted cold start is resumed."""
    seed: Seed = 0
    """Seed of the data order. It is not the recipe's `seed`, so that runs with different seeds share one cold start."""


class ProbeStage(Section):
    problems: Count = 64
    """Number of problems, drawn at random from the training split."""
    n: Annotated[int, Field(ge=2, le=LARGEST_COUNT)] = 16
    """Responses per problem. All other sampling settings are those of `rollout`."""


class Bfcl(Section):
    categories: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = ("multi_turn_base",)
    """Test categories of the Berkeley Function-Calling Leaderboard. `multi_turn`, `single_turn`, `live` and `all` are
    groups of categories."""
    runs: Count = 5
    """Number of evaluations of each model."""
    threads: Count = 16
    """Number of requests that are sent to the server at the same time."""
    format: Literal["qwen_fc", "qwen", "llama", "template"] | None = None
    """How the prompt is written: by BFCL's own code for Qwen (`qwen_fc`, `qwen`) or Llama, or by the model's chat
    template (`template`). Default: `template` after training with tools, else `qwen_fc`."""
    instruction: str | None = None
    """System instruction at the start of the prompt, with format `template` only. Default: the instruction of the
    training problems."""
    temperature: Annotated[float, Field(ge=0)] = 0.001
    """Sampling temperature. The default is BFCL's own."""
    max_tokens: Count | None = None
    """Maximum answer length, in tokens. Default: 4,096, which is BFCL's own."""

    @model_validator(mode="after")
    def _instruction_has_a_place(self) -> "Bfcl":
        if self.instruction and self.format not in (None, "template"):
            what = f"BFCL's own format `{self.format}` has no place for an instruction"
            raise raised(Fault(what, "instruction", "leave it out, or set format: template"))
        return self


class Eval(Section):
    models: Annotated[tuple[Literal["base", "cold_start", "trained"], ...], Field(strict=False, min_length=1)] = (
        *("base", "cold_start", "trained"),
    )
    """Models to evaluate. `base`: the model before any training. `cold_start`: the model after the cold start, if the
    recipe has one. `trained`: the last checkpoint of the run."""
    problems: Count | None = None
    """Evaluate only the first N problems of the test split. Default: all of them."""
    n: Count = 8
    """Sampled responses per problem."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the smallest set of most likely tokens whose probabilities sum to at least this. 1: from all
    tokens."""
    k: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    """Values of k for pass@k. Default: the powers of two up to n."""
    greedy: bool = True
    """Also evaluate greedy decoding, with one response per problem."""
    max_tokens: Count | None = None
    """Maximum response length, in tokens. Default: rollout.max_response_tokens."""
    tasks: Annotated[tuple[Task, ...], Field(strict=False)] = ()
    """Further tasks to evaluate on, each with its settings, to measure transfer and forgetting. Default: none."""
    serve: bool = False
    """Start a model server (vLLM if it is installed) and evaluate through it. false: sample in this process."""
    engine_options: dict[str, Any] = Field(default_factory=dict)
    """Options of vLLM for the servers that `serve` and `bfcl` start, by vLLM's own names, such as
    `tensor_parallel_size`, `data_parallel_size`, `gpu_memory_utilization` and `max_num_seqs`. Default: none."""
    bfcl: Bfcl | None = None
    """Also run the official evaluator of the Berkeley Function-Calling Leaderboard, with these settings. Default: do
    not run it."""

    @model_validator(mode="after")
    def _k_within_n(self) -> "Eval":
        if too_large := [k for k in self.k if k > self.n]:
            what = f"pass@{too_large[0]} needs more than {self.n} responses per problem"
            raise raised(Fault(what, "k", "raise `n`, or lower `k`"))
        return self


SECTIONS = (
    "actor_rollout_ref",
    "algorithm",
    "critic",
    "data",
    "distillation",
    "global_profiler",
    "ray_kwargs",
    "reward",
    "skip",
    "trainer",
    "transfer_queue",
)
"""Top-level sections of verl's own configuration. A recipe may set their keys, as in
`verl.trainer.val_before_train=false`."""

Text = Annotated[str, Field(min_length=1)]


class Verl(Section):
    """The settings of the verl engine. Keys under one of verl's own sections are passed to verl unchanged, and take
    precedence over the values that egpo derives from the rest of the recipe."""

    model_config = ConfigDict(extra="allow")

    device: Literal["cuda", "cpu"] = "cuda"
    """Device of the verl engine. `cpu` runs all of verl with small models, slowly: for debugging without GPUs."""
    gpus: Annotated[int, Field(ge=1, le=1024)] = 1
    """GPUs per node. With device `cpu`: the number of training processes."""
    nodes: Count = 1
    """Number of nodes of the Ray cluster."""
    tensor_parallel: Count | None = None
    """Number of GPUs that share one copy of the model for sampling. Default: one per 10 billion weights."""
    address: Text | None = None
    """Address of a Ray cluster to join, as `host:6379`. Default: a local cluster is started, and stopped after the
    run."""
    python: PathText | None = None
    """Path of the Python interpreter that has verl installed. Default: that of the machine file, else the one that runs
    egpo."""
    patience_minutes: Positive | None = None
    """Stop the run if no step finishes within this many minutes. Default: 120, and 10 on a CPU."""

    @property
    def ranks(self) -> int:
        """Number of training processes on all nodes."""
        return self.gpus * self.nodes

    @property
    def raw(self) -> dict[str, dict[str, Any]]:
        """The settings under verl's own sections, as the recipe gives them."""
        return dict(self.__pydantic_extra__ or {})

    @model_validator(mode="after")
    def _only_sections_of_verl(self) -> "Verl":
        for name, value in self.raw.items():
            if name == "ray_init_kwargs":
                raise raised(Fault(f"unknown key `{name}`", name, "verl would ignore it: write `ray_kwargs.ray_init`"))
            if name not in SECTIONS:
                raise raised(Fault(f"unknown key `{name}`", name, nearest(name, [*type(self).model_fields, *SECTIONS])))
            if not isinstance(value, dict):
                raise raised(
                    Fault(
                        f"`{name}` is the value {value!r:.40}, not a section",
                        name,
                        "write its keys and values below it",
                    )
                )
        return self
