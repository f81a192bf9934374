"""One recipe with everything that follows from it: its data, its run folder, its models."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from egpo.cold_starts import ColdStartPlan, cold_start_plan, with_cold_start
from egpo.config import Config
from egpo.config.machine import model_identity
from egpo.data.manifest import MANIFEST
from egpo.errors import InputError
from egpo.prepared_data import DataPlan, data_plan, require_source, with_prepared_data
from egpo.runs.folder import RunFolder
from egpo.runs.removed import Removed, read_removed

Which = Literal["base", "cold_start", "trained"]


@dataclass(frozen=True)
class Experiment:
    """One recipe. `recipe` is its name or file as the user gave it, `config` its content with `overrides` applied."""

    recipe: str
    config: Config
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def run(self) -> RunFolder:
        return RunFolder(Path(self.config.runs) / self.config.name)

    @cached_property
    def data(self) -> DataPlan | None:
        return data_plan(self.config)

    @cached_property
    def training(self) -> Config:
        """The config used for training: its task reads the prepared data, its model is that of the cold start."""
        return with_prepared_data(with_cold_start(self.config))

    @cached_property
    def cold_start(self) -> ColdStartPlan | None:
        """The plan of the supervised training before RL; None if the recipe has none."""
        return cold_start_plan(self.config)

    @property
    def evaluated(self) -> tuple[Which, ...]:
        """The models to evaluate, each once."""
        chosen = dict.fromkeys(self.config.eval.models)
        return tuple(which for which in chosen if which != "cold_start" or self.cold_start is not None)

    def require_data(self) -> None:
        """Raise InputError if the data is not prepared yet."""
        if self.data is not None and not (self.data.folder / MANIFEST).is_file():
            require_source(self.config)
            fix = "run the stage `prepare` first: leave out --only and --from"
            raise InputError("the data is not prepared", where=str(self.data.folder), fix=fix)

    @property
    def removed(self) -> Removed | None:
        """What was removed of the run's checkpoints after the evaluation; None if nothing was."""
        return read_removed(self.run.removed)

    @property
    def has_trained_model(self) -> bool:
        """Whether the trained model is there, or was there before it was removed on purpose."""
        return (self.trained_model / "config.json").is_file() or self._model_is_removed

    @property
    def _model_is_removed(self) -> bool:
        removed = self.removed
        return removed is not None and not removed.has_model

    def identity_of(self, which: Which, model: str) -> str:
        """Return the digest of a model of the experiment; of a trained one that is removed, its recorded digest."""
        removed = self.removed if which == "trained" else None
        return model_identity(model) if removed is None or removed.has_model else removed.model

    def require_trained_model(self) -> None:
        """Raise InputError if the trained model was removed on purpose."""
        if self._model_is_removed:
            fix = "its evaluations stay valid as they are; for others, train again under another name=..."
            raise InputError(
                f"the trained model is not there: removed {self.removed}", where=str(self.run.path), fix=fix
            )

    @property
    def merged(self) -> Path:
        """The folder of the model that is merged from verl's shards of the last step."""
        return self.run.path / "merged" / f"step_{self.config.steps}"

    @property
    def trained_model(self) -> Path:
        """The folder of the trained model: the merged one under verl, otherwise the one in the last checkpoint."""
        if self.config.engine == "verl":
            return self.merged
        return self.run.checkpoint_of(self.config.steps) / "actor" / "huggingface"
