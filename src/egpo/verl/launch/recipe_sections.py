"""Reads the sections of a recipe from verl's settings, one method per section. The inverse of `translation.py`.

Every key of a recipe that has an equivalent in verl is set, from the file or from verl's default.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from egpo.advantages import ESTIMATORS, estimator_named
from egpo.config.old_spellings import OLD_KEYS, current_value
from egpo.config.sections.algorithm import Algorithm
from egpo.config.sections.training import EpisodeSettings, Trackers, Update
from egpo.errors import InputError
from egpo.losses import LOSSES
from egpo.model_sources import short_names
from egpo.tasks.loading import SOURCED_TASKS
from egpo.verl.launch.problems import UNMEASURED
from egpo.verl.launch.schema.known import schema
from egpo.verl.launch.translation import (
    ACTOR,
    AGGREGATIONS,
    ALL_TOKENS,
    CORRECTION,
    EPISODES_OVERLONG,
    FILTER_METRICS,
    LOSS_MODE,
    MODEL,
    OVERLONG,
    REWARD,
    ROLLOUT,
    TRAINER_MODE,
    USUAL_MICRO_TOKENS,
    float32_settings,
)
from egpo.verl.losses import NO_DUAL_CLIP, VERLS_LOSSES, recipe_loss
from egpo.verl.settings import COMMON_KEYS, is_ours

KL_NAMES = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
"""verl's names of the KL estimators, and their names in a recipe."""
TEMPLATE = "data.apply_chat_template_kwargs."
TRACKERS = get_args(get_args(Trackers.model_fields["trackers"].annotation)[0])
_NO_TASK = "verl's configuration does not name the task that judges responses: set task.name (docs/tasks.md)"


class SectionReader:
    """Reads the sections of a recipe from verl's keys (`given`).

    `taken`: keys that are carried over in another form, which the comparison with the forward translation skips.
    `assumed`: keys of the recipe that follow from verl's defaults. `notes`: what the user still has to decide.
    """

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
        """Return the value of verl's `key`. If it is verl's default, the recipe's key `ours` is added to `assumed`."""
        if key not in self.given:
            self.assumed.append(ours)
        value = self.given.get(key, schema().defaults.get(key))
        return None if value == "???" else value

    def recipe(self) -> dict[str, Any]:
        """Return every section that the settings of verl determine, as plain values."""
        recipe: dict[str, Any] = {
            "engine": "verl",
            "model": dict(self._model()),
            "rollout": dict(self._rollout()),
            "validation": dict(self._validation()),
            "verl": dict(self._machine()),
            **dict(self._names()),
            **dict(self._training()),
            "watch": {"trackers": list(self._trackers())},
            "algorithm": self._algorithm(),
        }
        if self.task is not None:
            recipe["task"] = {"name": self.task, "settings": self.task_settings}
        else:
            self.notes.append(f"task.name: {_NO_TASK}")
        if tags := self.given.get("algorithm.egpo.tags"):
            recipe["segments"] = {"tags": tags}
        limits = {name: self.given.get(f"algorithm.egpo.episodes.{name}") for name in EpisodeSettings.model_fields}
        if given := {name: value for name, value in limits.items() if value is not None}:
            recipe["rollout"] = {**recipe["rollout"], "episodes": given}
        recipe["update"] = self._update(recipe["rollout"])
        return recipe

    @property
    def _steps(self) -> Any:
        return self.given.get("trainer.total_training_steps")

    def _training(self) -> Iterator[tuple[str, Any]]:
        if isinstance(self.given.get("data.seed"), int):
            yield "seed", self.given["data.seed"]
        if isinstance(self._steps, int):
            yield "steps", self._steps
        else:
            self.notes.append("steps: the file sets epochs, not steps; set steps to epochs * rows / rollout.prompts")
        save = self._period("trainer.save_freq", "checkpoints.every")
        yield "checkpoints", {"every": 0 if save == self._steps else save}

    def _period(self, key: str, ours: str) -> Any:
        """Return a period in steps. verl's -1 (never) is 0 in a recipe."""
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
            self.notes.append(f"name: `{usable}` replaces `{name}`, which cannot be the name of a run folder")
        folder = Path(str(self.given.get("trainer.default_local_dir", "")))
        if folder.name == "checkpoints" and folder.parent.name == usable:
            runs = folder.parent.parent
            yield "runs", str(runs.relative_to(Path.cwd()) if runs.is_relative_to(Path.cwd()) else runs)

    def _model(self) -> Iterator[tuple[str, Any]]:
        path = self.effective(f"{MODEL}.path", "model.path")
        if isinstance(path, str):
            self.taken.add(f"{MODEL}.path")
        yield "path", short_names().get(str(path), path)
        key = f"{MODEL}.enable_gradient_checkpointing"
        yield "gradient_checkpointing", self.effective(key, "model.gradient_checkpointing")
        template = {key.removeprefix(TEMPLATE): value for key, value in self.given.items() if key.startswith(TEMPLATE)}
        if template:
            yield "template", template
        if all(self.given.get(setting.key) == setting.value for setting in float32_settings()):
            yield "dtype", "float32"
        if self.given.get(f"{MODEL}.lora_rank"):
            yield "lora", self._lora()

    def _lora(self) -> dict[str, Any]:
        layers = self.given.get(f"{MODEL}.target_modules", "all-linear")
        alpha = self.effective(f"{MODEL}.lora_alpha", "model.lora.alpha")
        return {
            "rank": self.given[f"{MODEL}.lora_rank"],
            "alpha": float(alpha) if isinstance(alpha, int) else alpha,
            "layers": layers if isinstance(layers, list) else [] if layers == "all-linear" else [layers],
        }

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
        """Return the section `algorithm`. An estimator of verl, such as its default `gae`, goes below `verl:`."""
        estimator = self.given.setdefault("algorithm.adv_estimator", schema().defaults["algorithm.adv_estimator"])
        found: dict[str, Any] = {}
        if estimator in ESTIMATORS or ":" in estimator:
            found["estimator"] = estimator
        if self.given.get("trainer.v1.trainer_mode") == TRAINER_MODE.removeprefix("egpo_"):
            self.taken.add("trainer.v1.trainer_mode")  # egpo_sync is the same trainer, and logs more
        key = "algorithm.norm_adv_by_std_in_grpo"
        found["normalize"] = self.effective(key, "algorithm.normalize")
        found |= self._rewards_of_groups()
        if is_ours(estimator):
            found["estimator_settings" if ":" in estimator else estimator] = self._estimator_settings(estimator)
        return found

    def _rewards_of_groups(self) -> dict[str, Any]:
        """Return which groups are replaced, and what changes the rewards that the estimator gets."""
        found: dict[str, Any] = {}
        fields = Algorithm.model_fields
        if self.given.get("algorithm.filter_groups.enable"):
            found["constant_groups"] = "replace"
            metric = self.effective("algorithm.filter_groups.metric", "algorithm.filter")
            filters = {theirs: ours for ours, theirs in FILTER_METRICS.items()}
            if "filter" in fields and isinstance(metric, str) and metric in filters:
                found["filter"] = filters[metric]
        if "random_rewards" in fields and (chance := self.given.get("algorithm.egpo.random_rewards")) is not None:
            found["random_rewards"] = _float(chance)
        tokens = self.given.get(f"{OVERLONG}.len") if self.given.get(f"{OVERLONG}.enable") else None
        tokens = self.given.get(f"{EPISODES_OVERLONG}.tokens", tokens)
        if "overlong" in fields and tokens is not None:
            penalty = self.given.get(f"{EPISODES_OVERLONG}.penalty", self.given.get(f"{OVERLONG}.penalty_factor", 1.0))
            found["overlong"] = {"tokens": tokens, "penalty": _float(penalty)}
        return found

    def _estimator_settings(self, estimator: str) -> dict[str, Any]:
        section = estimator_named(estimator).settings if ":" not in estimator else None
        given = [key.removeprefix("algorithm.egpo.") for key in self.given if key.startswith("algorithm.egpo.")]
        names = (
            section.model_fields if section else [name for name in given if name.partition(".")[0] not in COMMON_KEYS]
        )
        found = {}
        for name in names:
            if (key := f"algorithm.egpo.{name}") in self.given:
                self.given[key] = current_value(key, self.given[key])
                found[name] = self.given[key]
        return found

    def _update(self, rollout: Mapping[str, Any]) -> dict[str, Any]:
        mini = self.effective(f"{ACTOR}.ppo_mini_batch_size", "update.mini_batch")
        found = {
            **self._optimizer(),
            **self._clips(),
            "epochs": self.effective(f"{ACTOR}.ppo_epochs", "update.epochs"),
            "mini_batch": None if mini == rollout["prompts"] else mini,
        }
        found |= self._loss()
        aggregations = {theirs: ours for ours, theirs in AGGREGATIONS.items()}
        mode = self.effective(f"{ACTOR}.loss_agg_mode", "update.aggregation")
        if str(mode) in aggregations:
            found["aggregation"] = aggregations[str(mode)]
        if (tokens := self._micro_tokens(rollout["max_response_tokens"])) is not None:
            found["micro_tokens"] = tokens
        return found | dict(self._kl())

    def _loss(self) -> dict[str, Any]:
        """Return the loss form with its settings, and the terms beside it. Other modes of verl go below `verl:`."""
        found: dict[str, Any] = {}
        mode = self.effective(LOSS_MODE, "update.loss")
        ours = {row.mode: name for name, row in VERLS_LOSSES.items() if name in LOSSES}
        if isinstance(mode, str) and mode in ours:
            name = found["loss"] = ours[mode]
            keys = {key: f"{ACTOR}.policy_loss.{theirs}" for key, theirs in VERLS_LOSSES[name].keys.items()}
            if keys:
                values = {key: self.effective(theirs, f"update.{name}.{key}") for key, theirs in keys.items()}
                found[name] = {key: _float(value) for key, value in values.items()}
        elif plugin := _plugin_loss(mode):
            found["loss"], settings = plugin
            if settings:
                found["loss_settings" if ":" in plugin[0] else plugin[0]] = settings
        return found | dict(self._corrections())

    def _corrections(self) -> Iterator[tuple[str, Any]]:
        if "entropy_weight" in Update.model_fields and (weight := self.given.get(f"{ACTOR}.entropy_coeff")):
            yield "entropy_weight", _float(weight)
        if "importance_cap" in Update.model_fields and self.given.get(f"{CORRECTION}.rollout_is") == "token":
            cap = self.effective(f"{CORRECTION}.rollout_is_threshold", "update.importance_cap")
            yield "importance_cap", _float(cap)
        name = self.given.get("algorithm.egpo.controller.name")
        if "controller" in Update.model_fields and isinstance(name, str):
            place = "algorithm.egpo.controller.settings."
            held = {key.removeprefix(place): value for key, value in self.given.items() if key.startswith(place)}
            yield "controller", name
            if held:
                yield "controller_settings" if ":" in name else name, held

    def _optimizer(self) -> dict[str, Any]:
        optim = f"{ACTOR}.optim"
        return {
            "lr": self.effective(f"{optim}.lr", "update.lr"),
            "schedule": self.effective(f"{optim}.lr_scheduler_type", "update.schedule"),
            "warmup_steps": self._warmup(self._steps),
            "weight_decay": _float(self.effective(f"{optim}.weight_decay", "update.weight_decay")),
            "betas": self.effective(f"{optim}.betas", "update.betas"),
            "max_grad_norm": _float(self.effective(f"{optim}.clip_grad", "update.max_grad_norm")),
        }

    def _clips(self) -> dict[str, Any]:
        low = self.effective(f"{ACTOR}.clip_ratio_low", "update.clip")
        high = self.effective(f"{ACTOR}.clip_ratio_high", "update.clip_high")
        dual = self.effective(f"{ACTOR}.clip_ratio_c", "update.dual_clip")
        return {
            "clip": low,
            "clip_high": None if high == low else high,
            "dual_clip": None if dual == NO_DUAL_CLIP else _float(dual),
        }

    def _micro_tokens(self, max_response_tokens: Any) -> Any:
        """Return the size of micro-batches in tokens; None if it is what `translate` sets by default."""
        response = max_response_tokens if isinstance(max_response_tokens, int) else 0
        tokens = self.given.get(f"{ACTOR}.ppo_max_token_len_per_gpu")
        usual = max(USUAL_MICRO_TOKENS, self._longest_prompt + response)
        return tokens if self.given.get(f"{ACTOR}.use_dynamic_bsz") and tokens != usual else None

    def _warmup(self, steps: Any) -> Any:
        """Return the warm-up in steps. verl uses the ratio if the number is 0 or less."""
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
                self.notes.append(f"trainer.logger: `{name}` is not a supported tracker (watch.trackers)")
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
        """Return name and settings of the task: from our reward, or guessed from the path of the data."""
        path, kwargs = str(self.given.get(f"{REWARD}.path", "")), f"{REWARD}.reward_kwargs"
        source = self._source()
        if path == "pkg://egpo.verl.launch.task_reward" and isinstance(self.given.get(f"{kwargs}.task"), str):
            return self.given[f"{kwargs}.task"], _json_section(self.given.get(f"{kwargs}.settings"))
        if path == "pkg://egpo.verl.reward" and (name := self._task_of_reasons()):
            mode = self.given.get(f"{kwargs}.mode")
            return name, source | ({"mode": mode} if mode is not None else {})
        files = str(self.given.get("data.train_files", ""))
        for name in SOURCED_TASKS:
            if name in files.replace("-", "_").lower():
                self.notes.append(f"task.name: `{name}` is a guess from data.train_files")
                return name, source
        return None, {}

    def _task_of_reasons(self) -> str | None:
        """Return the built-in task of the first known data source in `reward_kwargs.reasons`; None if there is none."""
        reasons = self.given.get(f"{REWARD}.reward_kwargs.reasons")
        for data_source in reasons if isinstance(reasons, list) else []:
            for name, task in SOURCED_TASKS.items():
                if data_source in (task.data_source, task.generated_data_source):
                    return name
        return None

    def _source(self) -> dict[str, str]:
        """Return the task's setting `source`, the folder of the data files, as a dictionary.

        Empty if the launcher wrote the files, or if they are not `train.parquet` and `test.parquet` in one folder.
        """
        files = [self.given.get(f"data.{split}_files") for split in ("train", "val")]
        paths = [Path(str(file[0] if isinstance(file, list) and len(file) == 1 else file)) for file in files]
        if [path.name for path in paths] != ["train.parquet", "test.parquet"] or paths[0].parent != paths[1].parent:
            return {}
        if paths[0].parts[-3:-1] == ("verl", "data"):
            return {}
        self.taken |= {"data.train_files", "data.val_files"}
        return {"source": str(paths[0].parent)}

    @property
    def _longest_prompt(self) -> int:
        limit = self.given.get("data.max_prompt_length", UNMEASURED)
        return limit if isinstance(limit, int) else UNMEASURED


def _float(value: Any) -> Any:
    """Return an int as a float if that is exact; anything else unchanged."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else value


def _plugin_loss(mode: Any) -> tuple[str, dict[str, Any]] | None:
    try:
        return recipe_loss(mode) if isinstance(mode, str) else None
    except InputError:
        return None


def _json_section(text: Any) -> dict[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
