"""What is probed: the config of a recipe, or one made of a model and a task; and the folder for the outcome."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.config import Config
from egpo.config.schema import Model, Task
from egpo.errors import InputError
from egpo.evals.evaluate import Origin
from egpo.evals.local_model import ROWS_AT_ONCE, LocalModel
from egpo.evals.responses import Sampling
from egpo.evals.targets import HERE, Device, ModelPlace, find_model
from egpo.local.models.loading import load_policy
from egpo.runs import RunFolder


@dataclass(frozen=True)
class Subject:
    """A model and the config that training would use. `max_tokens` is None if no recipe limits the response length."""

    config: Config
    place: ModelPlace
    folder: Path
    max_tokens: int | None

    @property
    def origin(self) -> Origin:
        return Origin(self.place.model, self.place.step)

    def load(self) -> LocalModel:
        """Load the model as training would start with it, without LoRA: new adapters change nothing."""
        rollout = self.config.rollout
        policy = load_policy(self.config.model.model_copy(update={"lora": None}), self.config.seed)
        return LocalModel(
            self.place.label,
            policy,
            tags=self.config.segments.tags,
            stop=rollout.stop,
            stop_tokens=rollout.stop_tokens,
            rows_at_once=rollout.rows_at_once or ROWS_AT_ONCE,
            max_prompt_tokens=rollout.max_prompt_tokens,
        )


def find_subject(
    recipe: Config | None = None,
    *,
    model: str | None = None,
    task: str | None = None,
    settings: Mapping[str, Any] | None = None,
    device: Device | None = None,
    out: Path | None = None,
) -> Subject:
    """Combine a recipe and options. `model` is a folder, a run, or a name on the hub; a run has its own recipe.

    `task` and `settings` override the recipe's. The outcome goes to `out`, else to the run's `evals`, else to `evals`
    in the working directory.
    """
    word = model or (recipe.model.path if recipe else None)
    if word is None:
        fix = "give a recipe, or --model and --task"
        raise InputError("nothing to probe", where="egpo probe", fix=fix)
    place = find_model(word)
    known = recipe or place.recipe
    config = _config(known, _task(known, task, settings or {}), place.model, device)
    return Subject(config, place, out or _folder(recipe, place), known.rollout.max_response_tokens if known else None)


def training_sampling(config: Config, n: int) -> Sampling:
    """Return how the training samples, with `n` responses per problem."""
    rollout = config.rollout
    return Sampling(
        n=n,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_p=rollout.min_p,
        max_tokens=rollout.max_response_tokens,
        seed=config.seed,
    )


def _task(known: Config | None, name: str | None, settings: Mapping[str, Any]) -> Task:
    """Return the task to probe. If it is the recipe's own, its settings are kept and `settings` added."""
    if known is not None and name in (None, known.task.name):
        return Task(name=known.task.name, settings={**known.task.settings, **settings})
    if name is None:
        raise InputError("no task", where="egpo probe", fix="give one, as in --task countdown")
    return Task(name=name, settings=dict(settings))


def _config(known: Config | None, task: Task, model: str, device: Device | None) -> Config:
    config = known or Config(model=Model(path=model), task=task)
    changes = {"path": model} | ({"device": device} if device else {})
    return config.model_copy(update={"task": task, "model": config.model.model_copy(update=changes)})


def _folder(recipe: Config | None, place: ModelPlace) -> Path:
    if recipe is not None:
        return RunFolder(Path(recipe.runs) / recipe.name).evals
    return place.run.evals if place.run else HERE
