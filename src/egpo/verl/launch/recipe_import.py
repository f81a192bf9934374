"""Turns verl's configuration into a recipe: the inverse of `translate`.

`recipe_sections.py` derives the sections of the recipe, which is then translated to verl's settings again. A setting of
the file that this translation does not reproduce goes below `verl:`, where verl reads it unchanged. A setting that
cannot go there is listed with the reason. So no setting is lost silently.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from egpo.config import Config
from egpo.config.machine import require_model_place
from egpo.config.sections.experiment import SECTIONS
from egpo.errors import ConfigError, InputError
from egpo.runs.folder import RunFolder
from egpo.verl.launch.hydra_overrides import format_value
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.override_files import Unread, VerlSettings, resolve_references
from egpo.verl.launch.problems import UNMEASURED, ProblemFiles
from egpo.verl.launch.recipe_sections import KL_NAMES, SectionReader
from egpo.verl.launch.refusals import OURS_ALONE, refuse_what_verl_lacks
from egpo.verl.launch.schema.known import ignored_keys, schema
from egpo.verl.launch.translation import REWARD, tensor_parallel, translate

LAUNCHER_WRITES = {
    "data.train_files": "the launcher writes the task's problems: set task.name, and task.settings.source",
    "data.val_files": "the launcher writes the task's problems: set task.name, and task.settings.source",
    "data.prompt_key": "the launcher writes the files itself",
    "data.reward_fn_key": "the launcher writes the files itself",
    "trainer.total_epochs": "a recipe counts steps: set steps to epochs * rows / rollout.prompts",
    "trainer.validation_data_dir": "the launcher sets it itself: set runs, or name",
}
"""Keys of verl that cannot go below `verl:` in a recipe, and the reason."""
_UNKNOWN_TASK = "unknown:Task"
_ABSENT = object()


@dataclass
class Imported:
    """An imported recipe: only the settings that differ from our defaults, and remarks about the import.

    `assumed`: keys of the recipe that come from verl's defaults, since the file does not set them. `below_verl`: keys
    that verl reads unchanged. `left_out`: settings that were not imported. `notes`: what the user still has to decide.
    """

    recipe: dict[str, Any] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    below_verl: list[str] = field(default_factory=list)
    left_out: list[Unread] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def import_verl(settings: VerlSettings) -> Imported:
    """Return a recipe with which verl trains as it would with these settings."""
    settings = VerlSettings(dict(settings.values), list(settings.unread))
    try:
        resolve_references(settings)
    except RecursionError as error:
        raise InputError("interpolations are nested too deeply", fix="give plain values") from error
    reader = SectionReader(settings.values)
    recipe = reader.recipe()
    config = _valid(recipe)
    done = Imported(left_out=settings.unread)
    below = _unexpressed(config, reader, done.left_out)
    done.below_verl = sorted(below)
    done.recipe = _recipe_of(recipe, config, below)
    done.assumed = sorted(key for key in reader.assumed if _at(done.recipe, key) is not _ABSENT)
    done.left_out += _still_different(done, reader)
    done.notes = [*reader.notes, *_refusals(done.recipe)]
    return done


def _unexpressed(config: Config, reader: SectionReader, left_out: list[Unread]) -> dict[str, Any]:
    """Return the settings that the recipe's sections do not express and that can go below `verl:`.

    Settings that cannot go there are added to `left_out`.
    """
    below: dict[str, Any] = {}
    out, defaults = _forward(config, reader), schema().defaults
    for key, value in reader.given.items():
        if key in reader.taken or _same(key, out.get(key, defaults.get(key, _ABSENT)), value):
            continue
        if value is None and defaults.get(key, _ABSENT) is None and _refused(key, "", {}):
            continue  # unset, as in verl's own files; the launcher sets it
        if reason := _refused(key, str(reader.given["algorithm.adv_estimator"]), reader.given):
            left_out.append(Unread(f"{key}={format_value(value)}", reason))
        else:
            below[key] = value
    return below


def _valid(recipe: dict[str, Any]) -> Config:
    """Return the checked recipe. An invalid value is removed, and is later reported as missing."""
    while True:
        try:
            return _config_of(recipe)
        except ValidationError as error:
            for place in {tuple(one["loc"][:2]) for one in error.errors()}:
                section = recipe.get(str(place[0]))
                if len(place) == 2 and isinstance(section, dict) and place[1] in section:
                    del section[place[1]]
                elif place[0] in recipe:
                    del recipe[str(place[0])]
                else:
                    raise InputError(
                        f"the settings cannot be turned into a recipe: {error.errors()[0]['msg']}"
                    ) from error
            recipe.setdefault("model", {}).setdefault("path", "model")


def _forward(config: Config, reader: SectionReader) -> dict[str, Any]:
    """Return verl's settings for this recipe, as a launch would set them."""
    config = _with_model_anywhere(config)
    places = VerlPlaces(RunFolder(Path(config.runs) / config.name))
    given = reader.given
    reasons, kwargs = given.get(f"{REWARD}.reward_kwargs.reasons"), f"{REWARD}.reward_kwargs"
    ours = given.get(f"{REWARD}.path") == "pkg://egpo.verl.reward" and isinstance(reasons, list) and reasons
    files = ProblemFiles(
        train=places.data / "train.parquet",
        test=places.data / "test.parquet" if config.validation.every else None,
        data_source=reasons[0] if ours and isinstance(reasons, list) else None,
        mode=given.get(f"{kwargs}.mode") if ours else None,
        longest_prompt=config.rollout.max_prompt_tokens or UNMEASURED,
        longest_prompt_source="",
        episodes=any(key.startswith("algorithm.egpo.episodes.") for key in given),
    )
    out = VerlSettings({setting.key: setting.value for setting in translate(config, places, files)})
    resolve_references(out)
    return out.values


def _same(key: str, one: Any, other: Any) -> bool:
    """Return whether verl treats two values alike: 1 and 1.0, a list and a tuple, `kl` and `k1` (one KL estimator)."""
    if key.endswith(("kl_loss_type", "kl_penalty")):
        return bool(KL_NAMES.get(str(one), one) == KL_NAMES.get(str(other), other))
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    return bool((list(one) if isinstance(one, tuple) else one) == other)


def _refused(key: str, estimator: str, given: Mapping[str, Any]) -> str | None:
    """Return why a key cannot go below `verl:` in a recipe; None if it can."""
    if any(other.startswith(f"{key}.") for other in given):
        return "a section whose keys are also set one by one"
    if key in OURS_ALONE:
        return f"the launcher sets it itself: set {OURS_ALONE[key]}"
    if key in LAUNCHER_WRITES:
        return LAUNCHER_WRITES[key]
    if key.startswith("hydra."):
        return "the launcher sets Hydra's folders itself"
    if key.startswith(REWARD):
        return "in a recipe a custom reward is a task: write it as module:Class (docs/tasks.md), and set task.name"
    if key.partition(".")[0] not in SECTIONS or "." not in key:
        return f"verl {schema().version} has no such section, and would ignore it"
    if key.startswith("algorithm.egpo.") and key.rpartition(".")[2] not in ("tags", "record"):
        return f"not a setting of the estimator `{estimator}`"
    if faults := ignored_keys([key]):
        return f"{faults[0].what}; {faults[0].fix}"
    return None


def _recipe_of(recipe: dict[str, Any], config: Config, below: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from our defaults, in the schema's order, with those of `below` under `verl:`."""
    if config.verl.tensor_parallel is not None:
        bare = config.model_copy(update={"verl": config.verl.model_copy(update={"tensor_parallel": None})})
        if tensor_parallel(_with_model_anywhere(bare)) == config.verl.tensor_parallel:
            del recipe["verl"]["tensor_parallel"]
    plain = _config_of({"model": {"path": "none"}}).model_dump(mode="json")
    found = {name: _differing(recipe[name], plain.get(name)) for name in Config.model_fields if name in recipe}
    kept = {name: value for name, value in found.items() if value is not _ABSENT}
    for key, value in below.items():
        section = kept.setdefault("verl", {})
        *parents, last = key.split(".")
        for part in parents:
            section = section.setdefault(part, {})
        section[last] = value
    return kept


def _differing(value: Any, default: Any) -> Any:
    if isinstance(value, dict) and isinstance(default, dict):
        inner = {key: _differing(one, default.get(key, _ABSENT)) for key, one in value.items()}
        kept = {key: one for key, one in inner.items() if one is not _ABSENT}
        return kept or _ABSENT
    return _ABSENT if value == default and isinstance(value, bool) == isinstance(default, bool) else value


def _at(recipe: Mapping[str, Any], dotted: str) -> Any:
    found: Any = recipe
    for part in dotted.split("."):
        found = found.get(part, _ABSENT) if isinstance(found, Mapping) else _ABSENT
    return found


def _still_different(done: Imported, reader: SectionReader) -> list[Unread]:
    """Return the settings that the finished recipe does not reproduce and that are not listed in `left_out` yet."""
    out = _forward(_config_of(done.recipe), reader)
    listed = {one.text.partition("=")[0] for one in done.left_out} | reader.taken
    return [
        Unread(f"{key}={format_value(value)}", f"the recipe sets {format_value(out[key])}")
        for key, value in reader.given.items()
        if key not in listed and key in out and not _same(key, out[key], value)
    ]


def _refusals(recipe: dict[str, Any]) -> list[str]:
    """Return the faults for which the launcher would refuse the recipe."""
    try:
        refuse_what_verl_lacks(_with_model_anywhere(_config_of(recipe)))
    except ConfigError as error:
        return [str(fault) for fault in error.faults]
    return []


def _config_of(recipe: dict[str, Any]) -> Config:
    return Config.model_validate({"task": {"name": _UNKNOWN_TASK}} | recipe)


def _with_model_anywhere(config: Config) -> Config:
    """Return the config; if its model folder does not exist here, only the last part of the path is kept, as a name.

    A script is often imported on another machine than the one it trains on. The model's size is read from the name.
    """
    try:
        require_model_place(config.model.path, "model.path")
    except InputError:
        name = Path(config.model.path).name or "model"
        return config.model_copy(update={"model": config.model.model_copy(update={"path": name})})
    return config
