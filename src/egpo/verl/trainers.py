"""verl's trainers, with entropy, responses and correctness laid beside the estimator's call.

Imported once verl has imported its own trainers: what is here needs Ray and TransferQueue.
"""

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSync

from egpo.runs.dump import write_dump
from egpo.segments.token_texts import TokenTexts
from egpo.verl.checks import PREFIX, check_data_sources, plan_of
from egpo.verl.dump_period import is_due
from egpo.verl.dumps import FIELDS as DUMPED_FIELDS
from egpo.verl.dumps import Dumped, rollout_records
from egpo.verl.estimators import Feed, feeding
from egpo.verl.failures import end_on_failures
from egpo.verl.measures import measure, spellable
from egpo.verl.record import VARIABLE, write_record
from egpo.verl.responses import find_responses
from egpo.verl.rows import FIELDS, rows_of
from egpo.verl.step_metrics import cut_off, step_metrics


class Fed:
    """Before one of verl's trainers: its `_compute_advantage` with our estimators and metrics, and refusals before the
    first step. A run that asks for nothing of ours goes past all of it."""

    config: Any
    tokenizer: Any
    global_steps: int

    def __init__(self, config: DictConfig) -> None:
        self.plan = plan_of(OmegaConf.to_container(config, resolve=True))
        # verl compares the mode with its own names.
        config.trainer.v1.trainer_mode = self.plan.mode
        super().__init__(config)  # type: ignore[call-arg]
        if self.plan.active and not config.trainer.v1.sampler.get("sync_refill_failed_groups", False):
            end_on_failures(self.replay_buffer)  # type: ignore[attr-defined]

    def _init_tokenizer(self) -> None:
        super()._init_tokenizer()  # type: ignore[misc]
        if self.plan.active:
            settings = self.plan.settings
            self.tags = spellable(settings.tags, self.tokenizer, settings.segment)

    def _init_dataloader(self) -> None:
        super()._init_dataloader()  # type: ignore[misc]
        if self.plan.active:
            config = OmegaConf.to_container(self.config, resolve=True)
            datasets = self.train_dataset, self.val_dataset  # type: ignore[attr-defined]
            check_data_sources(config, {source for one in datasets for source in _data_sources(one)}, self.tokenizer)

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        if not self.plan.active:
            return super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        feed = self._read(batch)
        with feeding(feed):
            batch = super()._compute_advantage(batch, metrics)  # type: ignore[misc]
        if not self.plan.settings.ours:
            feed.advantages("grpo", feed.rows.score_B)  # for its metrics: the advantages are verl's
        metrics.update(step_metrics(feed.rows, feed.measures) | feed.metrics)
        self._record(batch, feed)
        return batch

    def _read(self, batch: KVBatchMeta) -> Feed:
        responses = find_responses(batch.keys, batch.tags)
        keys = [batch.keys[row] for row in responses.row_B.tolist()]
        rows = rows_of(
            tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=FIELDS), responses.groups
        )
        return Feed(self.plan.settings, responses, rows, measure(rows, self.tokenizer, self.tags))

    def _compute_metrics(self, batch: KVBatchMeta, metrics: dict[str, Any], *rest: Any, **named: Any) -> None:
        super()._compute_metrics(batch, metrics, *rest, **named)  # type: ignore[misc]
        if self.plan.active:
            metrics |= cut_off(batch.tags, self.config.data.max_response_length)

    def _log_rollout_data(self, batch: KVBatchMeta, timing_raw: dict[str, Any], rollout_data_dir: str) -> None:
        if not self.plan.active:
            super()._log_rollout_data(batch, timing_raw, rollout_data_dir)  # type: ignore[misc]
        elif is_due(self.global_steps, self.total_training_steps):  # type: ignore[attr-defined]
            feed = self._read(batch)
            keys = [batch.keys[row] for row in feed.responses.row_B.tolist()]
            data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=DUMPED_FIELDS)
            longest = self.config.data.max_response_length
            dumped = Dumped(self.tokenizer, TokenTexts(self.tokenizer), self.tags, longest)
            records = rollout_records(feed, data, self.global_steps, dumped)
            write_dump(Path(rollout_data_dir) / f"{self.global_steps}.jsonl", records)

    def _record(self, batch: KVBatchMeta, feed: Feed) -> None:
        folder = self.plan.settings.record or os.environ.get(VARIABLE)
        if not folder:
            return
        keys = [batch.keys[row] for row in feed.responses.row_B.tolist()]
        wanted = ["advantages", "token_level_rewards", "rm_scores"]
        used = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=wanted).to_padded_tensor()
        rewards = used["token_level_rewards"] if "token_level_rewards" in used else used["rm_scores"]
        write_record(Path(folder), self.global_steps, feed, rewards.sum(-1), used["advantages"])


def _data_sources(dataset: Any) -> list[str]:
    """The values of the column; a dataset of one's own may have none."""
    frame: Any = getattr(dataset, "dataframe", None)
    return list(frame.unique("data_source")) if "data_source" in getattr(frame, "column_names", []) else []


class FedSync(Fed, PPOTrainerSync):  # type: ignore[misc]
    """`sync`, and `egpo_sync`: with our metrics under any estimator."""


class FedColocateAsync(Fed, PPOTrainerColocateAsync):  # type: ignore[misc]
    """`colocate_async`, and `egpo_colocate_async`. A response may have been sampled by older weights than those whose
    entropy is measured."""


TRAINERS = {"sync": FedSync, "colocate_async": FedColocateAsync}


def register_trainers(trainer_base: ModuleType) -> None:
    """Ours take the place of verl's in its table, so that a stock command works; `register_trainer` only adds."""
    for mode, trainer in TRAINERS.items():
        trainer_base.TRAINER_REGISTRY[mode] = trainer
        trainer_base.TRAINER_REGISTRY[PREFIX + mode] = trainer
