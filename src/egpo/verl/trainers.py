"""verl's trainers, extended: they pass entropy, responses and correctness to our estimators and log our metrics.

The table `TRAINERS` maps verl's trainer mode to our trainer, which replaces verl's under the same name. To support
another mode, derive a class from `EntropyTrainer` and verl's trainer, and add a row here and to `HOOKED_MODES` in
`plugin_checks.py`. This module is imported after verl has imported its own trainers: it needs Ray and TransferQueue.
"""

import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSync

from egpo.advantages.signals import Metrics
from egpo.runs.dump import write_dump
from egpo.segments.tags import TokenTexts
from egpo.verl.control import EntropyControl
from egpo.verl.dumps import FIELDS as DUMPED_FIELDS
from egpo.verl.dumps import (
    RECORD_VARIABLE,
    DumpSettings,
    UpdateInputs,
    rollout_records,
    settings_of_update,
    write_record,
)
from egpo.verl.estimators import EstimatorInputs, estimator_for, register_estimators, with_inputs
from egpo.verl.measures import corrected_metrics, measure, step_metrics, truncated_fraction, usable_tags
from egpo.verl.plugin_checks import PREFIX, check_data_sources, end_on_failures, plugin_plan
from egpo.verl.rows import (
    FIELDS,
    OPTIONAL_FIELDS,
    TOKEN_FIELDS,
    TokenTables,
    find_responses,
    require_judged,
    rows_of,
)
from egpo.verl.settings import RUN_WITH, VERLS_OWN, installed_version, is_due
from egpo.verl.validation import ExpectedCounts, Information, judged_validation
from egpo.version import __version__

POLL_S = 0.25
"""Seconds between two looks at finished responses. With verl's 2 s, a trainer waits about a second more per step."""


class EntropyTrainer:
    """A base class, combined with one of verl's trainers, that adds our estimators, metrics and checks.

    Unsupported configurations are refused in the constructor, before the first step. In a run that uses nothing of ours
    every method only calls verl's own.
    """

    config: Any
    tokenizer: Any
    global_steps: int

    def __init__(self, config: DictConfig) -> None:
        self._corrected: Metrics = {}
        self._control: EntropyControl | None = None
        self.plan = plugin_plan(OmegaConf.to_container(config, resolve=True))
        if ":" in self.plan.settings.estimator:
            register_estimators(core_algos, [self.plan.settings.estimator])
        if self.plan.settings.controller is not None:
            self._control = EntropyControl(self.plan.settings.controller)
        # verl compares the mode with its own names, which have no prefix.
        config.trainer.v1.trainer_mode = self.plan.mode
        super().__init__(config)  # type: ignore[call-arg]
        if self.plan.active:
            buffer = self.replay_buffer  # type: ignore[attr-defined]
            buffer.poll_interval = min(buffer.poll_interval, POLL_S)
            print(f"egpo {__version__} in verl {installed_version()}; {RUN_WITH}", flush=True)
        if self.plan.active and not config.trainer.v1.sampler.get("sync_refill_failed_groups", False):
            end_on_failures(self.replay_buffer)  # type: ignore[attr-defined]

    def _init_tokenizer(self) -> None:
        super()._init_tokenizer()  # type: ignore[misc]
        if self.plan.active:
            settings = self.plan.settings
            self.tags = usable_tags(settings.tags, self.tokenizer, settings.segment)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()  # type: ignore[misc]
        if self.plan.active:
            config = OmegaConf.to_container(self.config, resolve=True)
            datasets = self.train_dataset, self.val_dataset  # type: ignore[attr-defined]
            check_data_sources(config, {source for one in datasets for source in _data_sources(one)}, self.tokenizer)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if not self.plan.active:
            return super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        inputs = self._drawn(self._read(batch))
        require_judged(inputs.rows)
        algorithm = self.config.algorithm
        chosen, algorithm.adv_estimator = algorithm.adv_estimator, estimator_for(inputs)
        try:
            with with_inputs(inputs):
                batch = super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        finally:
            algorithm.adv_estimator = chosen
        if not self.plan.settings.ours:
            # Only for their metrics: the advantages used are verl's.
            chosen = self.plan.settings.estimator
            inputs.advantages(chosen if chosen in VERLS_OWN else "grpo", inputs.rows.score_B)
        metrics.update(step_metrics(inputs.rows, inputs.measures) | inputs.metrics)
        drawn = {name: value for name, value in inputs.metrics.items() if name.startswith("critic/rewards/")}
        self._corrected = corrected_metrics(inputs.rows) | drawn
        self._record(batch, inputs)
        return batch

    def _drawn(self, inputs: EstimatorInputs) -> EstimatorInputs:
        """Return the inputs with rewards drawn at random, if the configuration asks for them (a control run)."""
        probability = self.plan.settings.random_rewards
        if probability is None:
            return inputs
        draws = np.random.default_rng([int(self.config.data.get("seed") or 0), self.global_steps])
        drawn_B = torch.from_numpy(draws.random(len(inputs.rows.groups)) < probability).float()
        return replace(inputs, drawn_B=drawn_B)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if self._control is not None:
            actor, workers = self.config.actor_rollout_ref.actor, self.actor_rollout_wg  # type: ignore[attr-defined]
            metrics.update(self._control.apply(metrics, actor, workers))
        return super()._update_actor(batch, metrics)  # type: ignore[misc]

    def _save_checkpoint(self) -> None:
        if self._control is not None:
            # Before verl's own files: a checkpoint that is complete has the state.
            self._control.save(Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}")
        super()._save_checkpoint()  # type: ignore[misc]

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()  # type: ignore[misc]
        if self._control is not None and self.global_steps:
            trainer = self.config.trainer
            folder = Path(trainer.default_local_dir) / f"global_step_{self.global_steps}"
            chosen = trainer.resume_from_path if trainer.resume_mode == "resume_path" else folder
            self._control.load(Path(str(chosen)))

    def _read(self, batch: KVBatchMeta) -> EstimatorInputs:
        responses = find_responses(batch.keys, batch.tags)
        keys = [batch.keys[row] for row in responses.row_B.tolist()]
        rows = rows_of(
            tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=[*FIELDS, *OPTIONAL_FIELDS]),
            responses.groups,
        )
        settings, tokens = self.plan.settings, None
        if settings.per_token:
            data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=TOKEN_FIELDS)
            tokens = TokenTables.of(data)
        return EstimatorInputs(settings, responses, rows, measure(rows, self.tokenizer, self.tags), tokens)

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict[str, Any], *rest: Any, **named: Any) -> None:
        super()._compute_metrics(batch, metrics, *rest, **named)  # type: ignore[misc]
        if self.plan.active:
            metrics |= truncated_fraction(batch.tags, self.config.data.max_response_length) | self._corrected

    def _val_metrics_update(
        self, data_sources: Any, sample_uids: Any, reward_extra_infos_dict: Any, sample_turns: Any, **named: Any
    ) -> dict[str, float]:
        verls, expected = super()._val_metrics_update, named.pop("expected_acc_counts", None)  # type: ignore[misc]

        def compute(information: Information, counts: ExpectedCounts | None) -> Metrics:
            found = verls(data_sources, sample_uids, information, sample_turns, expected_acc_counts=counts, **named)
            return dict(found)

        if not self.plan.active:
            return compute(reward_extra_infos_dict, expected)
        return judged_validation(compute, data_sources, sample_uids, reward_extra_infos_dict, expected)

    def _log_rollout_data(self, batch: KVBatchMeta, timing_raw: dict[str, Any], rollout_data_dir: str) -> None:
        if not self.plan.active:
            super()._log_rollout_data(batch, timing_raw, rollout_data_dir)  # type: ignore[misc]
        elif is_due(self.global_steps, self.total_training_steps):  # type: ignore[attr-defined]
            inputs = self._read(batch)
            keys = [batch.keys[row] for row in inputs.responses.row_B.tolist()]
            data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=DUMPED_FIELDS)
            longest = self.config.data.max_response_length
            dump = DumpSettings(self.tokenizer, TokenTexts(self.tokenizer), longest)
            records = rollout_records(inputs, data, self.global_steps, dump)
            Path(rollout_data_dir).mkdir(parents=True, exist_ok=True)
            write_dump(Path(rollout_data_dir) / f"{self.global_steps}.jsonl", records)

    def _record(self, batch: KVBatchMeta, inputs: EstimatorInputs) -> None:
        folder = self.plan.settings.record or os.environ.get(RECORD_VARIABLE)
        if not folder:
            return
        keys = [batch.keys[row] for row in inputs.responses.row_B.tolist()]
        wanted = ["advantages", "token_level_rewards", "rm_scores", "ref_log_prob"]
        data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=wanted).to_padded_tensor()
        rewards = data["token_level_rewards"] if "token_level_rewards" in data else data["rm_scores"]
        used = UpdateInputs(
            reward_B=inputs.rewards(rewards.sum(-1)),
            advantage_BT=data["advantages"],
            reference_BT=data.get("ref_log_prob"),
            settings=settings_of_update(OmegaConf.to_container(self.config, resolve=True)),
        )
        write_record(Path(folder), self.global_steps, inputs, used)


def _data_sources(dataset: Any) -> list[str]:
    """Return the distinct values of the column `data_source`; a custom dataset class may have no such column."""
    frame: Any = getattr(dataset, "dataframe", None)
    return list(frame.unique("data_source")) if "data_source" in getattr(frame, "column_names", []) else []


class EgpoSync(EntropyTrainer, PPOTrainerSync):  # type: ignore[misc]
    """The trainer of the modes `sync` and `egpo_sync`. The second logs our metrics under any estimator."""


class EgpoColocateAsync(EntropyTrainer, PPOTrainerColocateAsync):  # type: ignore[misc]
    """The trainer of the modes `colocate_async` and `egpo_colocate_async`.

    A response may have been sampled with older weights than those whose entropy is measured.
    """


TRAINERS = {"sync": EgpoSync, "colocate_async": EgpoColocateAsync}


def register_trainers(trainer_base: ModuleType) -> None:
    """Replace verl's trainers in its table, so that an unchanged verl command uses ours.

    The table is written directly because verl's `register_trainer` refuses a name that exists.
    """
    for mode, trainer in TRAINERS.items():
        trainer_base.TRAINER_REGISTRY[mode] = trainer
        trainer_base.TRAINER_REGISTRY[PREFIX + mode] = trainer
