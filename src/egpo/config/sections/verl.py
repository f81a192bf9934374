"""The second engine: where verl runs, and what is handed to it as it is."""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from egpo.config.sections.section import Count, PathText, Positive, Section, raised
from egpo.errors import Fault, nearest

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
