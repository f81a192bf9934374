"""Where a recipe's data lies once it is prepared: the same data, the same folder, whichever recipe asks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.config import Config
from egpo.config.machine import NAME, data_place, machine_file
from egpo.data.conversion import CONVERSION_VERSION
from egpo.data.manifest import MANIFEST
from egpo.data.manifest import data_digest as file_data_digest
from egpo.data.readers import SUFFIXES
from egpo.data.sources import is_hub_name
from egpo.errors import InputError
from egpo.experiments.prints import digest_of, files_in, folder_digest, print_of
from egpo.tasks.loading import TASKS
from egpo.tasks.sourced import SourcedTask

_OF_THE_REWARD = ("mode", "sandbox")
"""Settings of a task that change how responses are judged, and no row."""


@dataclass(frozen=True)
class DataPlan:
    """What makes the data of a recipe. `inputs` are digests of all that decides its bytes."""

    config: Config
    task: type[SourcedTask]

    @property
    def inputs(self) -> dict[str, str]:
        chosen = self.config.prepare.model_dump(mode="json", exclude={"folder", "source"})
        version = CONVERSION_VERSION if self.config.prepare.convert else self.task.version
        return {
            "task": digest_of([self.task.__name__, version, self.row_settings]),
            "prepare": digest_of(chosen),
            "source": _source_identity(self.source),
        }

    @property
    def row_settings(self) -> dict[str, Any]:
        """The settings that decide rows."""
        return {key: value for key, value in self.config.task.settings.items() if key not in _OF_THE_REWARD}

    @property
    def source(self) -> str | None:
        source = self.config.prepare.source
        return None if source is None else data_place(source)

    @property
    def folder(self) -> Path:
        name = f"{self.config.task.name.replace('_', '-')}-{digest_of(self.inputs)[:12]}"
        return Path(self.config.prepare.folder) / name


def data_plan(config: Config) -> DataPlan | None:
    """None where there is nothing to prepare: the recipe names prepared data, or the task is from outside."""
    task = TASKS.get(config.task.name.replace("-", "_"))
    if task is None or "source" in config.task.settings:
        if config.prepare.source is not None:
            what = "`task.settings.source` is set as well" if task else f"`{config.task.name}` reads its own data"
            raise InputError(what, where="prepare.source", fix="leave one of them out")
        return None
    return DataPlan(config, task)


def require_source(config: Config) -> None:
    """InputError where `prepare.source` is a file that is not on this machine. A name of the hub is not looked up."""
    plan = data_plan(config)
    if plan is None or plan.source is None or Path(plan.source).exists():
        return
    converts = config.prepare.convert is not None
    if not converts and Path(plan.source).suffix not in SUFFIXES and is_hub_name(plan.source):
        return
    file = machine_file() or NAME
    drawn = "prepare.source=null prepare.convert=null" if converts else "prepare.source=null"
    raise InputError(
        f"`{config.prepare.source}` is not on this machine",
        where="prepare.source",
        fix=f"name the folder that holds it under `data` in the machine file ({file}), "
        f"or train on problems that the task generates: {drawn}",
    )


def with_prepared_data(config: Config) -> Config:
    """The recipe as it is trained: its task reads the prepared folder, whether that is there yet or not."""
    plan = data_plan(config)
    if plan is None:
        return config
    settings = {**config.task.settings, "source": str(plan.folder)}
    return config.model_copy(update={"task": config.task.model_copy(update={"settings": settings})})


def require_prepared_data(config: Config, recipe: str) -> Config:
    """For verbs that prepare nothing: a recipe with a `prepare.source` reads what `egpo run` prepared from it, or is an
    InputError that says how. A recipe without one draws its problems, as ever."""
    if config.prepare.source is None:
        return config
    require_source(config)
    found = with_prepared_data(config)
    if not (Path(found.task.settings["source"]) / MANIFEST).is_file():
        fix = f"egpo run {recipe} --only prepare"
        raise InputError(f"`{config.prepare.source}` is not prepared yet", where="prepare.source", fix=fix)
    return found


def data_digest(config: Config) -> str:
    """Of the rows that a recipe with prepared data reads; of the task's settings where it draws or reads its own."""
    source = config.task.settings.get("source")
    if isinstance(source, str) and Path(source).is_dir():
        files = [path for path in files_in(Path(source)) if path.suffix == ".parquet"]
        return (
            digest_of({path.name: file_data_digest(path) for path in files}) if files else folder_digest(Path(source))
        )
    return digest_of([config.task.name, config.task.settings])


def _source_identity(source: str | None) -> str:
    """Of a file's or a directory's bytes; a name of the hub stands for itself."""
    if source is None:
        return "generator"
    path = Path(source)
    return folder_digest(path) if path.is_dir() else print_of(path) or source
