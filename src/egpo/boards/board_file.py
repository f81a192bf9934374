"""The board file: which methods are compared on which tasks, with which seeds and against which baselines.

A method is a name of the table `egpo.methods.METHODS`, or is written into the file with `name` and `set`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from egpo.config.yaml_text import parse_yaml
from egpo.errors import ConfigError, Fault, InputError, nearest
from egpo.methods import METHODS, Method
from egpo.runs.removed import Keep
from egpo.sections import Count, KeyPath, PathText, PlaceOf, RunName, Section, Seed, Words, faults_of

Settings = dict[str, Any]
ExamKind = Literal["sampled", "greedy"]
BOARD_FILE = "board.yaml"
_OWN_KEYS = ("name", "runs", "seed")
SHARED_KEYS = (*_OWN_KEYS, "model", "task.name", "prepare", "cold_start", "probe", "eval")
"""Keys of a recipe that all methods of a task share, so that a method may not set them."""


class TaskEntry(Section):
    """A task of a board: a recipe, and settings that differ from it."""

    recipe: PathText
    """Recipe: a name that `egpo recipes` lists, or a YAML file."""
    set: Settings = Field({})
    """Settings of the recipe that apply to every method, by dotted key. Default: none."""


class MethodEntry(Section):
    """A method that is written into the board file."""

    name: RunName
    """Name of the method in tables and in the names of its runs."""
    set: Annotated[Settings, Field(min_length=1)]
    """Settings of the recipe that make the method, by dotted key."""
    about: str = ""
    """What the method does, in one sentence. Default: none."""
    changes: Words = ()
    """Factors in which the method differs from GRPO, if there is more than one. Default: none."""


class BoardEntries(Section):
    """The keys of a board file. `tasks` and `methods` are checked entry by entry."""

    name: RunName
    """Name of the board: the title of its page."""
    folder: PathText | None = None
    """Folder for runs, page and results. Default: boards/NAME."""
    tasks: Annotated[dict[str, Any], Field(min_length=1)]
    """Tasks by name."""
    methods: Annotated[tuple[Any, ...], Field(strict=False, min_length=1)]
    """Methods: names, or entries with `name` and `set`."""
    seeds: Annotated[tuple[Seed, ...], Field(strict=False, min_length=1)]
    """Seeds: each method is trained with each of them on each task."""
    baseline: str = "grpo"
    """The method from which differences are measured."""
    baselines: Words = ()
    """Methods that a method must beat, all of them, to be called better than the baselines. Default: the baseline."""
    parallel: Count = 1
    """Number of runs at the same time."""
    keep: Keep = "all"
    """What stays of the checkpoints of a run that is trained and evaluated: `all`, `weights` (the model without the
    optimizer state) or `results` (no model)."""
    exam: ExamKind = "sampled"
    """The evaluation that is compared: `sampled` (eval.n responses per problem) or `greedy`. Choose it before you look
    at results."""


@dataclass(frozen=True)
class Board:
    """A checked board file. `methods` are in the order of the file; `baselines` contains `baseline`."""

    name: str
    path: Path
    folder: Path
    tasks: Mapping[str, TaskEntry]
    methods: Mapping[str, Method]
    seeds: Sequence[int]
    baseline: str
    baselines: Sequence[str]
    parallel: int
    keep: Keep
    exam: ExamKind

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def results(self) -> Path:
        return self.folder / "board.json"

    @property
    def copy(self) -> Path:
        """The copy of the board file beside the runs."""
        return self.folder / BOARD_FILE

    @property
    def before_training(self) -> Path:
        """In evidence, whose runs have no copies of them: a folder per task with the evaluations before RL."""
        return self.folder / "before_training"

    @property
    def num_pairs(self) -> int:
        """The number of pairs of a task and a method that is not the baseline: the size of the correction."""
        return len(self.tasks) * (len(self.methods) - 1)

    @property
    def factors(self) -> list[str]:
        """The keys in which methods may differ."""
        ours = [key for method in self.methods.values() for key in method.settings]
        return list(dict.fromkeys([*START_SETTINGS, *ours]))


START = "grpo"
START_SETTINGS = {"algorithm.estimator": START, **METHODS[START].settings}
"""The settings that every method starts from, whatever estimator the recipe has."""


def load_board(path: Path) -> Board:
    """Read and check a board file. Raise ConfigError with every fault, each with its line."""
    document = parse_yaml(_text(path), str(path))
    if not isinstance(document.value, dict):
        raise InputError("a board file has keys and values", where=str(path), fix=_EXAMPLE)
    place_of = PlaceOf(str(path), {key: f"{path}:{line}" for key, line in document.line_of.items()}, {})
    try:
        entries = BoardEntries.model_validate(document.value)
    except ValidationError as error:
        faults = faults_of(error, BoardEntries, place_of)
        raise ConfigError([*faults, *_read(document.value, place_of).faults]) from error
    read = _read({key: getattr(entries, key) for key in BoardEntries.model_fields}, place_of)
    if read.faults:
        raise ConfigError(read.faults)
    baselines = tuple(dict.fromkeys([entries.baseline, *entries.baselines]))
    folder = Path(entries.folder or f"boards/{entries.name}")
    return Board(
        entries.name,
        path,
        folder,
        read.tasks,
        read.methods,
        entries.seeds,
        entries.baseline,
        baselines,
        entries.parallel,
        entries.keep,
        entries.exam,
    )


_EXAMPLE = "write name, tasks, methods, seeds and baseline; docs/board.md has an example"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError("there is no such board file", where=str(path), fix="check the path") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the file cannot be read ({error!s:.80})", where=str(path), fix="check the file") from error


class _Reader:
    """Checks tasks and methods one by one, and collects the faults."""

    def __init__(self, place_of: PlaceOf) -> None:
        self.place_of = place_of
        self.faults: list[Fault] = []
        self.tasks: dict[str, TaskEntry] = {}
        self.methods: dict[str, Method] = {}

    def read_tasks(self, given: Mapping[str, Any]) -> None:
        for name, value in given.items():
            path = ("tasks", str(name))
            self._require_name(str(name), path)
            if (entry := self._section(TaskEntry, value, path)) is not None:
                self._refuse_keys(entry.set, _OWN_KEYS, path, "the board sets it")
                self.tasks[str(name)] = entry

    def read_methods(self, given: Sequence[Any]) -> None:
        for value in given:
            name, method = self._method(value)
            if name in self.methods:
                self._fault(f"the method `{name}` is listed twice", ("methods",), "list each method once")
            if method is not None:
                self.methods[name] = method

    def read_baselines(self, key: str, names: Sequence[Any]) -> None:
        for name in names:
            if self.methods and isinstance(name, str) and name not in self.methods:
                self._fault(f"`{name}` is not among the methods of the board", (key,), nearest(name, self.methods))

    def read_seeds(self, seeds: Sequence[Any]) -> None:
        if any(seeds.count(seed) > 1 for seed in seeds):
            self._fault("a seed is listed twice", ("seeds",), "list each seed once")

    def _method(self, value: Any) -> tuple[str, Method | None]:
        path = ("methods",)
        if isinstance(value, str):
            if value not in METHODS:
                fix = f"{nearest(value, METHODS)} (your own: {{name: {value}, set: {{KEY: VALUE}}}})"
                self._fault(f"unknown method `{value}`", path, fix)
            return value, METHODS.get(value)
        entry = self._section(MethodEntry, value, path)
        if entry is None:
            return "", None
        if entry.name in METHODS:
            fix = "choose another name for your own settings, or list the name alone"
            self._fault(f"`{entry.name}` is a method of the package", path, fix)
        self._refuse_keys(entry.set, SHARED_KEYS, path, "all methods of a task share it")
        return entry.name, Method(entry.about, "", entry.set, entry.changes)

    def _section(self, kind: Any, value: Any, path: KeyPath) -> Any:
        if not isinstance(value, dict):
            fix = "write {recipe: NAME}" if kind is TaskEntry else "write a name, or {name: NAME, set: {KEY: VALUE}}"
            self._fault(f"`{value!s:.60}` is not an entry of `{path[0]}`", path, fix)
            return None
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            where = f"{self.place_of((*path, ''))}"
            self.faults += faults_of(error, kind, PlaceOf(where, {}, {}))
            return None

    def _refuse_keys(self, settings: Settings, refused: Sequence[str], path: KeyPath, reason: str) -> None:
        for key in settings:
            if any(key == one or key.startswith(f"{one}.") for one in refused):
                self._fault(f"`set` has the key `{key}`; {reason}", path, "remove the key")

    def _require_name(self, name: str, path: KeyPath) -> None:
        try:
            TypeAdapter(RunName).validate_python(name, strict=True)
        except ValidationError:
            self._fault(f"`{name}` cannot be part of a run's name", path, "use letters, digits, dot, dash, underscore")

    def _fault(self, what: str, path: KeyPath, fix: str) -> None:
        self.faults.append(Fault(what, self.place_of(path), fix))


def _read(value: Mapping[str, Any], place_of: PlaceOf) -> _Reader:
    """Check the entries of a file. Values of another type than they should have are left to pydantic."""
    reader, lists = _Reader(place_of), (list, tuple)
    if isinstance(value.get("tasks"), dict):
        reader.read_tasks(value["tasks"])
    if isinstance(value.get("methods"), lists):
        reader.read_methods(value["methods"])
    reader.read_baselines("baseline", [value.get("baseline", START)])
    if isinstance(value.get("baselines"), lists):
        reader.read_baselines("baselines", value["baselines"])
    if isinstance(value.get("seeds"), lists):
        reader.read_seeds(value["seeds"])
    return reader
