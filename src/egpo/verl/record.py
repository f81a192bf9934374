"""A step's batch on disk, with the advantages that verl used: what the conformance test replays. B, S, T as in rows."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from egpo.files import write_atomically
from egpo.verl.estimators import Feed

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
