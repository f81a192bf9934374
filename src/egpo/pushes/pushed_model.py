"""The model that `egpo push` uploads: its folder, its files, and the run that it comes from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egpo.errors import InputError
from egpo.merges.places import NOTE, find_checkpoint
from egpo.runs.folder import MODEL
from egpo.runs.stored import StoredCheckpoint, StoredRun, checkpoint_at, read_json_object

WEIGHTS = ".safetensors"
UPLOADED = (WEIGHTS, ".json", ".jinja", ".txt", ".model")
"""Endings of the files of a model: weights, configs, chat template, vocabularies. Others stay here: Python code would
run on other machines, and pickled weights may contain code."""


@dataclass(frozen=True)
class PushedModel:
    """A model folder and the run that trained it. `digests` are those recorded when its files were written, by name."""

    folder: Path
    run: StoredRun
    step: int
    digests: Mapping[str, Mapping[str, Any]]

    @property
    def files(self) -> list[Path]:
        """The files to upload, in the order of their names."""
        return sorted(path for path in self.folder.iterdir() if _is_uploaded(path))

    @property
    def left_out(self) -> list[str]:
        """The names of the other files of the folder. Two are known and not listed: the note of a merge, which has
        local paths, and a card of the base model, which the new card replaces."""
        others = (path.name for path in self.folder.iterdir() if not _is_uploaded(path))
        return sorted(name for name in others if name not in (NOTE, "README.md"))

    @property
    def num_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)


def find_pushed_model(source: Path, step: int | None = None) -> PushedModel:
    """Return the model of a run, of a checkpoint in a run, or of a folder that `egpo merge` wrote.

    `step` chooses a checkpoint of a run; default: the latest. InputError if there is no such model, or if it belongs to
    no run: there would be nothing to write a card from.
    """
    merged = _merged_from(source)
    place = find_checkpoint(source if merged is None else merged.actor, step)
    if place.run is None or place.step is None:
        fix = "give a run, or a model that `egpo merge` wrote of one; upload other models with `hf upload`"
        raise InputError("not in the folder of a run", where=str(source), fix=fix)
    run, model = StoredRun.at(place.run.path), source
    if merged is None:
        model = place.run.merged_of(place.step) if place.is_sharded else place.model
    _require_weights(model, place)
    return PushedModel(model, run, place.step, _recorded_digests(model, place))


def verify(model: PushedModel) -> None:
    """Raise InputError for the first file that differs from its digest. Files without a digest are not checked."""
    from egpo.runs.checkpoint_manifest import CheckpointManifest, FileEntry, verify_files

    names = {path.name for path in model.files}
    known = {name: FileEntry(int(e["size"]), str(e["sha256"])) for name, e in model.digests.items() if name in names}
    verify_files(model.folder, CheckpointManifest(model.step, "", None, known))


def _is_uploaded(path: Path) -> bool:
    return path.is_file() and path.name.endswith(UPLOADED) and path.name != NOTE and not path.name.startswith(".")


def _merged_from(source: Path) -> StoredCheckpoint | None:
    """Return the checkpoint that a merged model was made of; None if the folder is not a merged model."""
    if not (source / NOTE).is_file():
        return None
    note = read_json_object(source / NOTE)
    try:
        found = checkpoint_at(Path(str(note["source"]["checkpoint"])))
    except (KeyError, TypeError) as error:
        fix = "merge the checkpoint again"
        raise InputError("not the note of a merge", where=str(source / NOTE), fix=fix) from error
    if found is None:
        fix = "restore the run at this place, or push the run itself"
        raise InputError(f"its run is gone: {note['source']['checkpoint']}", where=str(source), fix=fix)
    return found


def _require_weights(model: Path, place: StoredCheckpoint) -> None:
    if (model / "config.json").is_file() and any(path.name.endswith(WEIGHTS) for path in model.iterdir()):
        return
    if place.is_sharded and place.run is not None:
        fix = f"merge it into a model first: egpo merge {place.run.path} --step {place.step} --out {model}"
        raise InputError(f"the checkpoint of step {place.step} is in shards", where=str(place.run.path), fix=fix)
    fix = "choose another --step, or restore the folder"
    raise InputError(f"no config.json or no {WEIGHTS} file in it", where=str(model), fix=fix)


def _recorded_digests(model: Path, place: StoredCheckpoint) -> dict[str, Mapping[str, Any]]:
    """Return the digests that a merge or a checkpoint of the embedded engine has recorded; empty if neither has."""
    if (model / NOTE).is_file():
        files, below = read_json_object(model / NOTE).get("merged", {}).get("files", {}), ""
    elif (place.actor / "manifest.json").is_file():
        files, below = read_json_object(place.actor / "manifest.json").get("files", {}), f"{MODEL}/"
    else:
        return {}
    return {name.removeprefix(below): entry for name, entry in files.items() if name.startswith(below)}
