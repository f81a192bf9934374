"""Refuses recipes that verl cannot run, before anything starts, and lists settings without effect under verl."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import isqrt, prod
from typing import Any

from egpo.config import Config
from egpo.errors import ConfigError, Fault
from egpo.losses import loss_named
from egpo.plans.splits import FSDP_SIZE, REFERENCE_FSDP_SIZE, fsdp_size_fault
from egpo.verl.launch.schema.known import ignored_keys, leaves, schema
from egpo.verl.launch.translation import (
    FILTER_METRICS,
    LOSS_MODE,
    ROLLOUT,
    Setting,
    algorithm_settings,
    loss_settings,
    merged,
    rollout_settings,
    tensor_parallel,
)
from egpo.verl.losses import VERLS_LOSSES, choosing_fault
from egpo.verl.plugin_checks import plugin_plan

_LOCAL = "leave the setting out, or train with engine=local"
OURS_ALONE = {
    "trainer.device": "verl.device",
    "trainer.n_gpus_per_node": "verl.gpus",
    "trainer.nnodes": "verl.nodes",
    "ray_kwargs.ray_init.address": "verl.address",
    "trainer.total_training_steps": "steps",
    "trainer.logger": "watch.trackers",
    "trainer.default_local_dir": "runs, or name",
    "trainer.rollout_data_dir": "runs, or name",
    "trainer.resume_mode": "--resume",
    "trainer.resume_from_path": "--resume-from",
}
"""Keys of verl that the launcher sets, and what to set instead. If they differed from the recipe, the launcher would
look for checkpoints of another number of ranks, or wait for metrics in a file that is never written."""
SIZES_OF_VLLM = {
    f"{ROLLOUT}.engine_kwargs.vllm.tensor_parallel_size": "verl.tensor_parallel",
    f"{ROLLOUT}.engine_kwargs.vllm.pipeline_parallel_size": "verl.tensor_parallel",
    f"{ROLLOUT}.engine_kwargs.vllm.data_parallel_size": f"verl.{ROLLOUT}.data_parallel_size",
}
"""Options of vLLM that verl sets from its own keys, since it places copies of vLLM on GPUs, and what to set instead."""

TENSOR_PARALLEL = f"{ROLLOUT}.tensor_model_parallel_size"
OTHER_PARALLEL = (f"{ROLLOUT}.data_parallel_size", f"{ROLLOUT}.pipeline_model_parallel_size")
"""verl's keys for the sizes whose product is the number of GPUs of one copy of vLLM."""

RECIPE_KEYS = {
    "algorithm.egpo.controller": "update.controller",
    "algorithm.egpo.random_rewards": "algorithm.random_rewards",
    LOSS_MODE: "update.loss",
}
"""Keys that the plug-in names in its faults, and the keys of a recipe from which they follow."""


def refuse_what_verl_lacks(config: Config) -> None:
    """Raise ConfigError with every setting of the recipe that verl does not support."""
    values = dict(leaves(config.verl.raw))
    raw = list(values)
    faults = [
        *_lacking(config),
        *_indivisible(config),
        *_contradicting(raw),
        *_running_code_of_models(values),
        *ignored_keys(raw),
        *_plugin(config),
    ]
    if faults:
        raise ConfigError(faults)


def ineffective_settings(config: Config) -> list[str]:
    """Return one line for each setting of the recipe that has no effect under verl. These are not faults."""
    return [f"No effect under verl: {setting}: {reason}." for setting, reason in _unheeded(config)]


def _unheeded(config: Config) -> Iterator[tuple[str, str]]:
    algorithm, raw = config.algorithm, dict(leaves(config.verl.raw))
    if config.model.device != "auto":
        yield "model.device", "verl uses verl.device"
    if config.model.dtype == "bfloat16" and config.verl.device == "cuda":
        yield "model.dtype=bfloat16", "verl keeps float32 weights and computes in bfloat16 anyway"
    if algorithm.constant_groups == "replace" and "max_refills" in algorithm.model_fields_set:
        yield "algorithm.max_refills", "verl samples until the step is full"
    if config.rollout.alternatives:
        yield "rollout.alternatives", "verl's sampling does not return the likeliest tokens"
    if config.update.loss in VERLS_LOSSES:
        own = getattr(config.update, config.update.loss, None)
        for name, reason in VERLS_LOSSES[config.update.loss].lacks.items():
            if name in getattr(own, "model_fields_set", ()):
                yield f"update.{config.update.loss}.{name}", reason
    for key in raw:
        if key.startswith("critic.") and raw.get("critic.enable") is not True:
            yield f"verl.{key}", f"`{algorithm.estimator}` trains no critic"
        elif key in ("algorithm.gamma", "algorithm.lam"):
            yield f"verl.{key}", f"it belongs to GAE, and the estimator is `{algorithm.estimator}`"


def _plugin(config: Config) -> list[Fault]:
    """Return the faults that the plug-in would otherwise report inside verl, minutes later.

    The plug-in's checks are applied to verl's defaults with the settings of this recipe.
    """
    settings = merged(
        [
            *rollout_settings(config, 0),
            *algorithm_settings(config),
            *_losses(config),
            *(Setting(key, value, "verl") for key, value in leaves(config.verl.raw)),
        ]
    )
    try:
        plugin_plan(_tree({**schema().defaults, **{one.key: one.value for one in settings}}))
    except ConfigError as error:
        return [replace(fault, where=RECIPE_KEYS.get(fault.where, f"verl.{fault.where}")) for fault in error.faults]
    return []


def _losses(config: Config) -> Iterator[Setting]:
    """Yield the settings of the loss form, unless `_lacking` refuses it."""
    if choosing_fault(config.update.loss, loss_named(config.update.loss)) is None:
        yield from loss_settings(config)


def _tree(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with dotted keys as nested sections."""
    root: dict[str, Any] = {}
    for key, value in values.items():
        *sections, last = key.split(".")
        place = root
        for section in sections:
            held = place.get(section)
            place[section] = held if isinstance(held, dict) else {}
            place = place[section]
        # A copy: later keys go into an empty section, and the cached schema must not change.
        place[last] = dict(value) if isinstance(value, Mapping) else value
    return root


def _contradicting(raw: Iterable[str]) -> Iterator[Fault]:
    for key in raw:
        # The name of an option of vLLM may be written with either dash.
        if other := OURS_ALONE.get(key) or SIZES_OF_VLLM.get(key.replace("-", "_")):
            yield Fault(f"the launcher sets `{key}` itself", f"verl.{key}", f"set {other}")


def _running_code_of_models(values: Mapping[str, Any]) -> Iterator[Fault]:
    for key, value in values.items():
        if key.rpartition(".")[2].lstrip("+").replace("-", "_") == "trust_remote_code" and value not in (False, None):
            fix = "leave the key out, and use a version of the model whose classes are in transformers"
            yield Fault("this would run code from a model folder, which egpo never does", f"verl.{key}", fix)
        # verl writes each value of a list as a word of vLLM's command line.
        is_list = key.startswith(f"{ROLLOUT}.engine_kwargs.vllm.") and isinstance(value, list)
        if is_list and any(str(one).startswith("--") for one in value):
            what = "a value begins with dashes, and vLLM would read it as another option"
            yield Fault(what, f"verl.{key}", "leave that value out of the list")


def _lacking(config: Config) -> Iterator[Fault]:
    rollout = config.rollout
    if config.model.init == "random":
        yield Fault(
            "verl trains pretrained weights only",
            "model.init",
            "save a randomly initialized model, and give its folder",
        )
    if config.model.deterministic:
        yield Fault("verl is not deterministic: the order of vLLM's responses varies", "model.deterministic", _LOCAL)
    if rollout.min_p:
        yield Fault("verl's sampling has no min_p", "rollout.min_p", f"use rollout.top_p; {_LOCAL}")
    if rollout.stop:
        yield Fault("verl's sampling has no stop strings", "rollout.stop", _LOCAL)
    if rollout.stop_tokens:
        fix = "name them as `eos_token_id` in the model's generation_config.json, which vLLM reads"
        yield Fault("verl's sampling has no stop tokens", "rollout.stop_tokens", fix)
    if rollout.episodes.history == "per_turn":
        fix = "set `keep`: earlier turns stay as they were sampled; or train with engine=local"
        what = "under verl an episode is one sequence of tokens, not one sample per turn"
        yield Fault(what, "rollout.episodes.history", fix)
    yield from _lacking_losses(config)
    yield from _lacking_filters(config)
    if config.update.schedule == "linear":
        yield Fault("verl has only the schedules `constant` and `cosine`", "update.schedule", "choose one of them")
    if config.algorithm.constant_groups == "drop":
        fix = "set `keep`, or `replace`, under which verl samples other problems instead"
        yield Fault("verl's loss averages over every group, and cannot drop any", "algorithm.constant_groups", fix)


def _lacking_filters(config: Config) -> Iterator[Fault]:
    """Yield faults of settings about rewards that verl cannot combine with the replacement of groups."""
    algorithm = config.algorithm
    if algorithm.constant_groups != "replace":
        return
    chosen = algorithm.filter
    if chosen not in FILTER_METRICS:
        fix = f"choose one of {', '.join(FILTER_METRICS)}, or train with engine=local"
        yield Fault(f"verl filters groups by a metric, and cannot call `{chosen}`", "algorithm.filter", fix)
    if algorithm.random_rewards is not None:
        what = "verl replaces groups by their real rewards, before random ones are drawn"
        yield Fault(what, "algorithm.random_rewards", "set algorithm.constant_groups=keep")


def _lacking_losses(config: Config) -> Iterator[Fault]:
    update = config.update
    if fault := choosing_fault(update.loss, loss_named(update.loss)):
        yield fault
    if update.loss in VERLS_LOSSES and update.settings_of_loss.get("ratio") == 0:
        fix = "set a value above 0, or another loss form"
        yield Fault(f"verl's `{update.loss}` needs a ratio above 0", f"update.{update.loss}.ratio", fix)


def _indivisible(config: Config) -> Iterator[Fault]:
    prompts, mini_batch = config.rollout.prompts, config.update.mini_batch or config.rollout.prompts
    rows, ranks = mini_batch * config.rollout.n, config.verl.ranks
    if prompts % mini_batch:
        small = [size for size in range(1, isqrt(prompts) + 1) if prompts % size == 0]
        divisors = ", ".join(map(str, sorted({*small, *(prompts // size for size in small)})))
        what = f"{prompts} problems cannot be divided into mini-batches of {mini_batch}"
        yield Fault(what, "update.mini_batch", f"choose one of {divisors}")
    if rows % ranks:
        fix = "choose rollout.prompts, update.mini_batch and rollout.n so that the ranks get equal parts"
        yield Fault(f"{rows} responses per update cannot be divided among {ranks} ranks", "verl.gpus", fix)
    values = dict(leaves(config.verl.raw))
    for key in (FSDP_SIZE, REFERENCE_FSDP_SIZE):
        # Hydra replaces references such as `${trainer.n_gpus_per_node}` later.
        if key in values and "${" not in str(values[key]) and (fault := fsdp_size_fault(ranks, values[key], key)):
            yield fault
    yield from _splits_of_vllm(config)


def _splits_of_vllm(config: Config) -> Iterator[Fault]:
    """Yield a fault if the GPUs cannot be divided among copies of vLLM. verl itself fails after minutes (assertion)."""
    values, ranks = dict(leaves(config.verl.raw)), config.verl.ranks
    given = {key: values[key] for key in (TENSOR_PARALLEL, *OTHER_PARALLEL) if isinstance(values.get(key), int)}
    for key, size in given.items():
        if size < 1:
            yield Fault(f"{size} is not a number of GPUs", f"verl.{key}", "give 1 or more")
            return
    tensor = given.pop(TENSOR_PARALLEL, tensor_parallel(config))
    more = {key: size for key, size in given.items() if size > 1}
    where = f"verl.{TENSOR_PARALLEL}" if TENSOR_PARALLEL in values else "verl.tensor_parallel"
    if more and tensor == 1:
        where = f"verl.{next(iter(more))}"
    parallel = tensor * prod(more.values())
    sizes = "".join(f" x {size} ({key.rpartition('.')[2]})" for key, size in more.items())
    copy = f"one copy of vLLM ({tensor} tensor-parallel ranks{sizes})"
    if parallel > ranks:
        what = f"{parallel} GPUs are needed for {copy}, and {ranks} can be used (verl.gpus x verl.nodes)"
        lower = "lower the product of these sizes" if more else "lower it"
        yield Fault(what, where, f"{lower} to at most {ranks}, or raise verl.gpus")
    elif ranks % parallel or (not more and config.verl.gpus % parallel):
        gpus = ranks if ranks % parallel else config.verl.gpus
        what = f"{gpus} GPUs cannot be divided into groups of {parallel}, for {copy}"
        yield Fault(what, where, "choose a divisor of verl.gpus")
