"""The task's rows as parquet, in a folder that every recipe with the same data shares."""

from functools import partial
from pathlib import Path

from egpo.config.schema import Convert
from egpo.data import SplitRule, ToolStyle, convert
from egpo.data.manifest import MANIFEST, read_manifest, verify
from egpo.data.rows import SPLITS
from egpo.errors import InputError
from egpo.experiments.experiment import Experiment
from egpo.experiments.job import Job
from egpo.experiments.prepared import DataPlan, require_source
from egpo.experiments.screen import Screen
from egpo.tasks.preparation import prepare

FILES = (*(f"{split}.parquet" for split in SPLITS), MANIFEST)
_USUAL_SPLIT_SEED = 42


def jobs(experiment: Experiment, screen: Screen) -> list[Job]:
    """None where the recipe names prepared data, or the task is from outside."""
    plan = experiment.data
    if plan is None:
        return []
    require_source(experiment.config)
    outputs = [plan.folder / name for name in FILES]
    return [Job("prepare", plan.inputs, lambda: outputs, partial(_prepared, plan))]


def _prepared(plan: DataPlan) -> str:
    if _is_whole(plan.folder):
        return f"{_described(plan.folder)}, there already"
    conversion = plan.config.prepare.convert
    if conversion is None:
        _prepare(plan)
    else:
        _convert(plan, conversion)
    return _described(plan.folder)


def _prepare(plan: DataPlan) -> None:
    chosen, settings = plan.config.prepare, plan.config.task.settings
    prepare(
        plan.task(**settings),
        plan.folder,
        source=plan.source,
        train=chosen.train or settings.get("train"),
        test=chosen.test or settings.get("test"),
        seed=settings.get("seed", 0) if chosen.seed is None else chosen.seed,
        # The folder's name is a digest of its making: what lies there is the same, or broken.
        force=True,
    )


def _convert(plan: DataPlan, conversion: Convert) -> None:
    seed = _USUAL_SPLIT_SEED if plan.config.prepare.seed is None else plan.config.prepare.seed
    rule = SplitRule(conversion.test_size, seed, conversion.max_samples, conversion.shuffle)
    style = ToolStyle(plan.config.task.settings.get("instruction"))
    convert(conversion.format, Path(plan.source or ""), plan.folder, rule, style=style, force=True)


def _is_whole(folder: Path) -> bool:
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
