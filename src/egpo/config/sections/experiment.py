"""What `egpo run` does around the training: data before it, a probe, evaluations after it. None of it changes how a
run is trained, but for the data.

The second engine: where verl runs, and what is handed to it as it is.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from egpo.config.sections.training import Task
from egpo.errors import Fault, nearest
from egpo.sections import LARGEST_COUNT, Count, PathText, Positive, Section, Seed, raised


class Convert(Section):
    """Conversations are drawn and split as `egpo convert` does."""

    format: Literal["hardgen", "messages", "xlam"]
    """Of the records."""
    max_samples: Count | None = None
    """So many rows before the split; none: all."""
    test_size: Annotated[float, Field(gt=0, lt=1)] = 0.05
    """Share of the rows for testing."""
    shuffle: bool = True
    """Draw `max_samples` from the whole file, not from its head."""


class Prepare(Section):
    """The task's rows as parquet, once for all recipes that ask for the same. A task that names a `source` of its own,
    or is no task of the package, has nothing to prepare."""

    source: PathText | None = None
    """Raw data: a file, a directory with train and test, or owner/name on the hub; none: the task draws problems."""
    train: Count | None = None
    """Rows for training; none: the task's `train`, or its default."""
    test: Count | None = None
    """Rows for testing, likewise."""
    seed: Seed | None = None
    """Of the generator or the split; none: the task's `seed`, or 42 for a split of conversations."""
    convert: Convert | None = None
    """For files of conversations, in place of `train` and `test`."""
    folder: PathText = "data"
    """Where prepared directories lie, each named by the task and a digest of what made it."""

    @model_validator(mode="after")
    def _one_way(self) -> "Prepare":
        if self.convert is not None and (self.train or self.test):
            raise raised(Fault("`convert` splits by `test_size`", "convert", "leave out `train` and `test`"))
        if self.convert is not None and self.source is None:
            raise raised(Fault("`convert` has no file to read", "convert", "set prepare.source"))
        return self


class Probe(Section):
    problems: Count = 64
    """So many of the training split, drawn at random."""
    n: Annotated[int, Field(ge=2, le=LARGEST_COUNT)] = 16
    """Responses to each; the rest is as in `rollout`."""


class Bfcl(Section):
    categories: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = ("multi_turn_base",)
    """Of the Berkeley Function-Calling Leaderboard; `multi_turn`, `single_turn`, `live` and `all` are several."""
    runs: Count = 5
    """Evaluations of each model."""
    threads: Count = 16
    """Questions under way at the server."""
    format: Literal["qwen_fc", "qwen", "llama", "template"] | None = None
    """Who writes the prompt: BFCL's own code for Qwen or Llama, or the model's chat template; none: as in training,
    which is `template` after a training with tools, and BFCL's `qwen_fc` after any other."""
    instruction: str | None = None
    """Stands first in the prompt, under `template`; none: the instruction of the training problems."""
    temperature: Annotated[float, Field(ge=0)] = 0.001
    """Of the sampling; BFCL's own is 0.001."""
    max_tokens: Count | None = None
    """Longest answer; none: BFCL's own, 4,096."""

    @model_validator(mode="after")
    def _instruction_has_a_place(self) -> "Bfcl":
        if self.instruction and self.format not in (None, "template"):
            what = f"BFCL's own format `{self.format}` has no place for an instruction"
            raise raised(Fault(what, "instruction", "leave it out, or set format: template"))
        return self


class Eval(Section):
    models: Annotated[tuple[Literal["base", "trained"], ...], Field(strict=False, min_length=1)] = ("base", "trained")
    """`base`: what the run began with. `trained`: its last checkpoint."""
    problems: Count | None = None
    """The first so many of the test split; none: all."""
    n: Count = 8
    """Responses per problem."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Of the sampling."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample among the likeliest tokens that hold this much probability together."""
    k: Annotated[tuple[Count, ...], Field(strict=False)] = ()
    """For pass@k; none: the powers of two up to n."""
    greedy: bool = True
    """The likeliest response besides."""
    max_tokens: Count | None = None
    """Longest response; none: as in `rollout`."""
    tasks: Annotated[tuple[Task, ...], Field(strict=False)] = ()
    """Other tasks than the one trained on, each with its settings: what was learnt, and what was forgotten?"""
    serve: bool = False
    """Ask the models through a server that is started for it (vLLM where it is installed), not in this process."""
    bfcl: Bfcl | None = None
    """The official evaluator of function calling, besides."""

    @model_validator(mode="after")
    def _k_within_n(self) -> "Eval":
        if too_large := [k for k in self.k if k > self.n]:
            raise raised(Fault(f"pass@{too_large[0]} of {self.n} responses", "k", "raise `n`, or lower `k`"))
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
"""verl's own, which a recipe may set key by key: `verl.trainer.val_before_train=false`."""

Text = Annotated[str, Field(min_length=1)]


class Verl(Section):
    """What stands under one of verl's own sections goes to verl as it is, and wins over what follows from ours."""

    model_config = ConfigDict(extra="allow")

    device: Literal["cuda", "cpu"] = "cuda"
    """`cpu`: all of verl, small and slow, for debugging before GPUs are rented."""
    gpus: Annotated[int, Field(ge=1, le=1024)] = 1
    """Per node; on a CPU, the number of training processes."""
    nodes: Count = 1
    """Of the Ray cluster."""
    tensor_parallel: Count | None = None
    """GPUs that hold one copy of the model for sampling; none: by the model's size, one per 10 billion weights."""
    address: Text | None = None
    """Of a Ray cluster to join, as `host:6379`; none: one is started, and ended with the run."""
    python: PathText | None = None
    """The interpreter that has verl; none: the machine file's, or the one that runs egpo."""
    patience_minutes: Positive | None = None
    """The run is ended when no step is done for so long; none: 120, and 10 on a CPU."""

    @property
    def ranks(self) -> int:
        """Training processes of all nodes."""
        return self.gpus * self.nodes

    @property
    def raw(self) -> dict[str, dict[str, Any]]:
        """verl's own sections, as the recipe sets them."""
        return dict(self.__pydantic_extra__ or {})

    @model_validator(mode="after")
    def _only_sections_of_verl(self) -> "Verl":
        for name, value in self.raw.items():
            if name == "ray_init_kwargs":
                raise raised(Fault(f"unknown key `{name}`", name, "verl would ignore it: write `ray_kwargs.ray_init`"))
            if name not in SECTIONS:
                raise raised(Fault(f"unknown key `{name}`", name, nearest(name, [*type(self).model_fields, *SECTIONS])))
            if not isinstance(value, dict):
                raise raised(Fault(f"`{name}` is {value!r:.40}", name, "it must be a section of keys and values"))
        return self
