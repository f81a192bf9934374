"""A reward that raises ends the run.

verl lets a response go whose rollout or reward raised: it logs a traceback, trains on the rest of the group, and an
asynchronous trainer samples in its place for ever.

A step's batch on disk, with the advantages that verl used: what the conformance test replays. B, S, T as in rows.

verl's trainers, with entropy, responses and correctness laid beside the estimator's call.

Imported once verl has imported its own trainers: what is here needs Ray and TransferQueue.
"""

import functools
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import transfer_queue as tq
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSync

from egpo.errors import EgpoError
from egpo.files import write_atomically
from egpo.runs.dump import write_dump
from egpo.segments.tags import TokenTexts
from egpo.verl.checks import PREFIX, check_data_sources, plan_of
from egpo.verl.dumps import FIELDS as DUMPED_FIELDS
from egpo.verl.dumps import Dumped, rollout_records
from egpo.verl.estimators import Feed, feeding, register_estimators
from egpo.verl.measures import cut_off, measure, spellable, step_metrics
from egpo.verl.rows import FIELDS, find_responses, rows_of
from egpo.verl.settings import is_due


def end_on_failures(replay_buffer: Any) -> None:
    """`replay_buffer` complains as soon as it learns that a prompt's responses failed."""
    synchronise = replay_buffer._sync_metadata_from_transfer_queue

    @functools.wraps(synchronise)
    def synchronise_and_look() -> None:
        synchronise()
        num_failed = sum(len(uids) for uids in replay_buffer.failure_keys.values())
        if num_failed:
            raise EgpoError(
                f"the rollout or the reward of {num_failed} prompt{'s' * (num_failed > 1)} raised",
                where="rollouts",
                fix="the traceback stands above, after `Error in _run_prompt`: mend what it names",
            )

    replay_buffer._sync_metadata_from_transfer_queue = synchronise_and_look


VARIABLE = "EGPO_VERL_RECORD"
"""Names the folder where `+algorithm.egpo.record` does not."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """`reward_B` as the estimator saw it, `advantage_BT` as verl's loss did. `about`: estimator, arguments, tags."""

    groups: NDArray[np.str_]
    prompt_BS: NDArray[np.int64]
    prompt_mask_BS: NDArray[np.bool_]
    response_BT: NDArray[np.int64]
    mask_BT: NDArray[np.bool_]
    entropy_BT: NDArray[np.float32]
    logp_BT: NDArray[np.float32]
    opened_B: NDArray[np.bool_]
    failed_B: NDArray[np.bool_]
    correct_B: NDArray[np.bool_]
    reward_B: NDArray[np.float32]
    advantage_BT: NDArray[np.float32]
    about: Mapping[str, Any]


def write_record(folder: Path, step: int, feed: Feed, reward_B: Any, advantage_BT: Any) -> Path:
    """`step_<N>.npz`: arrays and one JSON text, nothing pickled."""
    rows, settings, opened_B = feed.rows, feed.settings, feed.measures.opened_B
    correct_B = rows.correct_B
    about = {
        "estimator": settings.estimator,
        "segment": settings.segment,
        "arguments": settings.arguments,
        "tags": settings.tags,
    }
    tables = {
        "groups": np.array(rows.groups),
        "prompt_BS": rows.prompt_BS.numpy(),
        "prompt_mask_BS": rows.prompt_mask_BS.numpy(),
        "response_BT": rows.response_BT.numpy(),
        "mask_BT": rows.mask_BT.numpy(),
        "entropy_BT": rows.entropy_BT.numpy(),
        "logp_BT": rows.logp_BT.numpy(),
        "opened_B": np.zeros(len(rows.groups), bool) if opened_B is None else opened_B.numpy(),
        "failed_B": rows.failed_B.numpy(),
        "correct_B": np.zeros(len(rows.groups), bool) if correct_B is None else correct_B.numpy(),
        "reward_B": reward_B.numpy(),
        "advantage_BT": advantage_BT.numpy(),
    }
    content = io.BytesIO()
    np.savez_compressed(content, about=np.array(json.dumps(about)), **tables)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step}.npz"
    write_atomically(path, content.getvalue())
    return path


def read_record(path: Path) -> Recorded:
    with np.load(path, allow_pickle=False) as stored:
        tables = {name: stored[name] for name in stored.files if name != "about"}
        return Recorded(**tables, about=json.loads(str(stored["about"])))


class Fed:
    """Before one of verl's trainers: its `_compute_advantage` with our estimators and metrics, and refusals before the
    first step. A run that asks for nothing of ours goes past all of it."""

    config: Any
    tokenizer: Any
    global_steps: int

    def __init__(self, config: DictConfig) -> None:
        self.plan = plan_of(OmegaConf.to_container(config, resolve=True))
        if ":" in self.plan.settings.estimator:
            register_estimators(core_algos, [self.plan.settings.estimator])
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
