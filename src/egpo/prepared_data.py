"""The prepared data of a recipe: its folder, and how it is made.

The name of the folder contains a digest of everything that determines the data's bytes. Recipes with the same data
therefore share one folder, and different data never overwrites it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.config import Config
from egpo.config.machine import NAME, data_place, machine_file
from egpo.config.schema import Convert, Task
from egpo.data import SplitRule, ToolStyle, convert
from egpo.data.conversion import CONVERSION_VERSION
from egpo.data.manifest import MANIFEST, read_manifest, verify
from egpo.data.manifest import data_digest as file_data_digest
from egpo.data.readers import SUFFIXES
from egpo.data.rows import SPLITS
from egpo.data.sources import is_hub_name
from egpo.errors import InputError
from egpo.fingerprints import digest_of, files_in, fingerprint, folder_digest
from egpo.tasks.dataset import NAME as DATASET
from egpo.tasks.dataset import input_files
from egpo.tasks.loading import SOURCED_TASKS, TASKS
from egpo.tasks.preparation import prepare
from egpo.tasks.sourced import SourcedTask

FILES = (*(f"{split}.parquet" for split in SPLITS), MANIFEST)
_REWARD_SETTINGS = ("mode", "sandbox")
"""Settings of a task that change how responses are judged, but not the data rows."""
_DEFAULT_SPLIT_SEED = 42


@dataclass(frozen=True)
class DataPlan:
    """A plan for making the data of a recipe. `inputs` are digests of everything that determines the data's bytes."""

    config: Config
    task: type[SourcedTask]

    @property
    def inputs(self) -> dict[str, str]:
        chosen = self.config.prepare.model_dump(mode="json", exclude={"folder", "source"})
        version = CONVERSION_VERSION if self.config.prepare.convert else self.task.version
        return {
            "task": digest_of([self.task.__name__, version, self.row_settings]),
            "prepare": digest_of(chosen),
            "source": _source_identity(self.source) if self.source else self.task.default_source,
        }

    @property
    def row_settings(self) -> dict[str, Any]:
        """The task's settings that change the data rows."""
        return {key: value for key, value in self.config.task.settings.items() if key not in _REWARD_SETTINGS}

    @property
    def source(self) -> str | None:
        source = self.config.prepare.source
        return None if source is None else data_place(source)

    @property
    def folder(self) -> Path:
        name = f"{self.config.task.name.replace('_', '-')}-{digest_of(self.inputs)[:12]}"
        return Path(self.config.prepare.folder) / name


def data_plan(config: Config) -> DataPlan | None:
    """Return a plan for making the recipe's data.

    Return None if the recipe names prepared data (`task.settings.source`), or if its task is not built in.
    """
    task = SOURCED_TASKS.get(config.task.name.replace("-", "_"))
    if task is None or "source" in config.task.settings:
        if config.prepare.source is not None:
            both = "`prepare.source` and `task.settings.source` are both set"
            what = both if task else f"`prepare.source` is set, but the task `{config.task.name}` reads its own data"
            raise InputError(what, where="prepare.source", fix="remove one of them" if task else "remove it")
        return None
    return DataPlan(config, task)


def require_source(config: Config) -> None:
    """Raise InputError if `prepare.source` is a file that is not on this machine. Hub names are not looked up."""
    plan = data_plan(config)
    if plan is None or plan.source is None or Path(plan.source).exists():
        return
    converts = config.prepare.convert is not None
    if not converts and Path(plan.source).suffix not in SUFFIXES and is_hub_name(plan.source):
        return
    file = machine_file() or NAME
    generated = "prepare.source=null prepare.convert=null" if converts else "prepare.source=null"
    raise InputError(
        f"`{config.prepare.source}` is not on this machine",
        where="prepare.source",
        fix=f"name the folder that holds it under `data` in the machine file ({file}), "
        f"or train on problems that the task generates: {generated}",
    )


def make_data(plan: DataPlan) -> str:
    """Write the data unless its folder is complete, and return one line with the folder and its number of rows."""
    if _is_complete(plan.folder):
        return f"{_described(plan.folder)}, there already"
    conversion = plan.config.prepare.convert
    if conversion is None:
        _prepare(plan)
    else:
        _convert(plan, conversion)
    return _described(plan.folder)


def with_prepared_data(config: Config) -> Config:
    """Return the config for training: its task reads the folder of prepared data, which need not exist yet."""
    plan = data_plan(config)
    if plan is None:
        return config
    task = _reading(config.task, plan.folder)
    exams = tuple(_reading(exam, plan.folder) if _shares_data(exam, plan) else exam for exam in config.eval.tasks)
    evaluation = config.eval.model_copy(update={"tasks": exams})
    return config.model_copy(update={"task": task, "eval": evaluation})


def _reading(task: Task, folder: Path) -> Task:
    return task.model_copy(update={"settings": {**task.settings, "source": str(folder)}})


def _shares_data(task: Task, plan: DataPlan) -> bool:
    """Return whether a task of `eval.tasks` reads the prepared data of the trained task."""
    found = TASKS.get(task.name.replace("-", "_"))
    shared = getattr(found, "data_of", None)
    return shared is not None and SOURCED_TASKS[shared] is plan.task and "source" not in task.settings


def require_prepared_data(config: Config, recipe: str) -> Config:
    """Return the config that reads the prepared data, for commands that do not prepare data.

    A recipe without `prepare.source` is returned unchanged: its task generates the problems. InputError, with the
    command that prepares the data, if the data is not prepared yet.
    """
    if config.prepare.source is None:
        return config
    require_source(config)
    found = with_prepared_data(config)
    if not (Path(found.task.settings["source"]) / MANIFEST).is_file():
        fix = f"egpo run {recipe} --only prepare"
        raise InputError(f"`{config.prepare.source}` is not prepared yet", where="prepare.source", fix=fix)
    return found


def data_digest(config: Config) -> str:
    """Return a digest of the rows in the prepared folder; if there is none, a digest of the task's settings.

    For the task `dataset`, of its settings and the files that they name, the reward's included.
    """
    if config.task.name == DATASET:
        paths = input_files(config.task.settings)
        digests = [folder_digest(path) if path.is_dir() else fingerprint(path) for path in paths]
        return digest_of([config.task.name, config.task.settings, digests])
    source = config.task.settings.get("source")
    if isinstance(source, str) and Path(source).is_dir():
        files = [path for path in files_in(Path(source)) if path.suffix == ".parquet"]
        return (
            digest_of({path.name: file_data_digest(path) for path in files}) if files else folder_digest(Path(source))
        )
    return digest_of([config.task.name, config.task.settings])


def _source_identity(source: str) -> str:
    """Return a digest of the bytes of a file or folder; a name on the hub is returned unchanged."""
    path = Path(source)
    return folder_digest(path) if path.is_dir() else fingerprint(path) or source


def _prepare(plan: DataPlan) -> None:
    chosen, settings = plan.config.prepare, plan.config.task.settings
    prepare(
        plan.task(**settings),
        plan.folder,
        source=plan.source,
        train=chosen.train or settings.get("train"),
        test=chosen.test or settings.get("test"),
        seed=settings.get("seed", 0) if chosen.seed is None else chosen.seed,
        # The folder's name is a digest of its inputs: a folder that exists is the same data, or an incomplete copy.
        force=True,
    )


def _convert(plan: DataPlan, conversion: Convert) -> None:
    seed = _DEFAULT_SPLIT_SEED if plan.config.prepare.seed is None else plan.config.prepare.seed
    rule = SplitRule(conversion.test_size, seed, conversion.max_samples, conversion.shuffle)
    style = ToolStyle(plan.config.task.settings.get("instruction"))
    convert(conversion.format, Path(plan.source or ""), plan.folder, rule, style=style, force=True)


def _is_complete(folder: Path) -> bool:
    if not all((folder / name).is_file() for name in FILES):
        return False
    try:
        for split in SPLITS:
            verify(folder, f"{split}.parquet")
    except InputError:
        return False
    return True


def _described(folder: Path) -> str:
    manifest = read_manifest(folder)
    assert manifest is not None
    rows = ", ".join(f"{manifest.files[f'{split}.parquet'].rows:,} {split}" for split in SPLITS)
    dropped = sum(manifest.dropped.values())
    return f"{folder}: {rows}" + (f" ({dropped:,} dropped)" if dropped else "")
