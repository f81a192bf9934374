"""verl's configuration -> our recipe: the inverse of `translate`.

Every key of ours that verl has a word for is set, from the file or from verl's default. The recipe is then translated
forward again: a setting of the file that does not come out goes below `verl:`, where verl reads it as it is, and what
cannot stand there is listed with the reason. So nothing is dropped silently.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from egpo.advantages import ESTIMATORS, estimator_named
from egpo.assets import MODELS
from egpo.config import Config
from egpo.config.old_spellings import OLD_KEYS, current_value
from egpo.config.sections.experiment import SECTIONS
from egpo.config.sections.training import Trackers
from egpo.errors import ConfigError, InputError
from egpo.runs.folder import RunFolder
from egpo.tasks.loading import TASKS
from egpo.verl.launch.hydra_overrides import spelt
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.override_files import Unread, VerlWords, resolve_references
from egpo.verl.launch.problems import UNMEASURED, ProblemFiles
from egpo.verl.launch.refusals import OURS_ALONE, refuse_what_verl_lacks
from egpo.verl.launch.resources import ACTOR, MODEL, ROLLOUT, float32_settings, tensor_parallel
from egpo.verl.launch.schema.known import ignored_keys, schema
from egpo.verl.launch.translation import (
    AGGREGATIONS,
    ALL_TOKENS,
    NO_DUAL_CLIP,
    REWARD,
    TRAINER_MODE,
    USUAL_MICRO_TOKENS,
    translate,
)
from egpo.verl.settings import is_ours

EGPO = "algorithm.egpo."

TEMPLATE = "data.apply_chat_template_kwargs."
KL_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
TRACKERS = get_args(get_args(Trackers.model_fields["trackers"].annotation)[0])
LAUNCHER_WRITES = {
    "data.train_files": "the launcher writes the task's problems: set task.name, and task.settings.source",
    "data.val_files": "the launcher writes the task's problems: set task.name, and task.settings.source",
    "data.prompt_key": "the launcher writes the files itself",
    "data.reward_fn_key": "the launcher writes the files itself",
    "trainer.total_epochs": "a recipe counts steps: set steps to epochs * rows / rollout.prompts",
    "trainer.validation_data_dir": "the launcher sets it itself: set runs, or name",
}
_NO_TASK = "which task judges the responses is not in verl's configuration: set task.name (docs/tasks.md)"
_UNKNOWN_TASK = "unknown:Task"
_ABSENT = object()


@dataclass
class Imported:
    """`recipe` holds what differs from our defaults. `assumed`: keys of ours that come from verl's defaults, since the
    file does not set them. `below_verl`: keys of verl's that go to verl as they are. `left_out`: what was not carried
    over. `notes`: what remains to be done."""

    recipe: dict[str, Any] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    below_verl: list[str] = field(default_factory=list)
    left_out: list[Unread] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def import_verl(words: VerlWords) -> Imported:
    """The recipe that makes verl do what these settings make it do."""
    words = VerlWords(dict(words.values), list(words.unread))
    try:
        resolve_references(words)
    except RecursionError as error:
        raise InputError("interpolations are nested too deeply", fix="give plain values") from error
    reader = _Reader(words.values)
    recipe, faults = reader.recipe(), words.unread
    config = _valid(recipe)
    below: dict[str, Any] = {}
    done = Imported(left_out=faults)
    out = _forward(config, reader)
    for key, value in reader.given.items():
        if key in reader.taken or _same(key, out.get(key, schema().defaults.get(key, _ABSENT)), value):
            continue
        if value is None and schema().defaults.get(key, _ABSENT) is None and _refused(key, "", {}):
            continue  # not set, as in verl's own files; the launcher sets it
        if reason := _refused(key, str(reader.given["algorithm.adv_estimator"]), reader.given):
            done.left_out.append(Unread(f"{key}={spelt(value)}", reason))
        else:
            below[key] = value
    done.below_verl = sorted(below)
    done.recipe = _recipe_of(recipe, config, below)
    done.assumed = sorted(key for key in reader.assumed if _at(done.recipe, key) is not _ABSENT)
    done.left_out += _still_different(done, reader)
    done.notes = [*reader.notes, *_refusals(done.recipe)]
    return done


class _Reader:
    """Takes our settings out of verl's keys. `taken` are keys with a meaning of their own that need no comparison."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given
        self.taken: set[str] = set()
        self.assumed: list[str] = []
        self.notes: list[str] = []
        old = {f"algorithm.{row.old}": f"algorithm.{row.verl}" for row in OLD_KEYS if row.old != row.verl}
        for key in [key for key in given if key in old]:
            given.setdefault(old[key], given[key])
            self.taken.add(key)
        self.task, self.task_settings = self._task()

    def effective(self, key: str, ours: str) -> Any:
        """As the file sets it, or verl's default, which is then noted under our key."""
        if key not in self.given:
            self.assumed.append(ours)
        value = self.given.get(key, schema().defaults.get(key))
        return None if value == "???" else value

    def recipe(self) -> dict[str, Any]:
        given = self.given
        steps = given.get("trainer.total_training_steps")
        recipe: dict[str, Any] = {
            "engine": "verl",
            "model": dict(self._model()),
            "rollout": dict(self._rollout()),
            "validation": dict(self._validation()),
            "verl": dict(self._machine()),
        }
        recipe |= dict(self._names())
        if isinstance(given.get("data.seed"), int):
            recipe["seed"] = given["data.seed"]
        if isinstance(steps, int):
            recipe["steps"] = steps
        else:
            self.notes.append("steps: verl counts epochs here; set steps to epochs * rows / rollout.prompts")
        save = self._period("trainer.save_freq", "checkpoints.every")
        recipe["checkpoints"] = {"every": 0 if save == steps else save}
        recipe["watch"] = {"trackers": list(self._trackers())}
        if self.task is not None:
            recipe["task"] = {"name": self.task, "settings": self.task_settings}
        else:
            self.notes.append(f"task.name: {_NO_TASK}")
        recipe["algorithm"] = self._algorithm()
        if tags := given.get("algorithm.egpo.tags"):
            recipe["segments"] = {"tags": tags}
        recipe["update"] = self._update(recipe["rollout"], steps)
        return recipe

    def _period(self, key: str, ours: str) -> Any:
        """In steps; verl's never is -1, ours is 0."""
        value = self.effective(key, ours)
        if isinstance(value, int) and value <= 0:
            self.taken.add(key)
            return 0
        return value

    def _names(self) -> Iterator[tuple[str, Any]]:
        name = str(self.given.get("trainer.experiment_name", "run"))
        usable = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:100] or "run"
        yield "name", usable
        if usable != name:
            self.taken.add("trainer.experiment_name")
            self.notes.append(f"name: `{usable}` stands for `{name}`, which cannot be the name of a run folder")
        folder = Path(str(self.given.get("trainer.default_local_dir", "")))
        if folder.name == "checkpoints" and folder.parent.name == usable:
            runs = folder.parent.parent
            yield "runs", str(runs.relative_to(Path.cwd()) if runs.is_relative_to(Path.cwd()) else runs)

    def _model(self) -> Iterator[tuple[str, Any]]:
        path = self.effective(f"{MODEL}.path", "model.path")
        of_package = {str(folder): name for name, folder in MODELS.items()}
        yield "path", of_package.get(str(path), path)
        key = f"{MODEL}.enable_gradient_checkpointing"
        yield "gradient_checkpointing", self.effective(key, "model.gradient_checkpointing")
        template = {key.removeprefix(TEMPLATE): value for key, value in self.given.items() if key.startswith(TEMPLATE)}
        if template:
            yield "template", template
        if all(self.given.get(setting.key) == setting.value for setting in float32_settings()):
            yield "dtype", "float32"
        if self.given.get(f"{MODEL}.lora_rank"):
            layers = self.given.get(f"{MODEL}.target_modules", "all-linear")
            alpha = self.effective(f"{MODEL}.lora_alpha", "model.lora.alpha")
            yield (
                "lora",
                {
                    "rank": self.given[f"{MODEL}.lora_rank"],
                    "alpha": float(alpha) if isinstance(alpha, int) else alpha,
                    "layers": layers if isinstance(layers, list) else [] if layers == "all-linear" else [layers],
                },
            )

    def _rollout(self) -> Iterator[tuple[str, Any]]:
        yield "prompts", self.effective("data.train_batch_size", "rollout.prompts")
        yield "n", self.effective(f"{ROLLOUT}.n", "rollout.n")
        for name in ("temperature", "top_p"):
            yield name, _float(self.effective(f"{ROLLOUT}.{name}", f"rollout.{name}"))
        top_k = self.effective(f"{ROLLOUT}.top_k", "rollout.top_k")
        yield "top_k", 0 if top_k == ALL_TOKENS else top_k
        key = "rollout.max_response_tokens"
        yield "max_response_tokens", self.effective("data.max_response_length", key)
        if self.given.get("data.filter_overlong_prompts"):
            yield "max_prompt_tokens", self.effective("data.max_prompt_length", "rollout.max_prompt_tokens")
        on_cpu = self.given.get("trainer.device") == "cpu"
        if (rows := self.given.get(f"{ROLLOUT}.max_num_seqs")) is not None and not (on_cpu and rows == 64):
            yield "rows_at_once", rows

    def _validation(self) -> Iterator[tuple[str, Any]]:
        yield "every", self._period("trainer.test_freq", "validation.every")
        yield "n", self.effective(f"{ROLLOUT}.val_kwargs.n", "validation.n")
        if self.given.get(f"{ROLLOUT}.val_kwargs.do_sample"):
            temperature = self.effective(f"{ROLLOUT}.val_kwargs.temperature", "validation.temperature")
            yield "temperature", _float(temperature)

    def _algorithm(self) -> dict[str, Any]:
        """An estimator that is not ours goes below `verl:`; without any, verl takes `gae`."""
        estimator = self.given.setdefault("algorithm.adv_estimator", schema().defaults["algorithm.adv_estimator"])
        found: dict[str, Any] = {}
        if estimator in ESTIMATORS or ":" in estimator:
            found["estimator"] = estimator
        if self.given.get("trainer.v1.trainer_mode") == TRAINER_MODE.removeprefix("egpo_"):
            self.taken.add("trainer.v1.trainer_mode")  # the same trainer; ours logs more
        key = "algorithm.norm_adv_by_std_in_grpo"
        found["normalize"] = self.effective(key, "algorithm.normalize")
        if self.given.get("algorithm.filter_groups.enable"):
            found["constant_groups"] = "replace"
        if is_ours(estimator):
            home = "estimator_settings" if ":" in estimator else estimator
            found[home] = self._estimator_settings(estimator)
        return found

    def _estimator_settings(self, estimator: str) -> dict[str, Any]:
        section = estimator_named(estimator).settings if ":" not in estimator else None
        given = [key.removeprefix(EGPO) for key in self.given if key.startswith(EGPO)]
        names = section.model_fields if section else [name for name in given if name not in ("tags", "record")]
        found = {}
        for name in names:
            if (key := f"{EGPO}{name}") in self.given:
                self.given[key] = current_value(key, self.given[key])
                found[name] = self.given[key]
        return found

    def _update(self, rollout: Mapping[str, Any], steps: Any) -> dict[str, Any]:
        optim = f"{ACTOR}.optim"
        low = self.effective(f"{ACTOR}.clip_ratio_low", "update.clip")
        high = self.effective(f"{ACTOR}.clip_ratio_high", "update.clip_high")
        dual = self.effective(f"{ACTOR}.clip_ratio_c", "update.dual_clip")
        mini = self.effective(f"{ACTOR}.ppo_mini_batch_size", "update.mini_batch")
        aggregations = {theirs: ours for ours, theirs in AGGREGATIONS.items()}
        found = {
            "lr": self.effective(f"{optim}.lr", "update.lr"),
            "schedule": self.effective(f"{optim}.lr_scheduler_type", "update.schedule"),
            "warmup_steps": self._warmup(steps),
            "weight_decay": _float(self.effective(f"{optim}.weight_decay", "update.weight_decay")),
            "betas": self.effective(f"{optim}.betas", "update.betas"),
            "max_grad_norm": _float(self.effective(f"{optim}.clip_grad", "update.max_grad_norm")),
            "epochs": self.effective(f"{ACTOR}.ppo_epochs", "update.epochs"),
            "clip": low,
            "clip_high": None if high == low else high,
            "dual_clip": None if dual == NO_DUAL_CLIP else _float(dual),
            "mini_batch": None if mini == rollout["prompts"] else mini,
        }
        mode = self.effective(f"{ACTOR}.loss_agg_mode", "update.aggregation")
        if str(mode) in aggregations:
            found["aggregation"] = aggregations[str(mode)]
        tokens = self.given.get(f"{ACTOR}.ppo_max_token_len_per_gpu")
        response = rollout["max_response_tokens"]
        longest = self.longest_prompt + (response if isinstance(response, int) else 0)
        if self.given.get(f"{ACTOR}.use_dynamic_bsz") and tokens not in (None, max(USUAL_MICRO_TOKENS, longest)):
            found["micro_tokens"] = tokens
        return found | dict(self._kl())

    def _warmup(self, steps: Any) -> Any:
        """verl takes the ratio where the number is 0 or less."""
        number = self.effective(f"{ACTOR}.optim.lr_warmup_steps", "update.warmup_steps")
        ratio = self.given.get(f"{ACTOR}.optim.lr_warmup_steps_ratio", 0.0)
        if isinstance(number, int) and number > 0:
            return number
        if isinstance(ratio, int | float) and ratio > 0 and isinstance(steps, int):
            self.taken |= {f"{ACTOR}.optim.lr_warmup_steps", f"{ACTOR}.optim.lr_warmup_steps_ratio"}
            return int(ratio * steps)
        self.taken.add(f"{ACTOR}.optim.lr_warmup_steps")
        return 0

    def _kl(self) -> Iterator[tuple[str, Any]]:
        places = {
            "loss": (f"{ACTOR}.use_kl_loss", f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"),
            "reward": ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef", "algorithm.kl_penalty"),
        }
        for place, (switch, weight, kind) in places.items():
            if self.given.get(switch):
                yield "kl", _float(self.effective(weight, "update.kl"))
                yield "kl_in", place
                estimator = self.effective(kind, "update.kl_estimator")
                yield "kl_estimator", KL_NAMES.get(str(estimator), estimator)
                return

    def _trackers(self) -> Iterator[str]:
        logged = self.given.get("trainer.logger", [])
        for name in logged if isinstance(logged, list) else [logged]:
            if name in TRACKERS:
                yield name
            elif name not in ("console", "file"):
                self.notes.append(f"trainer.logger: `{name}` is no tracker of ours (watch.trackers)")
        self.taken.add("trainer.logger")

    def _machine(self) -> Iterator[tuple[str, Any]]:
        yield "device", self.effective("trainer.device", "verl.device")
        yield "gpus", self.effective("trainer.n_gpus_per_node", "verl.gpus")
        yield "nodes", self.effective("trainer.nnodes", "verl.nodes")
        if (parallel := self.given.get(f"{ROLLOUT}.tensor_model_parallel_size")) is not None:
            yield "tensor_parallel", parallel
        if (address := self.given.get("ray_kwargs.ray_init.address")) not in (None, "local"):
            yield "address", address

    def _task(self) -> tuple[str | None, dict[str, Any]]:
        """From a reward of ours; from a name in the path of the data, which is then noted."""
        path, kwargs = str(self.given.get(f"{REWARD}.path", "")), f"{REWARD}.reward_kwargs"
        source = self._source()
        if path == "pkg://egpo.verl.launch.task_reward" and isinstance(self.given.get(f"{kwargs}.task"), str):
            return self.given[f"{kwargs}.task"], _json_section(self.given.get(f"{kwargs}.settings"))
        if path == "pkg://egpo.verl.reward":
            mode = self.given.get(f"{kwargs}.mode")
            settings = source | ({"mode": mode} if mode is not None else {})
            reasons = self.given.get(f"{kwargs}.reasons")
            for data_source in reasons if isinstance(reasons, list) else []:
                for name, task in TASKS.items():
                    if data_source in (task.data_source, task.generated_data_source):
                        return name, settings
        files = str(self.given.get("data.train_files", ""))
        for name in TASKS:
            if name in files.replace("-", "_").lower():
                self.notes.append(f"task.name: `{name}` is a guess from data.train_files")
                return name, source
        return None, {}

    def _source(self) -> dict[str, str]:
        """The folder of `train.parquet` and `test.parquet`, unless it is the launcher's own."""
        files = [self.given.get(f"data.{split}_files") for split in ("train", "val")]
        paths = [Path(str(file[0] if isinstance(file, list) and len(file) == 1 else file)) for file in files]
        if [path.name for path in paths] != ["train.parquet", "test.parquet"] or paths[0].parent != paths[1].parent:
            return {}
        if paths[0].parts[-3:-1] == ("verl", "data"):
            return {}
        self.taken |= {"data.train_files", "data.val_files"}
        return {"source": str(paths[0].parent)}

    @property
    def longest_prompt(self) -> int:
        limit = self.given.get("data.max_prompt_length", UNMEASURED)
        return limit if isinstance(limit, int) else UNMEASURED


def _valid(recipe: dict[str, Any]) -> Config:
    """The recipe, checked. A value that ours cannot have is taken out of it: the comparison then finds it missing."""
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
                    raise InputError(f"cannot be made a recipe: {error.errors()[0]['msg']}") from error
            recipe.setdefault("model", {}).setdefault("path", "model")


def _forward(config: Config, reader: _Reader) -> dict[str, Any]:
    """What verl would be told by the recipe."""
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
    )
    out = VerlWords({setting.key: setting.value for setting in translate(config, places, files)})
    resolve_references(out)
    return out.values


def _same(key: str, one: Any, other: Any) -> bool:
    """Alike to verl: 1 and 1.0, a list and a tuple, the two names of an estimator of the KL."""
    if key.endswith(("kl_loss_type", "kl_penalty")):
        return bool(KL_NAMES.get(str(one), one) == KL_NAMES.get(str(other), other))
    if isinstance(one, bool) != isinstance(other, bool):
        return False
    return bool((list(one) if isinstance(one, tuple) else one) == other)


def _refused(key: str, estimator: str, given: Mapping[str, Any]) -> str | None:
    """Why a key cannot stand below `verl:`."""
    if any(other.startswith(f"{key}.") for other in given):
        return "a section whose keys are set one by one as well"
    if key in OURS_ALONE:
        return f"the launcher sets it itself: set {OURS_ALONE[key]}"
    if key in LAUNCHER_WRITES:
        return LAUNCHER_WRITES[key]
    if key.startswith("hydra."):
        return "the launcher sets Hydra's folders itself"
    if key.startswith(REWARD):
        return "a reward of yours is a task in a recipe: write one as module:Class (docs/tasks.md), and set task.name"
    if key.partition(".")[0] not in SECTIONS or "." not in key:
        return f"verl {schema().version} has no such section, and would ignore it"
    if key.startswith("algorithm.egpo.") and key.rpartition(".")[2] not in ("tags", "record"):
        return f"not a setting of the estimator `{estimator}`"
    if faults := ignored_keys([key]):
        return f"{faults[0].what}; {faults[0].fix}"
    return None


def _recipe_of(recipe: dict[str, Any], config: Config, below: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from our defaults, in the order of the schema, with verl's own keys last."""
    if config.verl.tensor_parallel is not None:
        bare = config.model_copy(update={"verl": config.verl.model_copy(update={"tensor_parallel": None})})
        if tensor_parallel(bare) == config.verl.tensor_parallel:
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


def _still_different(done: Imported, reader: _Reader) -> list[Unread]:
    """The whole recipe, translated forward once more: what is neither in it nor listed yet is listed now."""
    out = _forward(_config_of(done.recipe), reader)
    listed = {one.text.partition("=")[0] for one in done.left_out} | reader.taken
    return [
        Unread(f"{key}={spelt(value)}", f"the recipe comes to {spelt(out[key])}")
        for key, value in reader.given.items()
        if key not in listed and key in out and not _same(key, out[key], value)
    ]


def _refusals(recipe: dict[str, Any]) -> list[str]:
    """What the launcher would refuse of the whole."""
    try:
        refuse_what_verl_lacks(_config_of(recipe))
    except ConfigError as error:
        return [str(fault) for fault in error.faults]
    return []


def _config_of(recipe: dict[str, Any]) -> Config:
    return Config.model_validate({"task": {"name": _UNKNOWN_TASK}} | recipe)


def _float(value: Any) -> Any:
    """A whole number as a float, where a float can hold it."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else value


def _json_section(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
