"""Who enters a comparison: a run with its settings, where it comes from and how it was evaluated; or a plain model, of
which there are evaluations only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from egpo.comparisons.exams import Sitting, choose_exam, read_sitting, read_sittings
from egpo.data.manifest import data_digest, file_digest
from egpo.errors import InputError
from egpo.files import ROWS
from egpo.runs.folder import RunFolder
from egpo.runs.provenance import Provenance, read_provenance

_OUTPUTS = ("results.csv", "results.html", "report*.html", "compare*.json")


@dataclass(frozen=True)
class Entrant:
    """`name` is its folder's, or as much of the path as tells it apart. `sittings` are of one exam and one checkpoint:
    several are evaluations of one model again. `is_trained` unless it is a plain model: that has no settings and no
    seed. `row_digests` are the digests of its data, with that of the rows in place of that of a file's bytes where an
    older run recorded the latter and the file is still there."""

    name: str
    config_yaml: str
    provenance: Provenance | None
    sittings: Sequence[Sitting]
    is_trained: bool = True
    row_digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        return self.provenance.seed if self.provenance else None


def read_entrants(paths: Sequence[Path], exam: str | None = None) -> list[Entrant]:
    """Plain models, which are given by files of their evaluations, then runs in the order given, each folder once.
    InputError where one is no run, or they sat no exam together."""
    paths = [path for path in paths if not _is_output(path)]
    files = [path for path in paths if path.suffix == ".json" and path.is_file()]
    models = plain_models(files)
    folders = list({path.resolve(): RunFolder(path) for path in paths if path not in files}.values())
    for folder in folders:
        _require_run(folder)
    if len(models) + len(folders) < 2:
        entered = [*(model.name for model in models), *(str(folder.path) for folder in folders)]
        what = f"{len(entered) or 'no'} run to compare" + "".join(f": {name}" for name in entered)
        raise InputError(what, where="egpo compare", fix="name two at least, as in: egpo compare runs/grpo runs/egpo")
    return [*models, *_runs(folders, exam)]


def _is_output(path: Path) -> bool:
    """What we write beside runs: `egpo compare runs/*` means the runs."""
    return path.is_file() and any(path.match(pattern) for pattern in _OUTPUTS)


def plain_models(files: Sequence[Path]) -> list[Entrant]:
    """By their labels: several files of one model are evaluations again."""
    by_label: dict[str, list[Sitting]] = {}
    for path in dict.fromkeys(files):
        sitting = read_sitting(path)
        if sitting is None:
            raise InputError(
                "is no evaluation", where=str(path), fix="give an `evals/<name>.json` that `egpo eval` wrote"
            )
        by_label.setdefault(str(sitting.header.get("label")), []).append(sitting)
    return [Entrant(label, "", None, sittings, is_trained=False) for label, sittings in by_label.items()]


def _runs(folders: Sequence[RunFolder], exam: str | None) -> list[Entrant]:
    if not folders:
        return []
    names = distinct_names([folder.path.resolve() for folder in folders])
    by_path = {str(folder.path): read_sittings(folder.evals) for folder in folders}
    chosen = choose_exam(by_path, exam)
    return [_entrant(folder, name, chosen[str(folder.path)]) for folder, name in zip(folders, names, strict=True)]


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of each path, as few as tell all of them apart."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]


def _entrant(folder: RunFolder, name: str, sittings: Sequence[Sitting]) -> Entrant:
    try:
        text = folder.config.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", where=str(folder.config), fix="restore it") from error
    provenance = read_provenance(folder.provenance) if folder.provenance.is_file() else None
    digests = _row_digests(folder, text, provenance.data) if provenance else {}
    return Entrant(name, text, provenance, sittings, row_digests=digests)


def _row_digests(folder: RunFolder, config_yaml: str, recorded: Mapping[str, str]) -> dict[str, str]:
    """A digest of bytes becomes one of rows if the file with these bytes is found where the run read it."""
    found = dict(recorded)
    for split, digest in recorded.items():
        if not digest.startswith(ROWS):
            files = [path for path in _files_of(folder, config_yaml, split) if path.is_file()]
            same = next((path for path in files if file_digest(path) == digest), None)
            found[split] = digest if same is None else data_digest(same)
    return found


def _files_of(folder: RunFolder, config_yaml: str, split: str) -> Iterator[Path]:
    """verl's own copy, the prepared folder of the task, the file of a supervised training."""
    yield folder.path / "verl" / "data" / f"{split}.parquet"
    try:
        config = yaml.safe_load(config_yaml)
    except yaml.YAMLError:  # said where the settings are compared
        return
    section = config if isinstance(config, dict) else {}
    source = ((section.get("task") or {}).get("settings") or {}).get("source")
    if isinstance(source, str):
        yield Path(source) / f"{split}.parquet"
    key = {"train": "path", "evaluation": "eval_path"}.get(split)
    if key and isinstance(path := (section.get("data") or {}).get(key), str):
        yield Path(path)


def _require_run(folder: RunFolder) -> None:
    if not folder.path.is_dir():
        raise InputError("no such folder", where=str(folder.path), fix="give the folder of a run, as runs/<name>")
    if not folder.config.is_file():
        fix = "give a folder that `egpo train` wrote, with config.yaml in it"
        raise InputError("is no run", where=str(folder.path), fix=fix)
