"""The names of verl, TransferQueue, transformers and Hydra that the plug-in uses, and a check of an installed verl.

The plug-in was run with `VERL_VERSION`. Another version may have moved or renamed what the plug-in replaces or calls:
`missing_names` finds this in the source files, without importing them. That a name exists does not mean that it still
takes the same arguments, so a version that passes was still not run.

A name is `function`, `Class`, `Class.method` or `Class.attribute` (a field, or an attribute that a method sets). When
the plug-in uses another name of verl, add it here; tests/verl/test_verl_names.py compares the imports.
"""

import ast
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

NAMES: Mapping[str, tuple[str, ...]] = {
    "hydra.core.override_parser.overrides_parser": ("OverridesParser.parse_overrides",),
    "transformers.integrations.sdpa_attention": ("sdpa_attention_forward",),
    "transformers.masking_utils": ("AttentionMaskInterface", "sdpa_mask"),
    "transformers.modeling_utils": ("AttentionInterface",),
    "transfer_queue": ("KVBatchMeta", "kv_batch_get"),
    "verl": ("DataProto",),
    "verl.experimental.agent_loop.agent_loop": (
        "AgentLoopBase.apply_chat_template_kwargs",
        "AgentLoopBase.config",
        "AgentLoopBase.rollout_config",
        "AgentLoopBase.server_manager",
        "AgentLoopBase.tokenizer",
        "AgentLoopMetrics.generate_sequences",
        "AgentLoopMetrics.num_preempted",
        "AgentLoopMetrics.tool_calls",
        "AgentLoopOutput.extra_fields",
        "AgentLoopOutput.metrics",
        "AgentLoopOutput.num_turns",
        "AgentLoopOutput.prompt_ids",
        "AgentLoopOutput.response_ids",
        "AgentLoopOutput.response_logprobs",
        "AgentLoopOutput.response_mask",
        "AgentLoopOutput.reward_score",
        "AgentLoopOutput.routed_experts",
        "_agent_loop_registry",
        "register",
    ),
    "verl.experimental.reward_loop.reward_manager": ("NaiveRewardManager", "register"),
    "verl.experimental.reward_loop.reward_manager.naive": ("NaiveRewardManager.run_single",),
    "verl.trainer.main_ppo": ("run_ppo",),
    "verl.trainer.ppo.core_algos": (
        "ADV_ESTIMATOR_REGISTRY",
        "POLICY_LOSS_REGISTRY",
        "agg_loss",
        "get_policy_loss_fn",
        "register_adv_est",
        "register_policy_loss",
    ),
    "verl.trainer.ppo.ray_trainer": ("RayPPOTrainer",),
    "verl.trainer.ppo.v1": ("PPOTrainer", "PPOTrainerColocateAsync", "PPOTrainerSync"),
    "verl.trainer.ppo.v1.replay_buffer": (
        "ReplayBuffer._sync_metadata_from_transfer_queue",
        "ReplayBuffer.poll_interval",
        "ReplayBuffer.failure_keys",
    ),
    "verl.trainer.ppo.v1.trainer_base": (
        "PPOTrainer._compute_advantage",
        "PPOTrainer._compute_metrics",
        "PPOTrainer._init_dataloader",
        "PPOTrainer._init_tokenizer",
        "PPOTrainer._load_checkpoint",
        "PPOTrainer._log_rollout_data",
        "PPOTrainer._save_checkpoint",
        "PPOTrainer._update_actor",
        "PPOTrainer._val_metrics_update",
        "PPOTrainer.actor_rollout_wg",
        "PPOTrainer.config",
        "PPOTrainer.global_steps",
        "PPOTrainer.replay_buffer",
        "PPOTrainer.tokenizer",
        "PPOTrainer.total_training_steps",
        "PPOTrainer.train_dataset",
        "PPOTrainer.val_dataset",
        "TRAINER_REGISTRY",
    ),
    "verl.utils.config": ("omega_conf_to_dataclass",),
    "verl.utils.ulysses": ("get_ulysses_sequence_parallel_world_size",),
    "verl.workers.utils.losses": ("ppo_loss",),
}
"""Module -> the names that the plug-in replaces, calls, derives from or reads there."""


def missing_names() -> list[str]:
    """Return the names that the installed packages lack, as `module: name`; a whole module if its file is missing."""
    return [missing for module, names in NAMES.items() for missing in _missing(module, names)]


def _missing(module: str, names: tuple[str, ...]) -> Iterator[str]:
    path = _file_of(module)
    if path is None:
        yield f"{module} (the module; it should have {', '.join(names)})"
        return
    defined = defined_names(path.read_text(encoding="utf-8"))
    yield from (f"{module}: {name}" for name in names if name not in defined)


def _file_of(module: str) -> Path | None:
    """Return the source file of a module. Its parents are not imported: the plug-in is loaded while verl is."""
    top, *parts = module.split(".")
    spec = find_spec(top)
    for root in (spec.submodule_search_locations or ()) if spec else ():
        place = Path(root, *parts)
        for path in (place / "__init__.py", place.with_suffix(".py")):
            if path.is_file():
                return path
    return None


def defined_names(source: str) -> set[str]:
    """Return what a module defines or imports at its top level, and the members of its classes.

    >>> sorted(defined_names("import a.b as c\\nclass D:\\n x: int\\n def f(self):\\n  self.y = 1"))
    ['D', 'D.f', 'D.x', 'D.y', 'c']
    """
    found: set[str] = set()
    for node in _statements(ast.parse(source).body):
        found |= set(_names_of(node))
        if isinstance(node, ast.ClassDef):
            for member in _statements(node.body):
                found |= {f"{node.name}.{name}" for name in _names_of(member)}
            found |= {f"{node.name}.{name}" for name in _set_on_self(node)}
    return found


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, also those below `if` and `try`."""
    for node in body:
        yield node
        for part in ("body", "orelse", "handlers", "finalbody") if isinstance(node, ast.If | ast.Try) else ():
            for inner in getattr(node, part, []):
                yield from _statements(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


def _names_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    else:
        yield from (name.id for target in _targets(node) for name in ast.walk(target) if isinstance(name, ast.Name))


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _set_on_self(owner: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(owner):
        for target in _targets(node):
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                    yield part.attr
