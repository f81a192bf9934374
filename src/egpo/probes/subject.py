"""The subject of a probe: a config, from a recipe or from a model and a task, and the folder for the results."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    """The model to probe, the config that its training would use, and the folder for the results.

    `max_tokens` is None if no recipe limits the response length.
    """

    config: Config
    place: ModelPlace
    folder: Path
    max_tokens: int | None

    @property
    def origin(self) -> Origin:
        return Origin(self.place.model, self.place.step)

    def sampling(
        self, n: int, *, temperature: float | None = None, max_tokens: int | None = None, seed: int | None = None
    ) -> Sampling:
        """Return the training's sampling settings with `n` responses per problem and the options that are not None."""
        usual = training_sampling(self.config, n)
        return replace(
            usual,
            temperature=usual.temperature if temperature is None else temperature,
            max_tokens=max_tokens or self.max_tokens,
            seed=usual.seed if seed is None else seed,
        )

    def load(self) -> LocalModel:
        """Load the model in the state in which training would start, without LoRA: new adapters change no output."""
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
            episodes=rollout.episodes,
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
    """Return the subject of a probe from a recipe and options.

    `model` is a folder, a run (whose own recipe is then used), or a name on the hub. `task` and `settings` override
    those of the recipe. The folder for the results is `out`, else `evals` of the run, else `evals` in the working
    directory.
    """
    word = model or (recipe.model.path if recipe else None)
    if word is None:
        fix = "give a recipe, or --model and --task"
        raise InputError("there is no model to probe", where="egpo probe", fix=fix)
    place = find_model(word)
    known = recipe or place.recipe
    config = _config(known, _task(known, task, settings or {}), place.model, device)
    return Subject(config, place, out or _folder(recipe, place), known.rollout.max_response_tokens if known else None)


def training_sampling(config: Config, n: int) -> Sampling:
    """Return the sampling settings of the training, with `n` responses per problem."""
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
    """Return the task to probe. If it is the task of the recipe, `settings` are added to the recipe's settings."""
    if known is not None and name in (None, known.task.name):
        return Task(name=known.task.name, settings={**known.task.settings, **settings})
    if name is None:
        raise InputError("there is no task to probe on", where="egpo probe", fix="give one, as in --task countdown")
    return Task(name=name, settings=dict(settings))


def _config(known: Config | None, task: Task, model: str, device: Device | None) -> Config:
    config = known or Config(model=Model(path=model), task=task)
    changes = {"path": model} | ({"device": device} if device else {})
    return config.model_copy(update={"task": task, "model": config.model.model_copy(update=changes)})


def _folder(recipe: Config | None, place: ModelPlace) -> Path:
    if recipe is not None:
        return RunFolder(Path(recipe.runs) / recipe.name).evals
    return place.run.evals if place.run else HERE
