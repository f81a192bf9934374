"""What MODEL means on the command line: a model folder, a run, or a checkpoint inside one."""

import re
from dataclasses import dataclass
from pathlib import Path

from egpo.config import Config, load_recipe
from egpo.config.machine import require_model_place
from egpo.errors import InputError
from egpo.local.checkpoints.manifest import read_manifest
from egpo.runs.folder import RunFolder

_STEP = re.compile(r"global_step_(\d+)")


@dataclass(frozen=True)
class ModelPlace:
    """`model` is what loads: a folder, or a name of the hub. `run` and `step` where it is a run's checkpoint."""

    model: str
    label: str
    run: RunFolder | None = None
    step: int | None = None

    @property
    def recipe(self) -> Config | None:
        """What the run was trained by, where it was by reinforcement: its task and its sampling are known then."""
        if self.run is None:
            return None
        recipe = load_recipe(self.run.config)
        return recipe if isinstance(recipe, Config) else None


def find_model(word: str, checkpoint: str = "latest") -> ModelPlace:
    """`checkpoint` says which one of a run: `latest`, `best`, or the number of its step."""
    path = Path(word).expanduser()
    if path.is_dir():
        run = RunFolder(path)
        if run.config.is_file() and not (path / "config.json").is_file():
            return _checkpoint_of(run, checkpoint)
        if found := _inside_run(path):
            return found
    require_model_place(word, f"model {word}")
    return ModelPlace(word, path.resolve().name if path.is_dir() else word)


def _checkpoint_of(run: RunFolder, wanted: str) -> ModelPlace:
    steps = sorted(int(match[1]) for path in run.checkpoints.glob("global_step_*") if (match := _step(path)))
    if not steps:
        raise InputError("the run has no checkpoint yet", where=str(run.path), fix="let it train, or give a model")
    if wanted not in ("latest", "best", *map(str, steps)):
        held = ", ".join(["latest", "best", *map(str, steps)])
        raise InputError(f"no checkpoint `{wanted}`", where=str(run.path), fix=f"there are: {held}")
    step = _best(run, steps) if wanted == "best" else steps[-1] if wanted == "latest" else int(wanted)
    return _place(run, step)


def _best(run: RunFolder, steps: list[int]) -> int:
    """By validation, as the checkpoints' manifests have it; of equals the later."""
    scores = {step: read_manifest(run.checkpoint_of(step) / "actor").score for step in steps}
    scored = [(score, step) for step, score in scores.items() if score is not None]
    if not scored:
        fix = "give --checkpoint latest, or a step"
        raise InputError("no checkpoint of the run has a score", where=str(run.path), fix=fix)
    return max(scored)[1]


def _inside_run(path: Path) -> ModelPlace | None:
    """`global_step_N` of a run, or its `actor`, or the `huggingface` in that."""
    whole = path.resolve()
    for folder in (whole, *whole.parents[:2]):
        run = RunFolder(folder.parent.parent)
        if (match := _step(folder)) and folder.parent == run.checkpoints and run.config.is_file():
            return _place(run, int(match[1]))
    return None


def _place(run: RunFolder, step: int) -> ModelPlace:
    label = f"{run.path.resolve().name} step {step}"
    return ModelPlace(str(_weights(run, step)), label, run, step)


def _weights(run: RunFolder, step: int) -> Path:
    """A checkpoint of verl's is in shards: the model is what was merged of it, in the run."""
    actor, merged = run.checkpoint_of(step) / "actor", run.merged_of(step)
    if not any(actor.glob("model_world_size_*")):
        return actor / "huggingface"
    if not (merged / "config.json").is_file():
        fix = f"make a model of it first: egpo merge {run.path} --step {step} --out {merged}"
        raise InputError(f"the checkpoint of step {step} is in shards", where=str(run.path), fix=fix)
    return merged


def _step(path: Path) -> re.Match[str] | None:
    return _STEP.fullmatch(path.name)
