"""Finds the models that a command names, and where their evaluations are written.

`find_model` turns a MODEL argument (folder, GGUF file, short name, run, checkpoint, hub name) into a `ModelPlace`.
`local_targets` and `served_targets` turn arguments into `EvaluationTarget`s, which can be opened and evaluated.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from egpo.config import Config, load_recipe
from egpo.config.machine import require_model_place
from egpo.errors import InputError
from egpo.evals.evaluate import Exam, Origin, file_name
from egpo.evals.responses import Respondent
from egpo.evals.server import ServedModel, Server
from egpo.evals.server_requests import AnswerCache
from egpo.model_sources.conversion import origin_of
from egpo.runs.checkpoint_manifest import read_manifest
from egpo.runs.folder import RunFolder
from egpo.runs.stored import StoredCheckpoint, StoredRun, checkpoint_at


@dataclass(frozen=True)
class ModelPlace:
    """A model that can be loaded: a folder or a name on the hub (`model`).

    `label` is its name in tables. `run` and `step` are set if it is a checkpoint of a run.
    """

    model: str
    label: str
    run: RunFolder | None = None
    step: int | None = None

    @property
    def recipe(self) -> Config | None:
        """The recipe of the RL run that trained the model; None if no run did, or one of `egpo sft`."""
        if self.run is None:
            return None
        recipe = load_recipe(self.run.config)
        return recipe if isinstance(recipe, Config) else None


def find_model(word: str, checkpoint: str = "latest") -> ModelPlace:
    """Return the model that a MODEL argument names.

    If this is a run, `checkpoint` says which of its checkpoints: `latest`, `best`, or a step number.
    """
    path = Path(word).expanduser()
    if path.is_dir():
        if RunFolder(path).config.is_file() and not (path / "config.json").is_file():
            return _checkpoint_of(StoredRun.at(path), checkpoint)
        found = checkpoint_at(path)
        if found is not None and found.run is not None:
            return _place(found.run, found)
    folder = require_model_place(word, f"model {word}")
    origin = origin_of(Path(folder).expanduser())
    return ModelPlace(word, origin.name if origin else path.resolve().name if path.is_dir() else word)


def _checkpoint_of(run: StoredRun, wanted: str) -> ModelPlace:
    steps, where = list(run.checkpoints), str(run.folder.path)
    if not steps:
        fix = "wait until training has written a checkpoint, or give a model folder"
        raise InputError("the run has no checkpoint yet", where=where, fix=fix)
    if wanted not in ("latest", "best", *map(str, steps)):
        known = ", ".join(["latest", "best", *map(str, steps)])
        raise InputError(f"the run has no checkpoint `{wanted}`", where=where, fix=f"choose one of: {known}")
    step = _best(run) if wanted == "best" else steps[-1] if wanted == "latest" else int(wanted)
    return _place(run.folder, run.checkpoints[step])


def _best(run: StoredRun) -> int:
    """Return the step of the checkpoint with the highest validation score; the later one if scores are equal."""
    scores = {step: read_manifest(checkpoint.actor).score for step, checkpoint in run.checkpoints.items()}
    scored = [(score, step) for step, score in scores.items() if score is not None]
    if not scored:
        fix = "use --checkpoint latest, or --checkpoint with a step number"
        raise InputError("no checkpoint of the run has a validation score", where=str(run.folder.path), fix=fix)
    return max(scored)[1]


def _place(run: RunFolder, checkpoint: StoredCheckpoint) -> ModelPlace:
    assert checkpoint.step is not None
    label = f"{run.path.resolve().name} step {checkpoint.step}"
    return ModelPlace(str(_weights(run, checkpoint, checkpoint.step)), label, run, checkpoint.step)


def _weights(run: RunFolder, checkpoint: StoredCheckpoint, step: int) -> Path:
    """Return the folder with the whole model: in the checkpoint, or, if it is sharded, the merged one in the run.

    Raise InputError if the checkpoint is sharded and has not been merged.
    """
    if not checkpoint.is_sharded:
        return checkpoint.model
    merged = run.merged_of(step)
    if not (merged / "config.json").is_file():
        fix = f"merge it into a model first: egpo merge {run.path} --step {step} --out {merged}"
        raise InputError(f"the checkpoint of step {step} is in shards", where=str(run.path), fix=fix)
    return merged


Device = Literal["auto", "cpu", "cuda"]
ANSWERS = "server_answers.jsonl"
HERE = Path("evals")


class EvaluationTarget(ABC):
    """A model to evaluate, and where its evaluation is written. `out` is the output folder if the user chose one."""

    out: Path | None

    @property
    @abstractmethod
    def label(self) -> str:
        """The model's name in tables."""

    @property
    @abstractmethod
    def origin(self) -> Origin: ...

    @property
    @abstractmethod
    def folder(self) -> Path:
        """The folder to which the model's evaluation is written."""

    @abstractmethod
    def file_name(self, exam: Exam) -> str:
        """Return the file name of the model's evaluation, without the suffix."""

    @abstractmethod
    def opened(self) -> AbstractContextManager[Respondent]:
        """Load the model, or connect to its server, for the duration of a `with` block."""


@dataclass(frozen=True)
class LocalTarget(EvaluationTarget):
    """A model to evaluate in this process.

    `recipe` sets the variables of the chat template, the thinking tags and the stop strings; None: the defaults.
    """

    place: ModelPlace
    out: Path | None
    recipe: Config | None
    device: Device

    @property
    def label(self) -> str:
        return self.place.label

    @property
    def origin(self) -> Origin:
        return Origin(self.place.model, self.place.step)

    @property
    def folder(self) -> Path:
        return self.out or (self.place.run.evals if self.place.run else HERE)

    def file_name(self, exam: Exam) -> str:
        of_run = self.out is None and self.place.run is not None
        return file_name("" if of_run else self.label, _described(exam), f"step{self.place.step}" * of_run)

    @contextmanager
    def opened(self) -> Iterator[Respondent]:
        from egpo.config.schema import Model
        from egpo.evals.local_model import LocalModel
        from egpo.local.models.loading import load_policy

        if self.recipe is None:
            yield LocalModel(self.label, load_policy(Model(path=self.place.model, device=self.device)))
            return
        model = Model(path=self.place.model, device=self.device, template=self.recipe.model.template)
        rollout, tags = self.recipe.rollout, self.recipe.segments.tags
        loaded = load_policy(model)
        yield LocalModel(self.label, loaded, tags, rollout.stop, rollout.stop_tokens, episodes=rollout.episodes)


@dataclass(frozen=True)
class ServedTarget(EvaluationTarget):
    """A model to evaluate that a server serves under the name `model`."""

    server: Server
    model: str
    out: Path | None

    @property
    def label(self) -> str:
        return self.model

    @property
    def origin(self) -> Origin:
        return Origin(f"{self.server.url} {self.model}")

    @property
    def folder(self) -> Path:
        return self.out or HERE

    def file_name(self, exam: Exam) -> str:
        # "served": the evaluation of a local model with the same name must not be overwritten.
        return file_name(self.model, "served", _described(exam))

    @contextmanager
    def opened(self) -> Iterator[Respondent]:
        with AnswerCache.open(self.folder / ANSWERS) as cache:
            yield ServedModel(self.server, self.model, cache)


def local_targets(
    models: Sequence[str], checkpoint: str = "latest", out: Path | None = None, device: Device = "auto"
) -> list[LocalTarget]:
    """Return the models that the command's arguments name.

    If some are runs, all models use the template variables, thinking tags and stop strings of the first run, so that
    their figures can be compared. Models with equal labels are labelled by their arguments.
    """
    places = [find_model(model, checkpoint) for model in models]
    recipe = next((recipe for place in places if (recipe := place.recipe)), None)
    labels = [place.label for place in places]
    named = [
        replace(place, label=model) if labels.count(place.label) > 1 else place
        for model, place in zip(models, places, strict=True)
    ]
    run = next((place.run for place in named if place.run), None)
    beside = out or (run.evals if run else None)  # a base model's evaluation is read with those of the run
    return [LocalTarget(place, out if place.run else beside, recipe, device) for place in named]


def served_targets(server: Server, names: Sequence[str], out: Path | None = None) -> list[ServedTarget]:
    """Return the served models with these names; if no name is given, the only model that the server lists."""
    return [ServedTarget(server, name, out) for name in names or (server.only_model(),)]


def exam_name(exam: Exam) -> str:
    """Return the part of a file name that describes the exam, without model and seed."""
    split = "" if exam.split == "test" else exam.split
    few = f"first{exam.num_problems}" if exam.num_problems else ""  # must not overwrite a full evaluation
    return file_name(exam.task.rpartition(":")[2], split, few, exam.sampling.described)


def _described(exam: Exam) -> str:
    return file_name(exam_name(exam), f"seed{exam.sampling.seed}" if exam.sampling.seed else "")
