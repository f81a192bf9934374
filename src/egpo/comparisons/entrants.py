"""A run as it enters a comparison: its settings, where it comes from, and how it was evaluated."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from egpo.comparisons.exams import Sitting, choose_exam, read_sittings
from egpo.errors import InputError
from egpo.runs.folder import RunFolder
from egpo.runs.provenance import Provenance, read_provenance


@dataclass(frozen=True)
class Entrant:
    """`name` is its folder's, or as much of the path as tells it apart. `sittings` are of one exam and one checkpoint:
    several are evaluations of one model again."""

    name: str
    config_yaml: str
    provenance: Provenance | None
    sittings: Sequence[Sitting]

    @property
    def seed(self) -> int | None:
        return self.provenance.seed if self.provenance else None


def read_entrants(paths: Sequence[Path], exam: str | None = None) -> list[Entrant]:
    """In the order given, each folder once; InputError where one is no run, or they sat no exam together."""
    folders = list({path.resolve(): RunFolder(path) for path in paths}.values())
    for folder in folders:
        _require_run(folder)
    if len(folders) < 2:
        what = f"{len(folders) or 'no'} run to compare" + (f": {folders[0].path}" if folders else "")
        raise InputError(what, where="egpo compare", fix="name two at least, as in: egpo compare runs/grpo runs/egpo")
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
    return Entrant(name, text, provenance, sittings)


def _require_run(folder: RunFolder) -> None:
    if not folder.path.is_dir():
        raise InputError("no such folder", where=str(folder.path), fix="give the folder of a run, as runs/<name>")
    if not folder.config.is_file():
        fix = "give a folder that `egpo train` wrote, with config.yaml in it"
        raise InputError("is no run", where=str(folder.path), fix=fix)
