"""Finds the models that a command names, and where their evaluations are written.

`find_model`: a MODEL argument (folder, GGUF file, short name, run, checkpoint, name on the hub) -> `ModelPlace`.
`local_targets`, `served_targets`: arguments -> `EvaluationTarget`s, which can be opened and evaluated.
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
from egpo.local.checkpoints.manifest import read_manifest
from egpo.model_sources.conversion import origin_of
from egpo.runs.folder import RunFolder
from egpo.runs.stored import StoredCheckpoint, StoredRun, checkpoint_at


@dataclass(frozen=True)
class ModelPlace:
    """A model that can be loaded: a folder, or a name on the hub; with `run` and `step` if it is a checkpoint."""

    model: str
    label: str
    run: RunFolder | None = None
    step: int | None = None

    @property
    def recipe(self) -> Config | None:
        """The recipe of the run, with its task and sampling; None without a run, or for a run of `egpo sft`."""
        if self.run is None:
            return None
        recipe = load_recipe(self.run.config)
        return recipe if isinstance(recipe, Config) else None


def find_model(word: str, checkpoint: str = "latest") -> ModelPlace:
    """Return the model that a MODEL argument names. `checkpoint` of a run: `latest`, `best`, or a step."""
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
        raise InputError("the run has no checkpoint yet", where=where, fix="let it train, or give a model")
    if wanted not in ("latest", "best", *map(str, steps)):
        known = ", ".join(["latest", "best", *map(str, steps)])
        raise InputError(f"no checkpoint `{wanted}`", where=where, fix=f"there are: {known}")
    step = _best(run) if wanted == "best" else steps[-1] if wanted == "latest" else int(wanted)
    return _place(run.folder, run.checkpoints[step])


def _best(run: StoredRun) -> int:
    """Return the step with the best validation score in its manifest; of equal scores the later."""
    scores = {step: read_manifest(checkpoint.actor).score for step, checkpoint in run.checkpoints.items()}
    scored = [(score, step) for step, score in scores.items() if score is not None]
    if not scored:
        fix = "give --checkpoint latest, or a step"
        raise InputError("no checkpoint of the run has a score", where=str(run.folder.path), fix=fix)
    return max(scored)[1]


def _place(run: RunFolder, checkpoint: StoredCheckpoint) -> ModelPlace:
    assert checkpoint.step is not None
    label = f"{run.path.resolve().name} step {checkpoint.step}"
    return ModelPlace(str(_weights(run, checkpoint, checkpoint.step)), label, run, checkpoint.step)


def _weights(run: RunFolder, checkpoint: StoredCheckpoint, step: int) -> Path:
    """Return the model folder: inside the checkpoint, or the merged one in the run if the checkpoint is in shards."""
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
    """A model to evaluate. `out` is the output folder, if given."""

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
        """The folder to which its evaluation is written."""

    @abstractmethod
    def file_name(self, exam: Exam) -> str:
        """Return the file name of its evaluation, without the suffix."""

    @abstractmethod
    def opened(self) -> AbstractContextManager[Respondent]:
        """Load the model or connect to it, for the duration of a `with` block."""


@dataclass(frozen=True)
class LocalTarget(EvaluationTarget):
    """A model loaded here. `recipe` gives template variables, thinking tags and stops."""

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
        yield LocalModel(self.label, load_policy(model), tags, rollout.stop, rollout.stop_tokens)


@dataclass(frozen=True)
class ServedTarget(EvaluationTarget):
    """A model behind a server, under the name `model`."""

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
        # A local model may have the same name, and its evaluation must not be overwritten.
        return file_name(self.model, "served", _described(exam))

    @contextmanager
    def opened(self) -> Iterator[Respondent]:
        with AnswerCache.open(self.folder / ANSWERS) as cache:
            yield ServedModel(self.server, self.model, cache)


def local_targets(
    models: Sequence[str], checkpoint: str = "latest", out: Path | None = None, device: Device = "auto"
) -> list[LocalTarget]:
    """Return the models that the arguments name.

    All use the template, tags and stops of the first run among them; otherwise their figures could not be compared.
    Models with equal labels are labelled by their arguments.
    """
    places = [find_model(model, checkpoint) for model in models]
    recipe = next((recipe for place in places if (recipe := place.recipe)), None)
    labels = [place.label for place in places]
    named = [
        replace(place, label=model) if labels.count(place.label) > 1 else place
        for model, place in zip(models, places, strict=True)
    ]
    return [LocalTarget(place, out, recipe, device) for place in named]


def served_targets(server: Server, names: Sequence[str], out: Path | None = None) -> list[ServedTarget]:
    """Return the served models of these names; without a name, the one model that the server lists."""
    return [ServedTarget(server, name, out) for name in names or (server.only_model(),)]


def exam_name(exam: Exam) -> str:
    """Return the part of a file name that describes the exam, without model and seed."""
    split = "" if exam.split == "test" else exam.split
    few = f"first{exam.num_problems}" if exam.num_problems else ""  # a short trial must not overwrite the whole
    return file_name(exam.task.rpartition(":")[2], split, few, exam.sampling.described)


def _described(exam: Exam) -> str:
    return file_name(exam_name(exam), f"seed{exam.sampling.seed}" if exam.sampling.seed else "")
