"""One piece of work of a stage."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from egpo.version import __version__


@dataclass(frozen=True)
class Job:
    """`name` is the stage's, or `stage: part` where it has several. `inputs` are digests by what they are of: where
    one has changed, the work is done again. `outputs` are the files that the work leaves, known once it is done.
    `work` does it, and says in a line what came of it. `shared`: nothing in it is this run's own, so that another
    run's outputs of the same inputs will do."""

    name: str
    inputs: Mapping[str, str]
    outputs: Callable[[], list[Path]]
    work: Callable[[], str]
    shared: bool = False

    @property
    def all_inputs(self) -> dict[str, str]:
        """The version of the package is one of them."""
        return {**self.inputs, "version of egpo": __version__}
