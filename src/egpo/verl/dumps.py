"""Files written after each training step under verl: the responses and, if requested, the batch.

`rollout_records` makes the same records as the embedded engine: text, verdict, entropy of each token. (verl's own dump
has only text and score.) `write_record` stores a batch with what verl's update used; the conformance tests replay it,
through the stages of the embedded engine and through its update. In the names of tensors, B is the number of responses,
S of prompt tokens, T of response tokens. This module needs torch, but not verl.
"""

import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from egpo.files import write_atomically
from egpo.runs.dump import RolloutRecord, TokenSpan, token_spans
from egpo.segments.tags import TokenTexts
from egpo.verl.episode_player import COLUMN
from egpo.verl.estimators import EstimatorInputs

FIELDS = ["reward_model", "data_source", "extra_info", "advantages"]
"""Fields of verl's batch that a record needs besides those in `EstimatorInputs`."""
_SET_BY_VERL = ("num_turns", "rollout_reward_scores", "split", "index")


@dataclass(frozen=True, eq=False)
class DumpSettings:
    """The settings of a dump of responses.

    `texts` splits a response into the texts of its tokens; `longest` is the maximum length of a response in tokens.
    """

    tokenizer: Any
    texts: TokenTexts
    longest: int


def rollout_records(inputs: EstimatorInputs, data: Any, step: int, dump: DumpSettings) -> Iterator[RolloutRecord]:
    """Yield one record per response. `data` is a TensorDict with `FIELDS`, one row per response."""
    rows, tokenizer = inputs.rows, dump.tokenizer
    length_B = [int(mask_T.nonzero()[-1]) + 1 if bool(mask_T.any()) else 0 for mask_T in rows.mask_BT]
    prompts = [ids[mask].tolist() for ids, mask in zip(rows.prompt_BS, rows.prompt_mask_BS, strict=True)]
    names_B, verdict_B = _segment_names(inputs), rows.verdict_B
    advantages = data["advantages"].to_padded_tensor(0) if data["advantages"].is_nested else data["advantages"]
    truths, sources, extras = (_listed(data, name, len(length_B)) for name in FIELDS[:3])
    seen: Counter[str] = Counter()
    # verl reorders a batch to balance its ranks; the dump lists the responses of a group one after the other.
    for row in sorted(range(len(length_B)), key=rows.group_B.tolist().__getitem__):
        length = length_B[row]
        ids = rows.response_BT[row, :length].tolist()
        output = tokenizer.decode(ids, skip_special_tokens=True)
        judged, extra = rows.information[row], _mapping(extras[row])
        fields = rows.loop_fields[row] if rows.loop_fields else {}
        if COLUMN in fields:
            extra = {**extra, COLUMN: json.loads(fields[COLUMN])}
        yield RolloutRecord(
            input=tokenizer.decode(prompts[row]),
            output=output,
            gts=_mapping(truths[row]).get("ground_truth"),
            score=float(verdict_B[row]),
            step=step,
            acc=bool(judged.get("acc", False)),
            reason=str(judged.get("reason", "")),
            problem=_problem(extra, rows.groups[row]),
            sample=seen[rows.groups[row]],
            advantage=_mean_where(advantages[row], rows.mask_BT[row]),
            failed=bool(judged.get("failed", False)),
            finished=bool(fields.get("finished", length < dump.longest)),
            data_source=str(sources[row] or ""),
            extra_info={name: value for name, value in extra.items() if name not in _SET_BY_VERL},
            segments={name: float(entropy_B[row]) for name, entropy_B in inputs.measures.entropy.items()},
            tokens=dump.texts.parts(ids, output),
            token_entropy=_where(rows.entropy_BT[row, :length], rows.mask_BT[row, :length]),
            token_segment=_spans(names_B, row, length),
        )
        seen[rows.groups[row]] += 1


def _segment_names(inputs: EstimatorInputs) -> dict[str, Tensor]:
    segments = inputs.measures.segments
    return {} if segments is None else {name: segments.named(name) for name in ("thinking", "answer")}


def _spans(names_B: Mapping[str, Tensor], row: int, length: int) -> tuple[TokenSpan, ...]:
    masks = {name: mask_BT[row, :length].tolist() for name, mask_BT in names_B.items()}
    return token_spans(next((name for name, mask in masks.items() if mask[i]), None) for i in range(length))


def _where(value_T: Tensor, mask_T: Tensor) -> list[float | None]:
    """Return the values as a list, with None for tokens that the model did not write (a tool's output)."""
    return [value if own else None for value, own in zip(value_T.tolist(), mask_T.tolist(), strict=True)]


def _mean_where(value_T: Tensor, mask_T: Tensor) -> float | None:
    """Return the mean of a response's advantages over its tokens; None if the model wrote no token."""
    own = value_T[: len(mask_T)][mask_T[: len(value_T)]]
    if not len(own):
        return None
    # Equal advantages stay exactly what they are; their mean could be off by rounding.
    return float(own[0]) if bool((own == own[0]).all()) else float(own.mean())


def _problem(extra: Mapping[str, Any], group: str) -> str:
    """Return the problem's key: `split index` for our data files, otherwise verl's uid, which is new at every step."""
    return f"{extra['split']} {extra['index']}" if "split" in extra and "index" in extra else group


def _listed(data: Any, name: str, count: int) -> Sequence[Any]:
    found = data.get(name)
    return [None] * count if found is None else found.tolist()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


RECORD_VARIABLE = "EGPO_VERL_RECORD"
"""Environment variable that names the folder of the records if `algorithm.egpo.record` does not."""


UPDATE_KEYS = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.temperature",
    "algorithm.rollout_correction",
    "data.max_response_length",
    "data.train_batch_size",
    "trainer.n_gpus_per_node",
    "trainer.nnodes",
    "trainer.total_training_steps",
)
"""Sections and keys of verl's configuration that decide what its update does with a batch."""
_NO_PART_OF_THE_UPDATE = ("checkpoint", "profiler")


def settings_of_update(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what verl's configuration (plain values) has under `UPDATE_KEYS`, by these keys."""
    found = {key: _at(config, key) for key in UPDATE_KEYS}
    actor = _mapping(found[UPDATE_KEYS[0]])
    return {**found, UPDATE_KEYS[0]: {name: one for name, one in actor.items() if name not in _NO_PART_OF_THE_UPDATE}}


def _at(config: Mapping[str, Any], key: str) -> Any:
    found: Any = config
    for part in key.split("."):
        found = _mapping(found).get(part)
    return found


@dataclass(frozen=True, eq=False)
class UpdateInputs:
    """What verl's update got besides the batch: `reward_B` is what the estimator received, `advantage_BT` what the loss
    received, `reference_BT` the reference policy's log-probabilities, None without a reference. `settings`: those of
    `settings_of_update`."""

    reward_B: Tensor
    advantage_BT: Tensor
    reference_BT: Tensor | None
    settings: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded batch of one step. `reward_B` is what the estimator received, `advantage_BT` what the loss received.

    `about` contains the estimator's name and arguments, the segment whose entropy it uses, the thinking tags, verl's
    settings of the update (`update`; if a controller sets the entropy's weight, that of the step before), and the
    number of rows of verl's batch (`num_rows`), padding and earlier outputs of a session included. `row_B`: the row of
    each response in that batch, whose order decides which responses are in one mini-batch. `sampled_logp_BT`: what vLLM
    recorded while sampling; None if verl did not ask for it. `reference_BT`: None without a reference policy.
    """

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
    row_B: NDArray[np.int64] | None = None
    sampled_logp_BT: NDArray[np.float32] | None = None
    reference_BT: NDArray[np.float32] | None = None


def write_record(folder: Path, step: int, inputs: EstimatorInputs, used: UpdateInputs) -> Path:
    """Write a step's batch to `step_<N>.npz` (arrays and one JSON text, nothing pickled), and return the path."""
    rows, settings, opened_B = inputs.rows, inputs.settings, inputs.measures.opened_B
    correct_B = rows.correct_B
    about = {
        "estimator": settings.estimator,
        "segment": settings.segment,
        "arguments": settings.arguments,
        "tags": settings.tags,
        "num_rows": len(inputs.responses.response_N),
        "update": used.settings,
    }
    tables: dict[str, Any] = {
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
        "reward_B": used.reward_B.numpy(),
        "advantage_BT": used.advantage_BT.numpy(),
        "row_B": inputs.responses.row_B.numpy(),
    }
    if rows.sampled_logp_BT is not None:
        tables["sampled_logp_BT"] = rows.sampled_logp_BT.numpy()
    if used.reference_BT is not None:
        tables["reference_BT"] = used.reference_BT.numpy()
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
