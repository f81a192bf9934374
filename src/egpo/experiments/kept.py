"""Which results a finished experiment still lacks, and the removal of checkpoints that are not to be kept.

`keep` is `all`, `weights` (without the state that only a continued training needs) or `results` (without the models).
Nothing is removed before the trained model is evaluated. `removed.json` says what was removed (`runs.removed`).
"""

import shutil
from pathlib import Path

from egpo.config.machine import model_identity
from egpo.errors import EgpoError, InputError
from egpo.experiments.experiment import Experiment
from egpo.experiments.screen import plain_screen
from egpo.experiments.stage_record import StageRecord
from egpo.experiments.stages import STAGES
from egpo.fingerprints import folder_digest
from egpo.runs.folder import ACTOR, SHARD
from egpo.runs.removed import KEEPS, Keep, Removed, write_removed
from egpo.runs.stored import StoredRun

_MEASURED = ("train", "merge", "eval")
"""The stages without which an experiment has no result."""


def missing_result(experiment: Experiment) -> str | None:
    """Return why an experiment has no result yet; None if it is done, with settings, data and files unchanged."""
    try:
        record = StageRecord(experiment.run.stages)
        for name in _MEASURED:
            if name == "eval" and not experiment.has_trained_model:
                return _progress(experiment)
            for job in STAGES[name].jobs(experiment, plain_screen(lambda line: None)):
                if (reason := record.reason_to_work(job)) is not None:
                    return _progress(experiment) if name == "train" else f"{job.name}: {reason}"
    except EgpoError as error:
        return str(error.faults[0])
    return None


def _progress(experiment: Experiment) -> str:
    done, steps = StoredRun.at(experiment.run.path).last_step, experiment.config.steps
    return f"step {done} of {steps}" if done < steps else f"step {done}, not finished"


def remove_surplus(experiment: Experiment, keep: Keep) -> Removed | None:
    """Remove what `keep` does not keep of an experiment that has its result. Return what is removed now; None if
    nothing is to be removed, or nothing yet. An interrupted removal is finished."""
    earlier = experiment.removed
    if earlier is not None:
        _delete(experiment, earlier)
    wanted = KEEPS.index(keep)
    if wanted <= KEEPS.index(earlier.keep if earlier else "all") or "trained" not in experiment.evaluated:
        return None
    if missing_result(experiment) is not None:
        return None
    found = _surplus(experiment, keep)
    files = [str(path.relative_to(experiment.run.path)) for path in found]
    removed = Removed(
        keep,
        [*(earlier.files if earlier else ()), *files],
        (earlier.num_bytes if earlier else 0) + sum(path.stat().st_size for path in found),
        earlier.model if earlier else model_identity(str(experiment.trained_model)),
        earlier.shards if earlier else folder_digest(_actor(experiment)),
    )
    try:
        write_removed(experiment.run.removed, removed)
        _delete(experiment, removed)
    except OSError as error:
        fix = "fix the permissions, then run the same command again"
        what = f"the checkpoints cannot be removed ({error.strerror})"
        raise InputError(what, where=str(experiment.run.path), fix=fix) from error
    return removed


def _actor(experiment: Experiment) -> Path:
    return experiment.run.checkpoint_of(experiment.config.steps) / ACTOR


def _surplus(experiment: Experiment, keep: Keep) -> list[Path]:
    """Return the files to remove: of `actor` everything but the model and verl's shards, or all files."""
    if keep == "results":
        places = (experiment.run.checkpoints, experiment.run.path / "merged")
        return sorted(path for place in places for path in place.rglob("*") if path.is_file())
    actors = [checkpoint.actor for checkpoint in StoredRun.at(experiment.run.path).checkpoints.values()]
    found = sorted(path for actor in actors for path in actor.iterdir() if path.is_file())
    return [path for path in found if not (SHARD.fullmatch(path.name) or path.name in _OF_SHARDS)]


_OF_SHARDS = ("fsdp_config.json", "manifest.json")
"""Files beside the weights that a merge reads, or that say what the checkpoint was."""


def _delete(experiment: Experiment, removed: Removed) -> None:
    for name in removed.files:
        (experiment.run.path / name).unlink(missing_ok=True)
    if not removed.has_model:
        for folder in (experiment.run.checkpoints, experiment.run.path / "merged"):
            if folder.is_dir() and not any(path.is_file() for path in folder.rglob("*")):
                shutil.rmtree(folder)
