"""The reward manager `hybrid` for verl's reward loop: mathematics and code in one data set.

    reward.reward_manager.name=hybrid

Each row is judged by the reward that its `ability` names (`math` or `code`), whatever its data source is. The column
`ability` has precedence over `extra_info.ability`. Settings of the reward (`mode`, `tags`, `reasons`) are read from
`reward.custom_reward_function.reward_kwargs`, as for `egpo.verl.reward`.

This module is imported after verl has imported its own reward managers.
"""

from functools import partial
from typing import Any

import numpy as np
from verl.experimental.reward_loop.reward_manager import NaiveRewardManager, register

from egpo.errors import InputError
from egpo.rewards.plain_values import fields_of
from egpo.verl.plugin_checks import HYBRID_MANAGER, OUR_REWARD
from egpo.verl.reward import compute_score
from verl import DataProto

HYBRID_SOURCE = "mixed"
"""The data source that selects the hybrid reward. Records name it as `judged_by`."""


class HybridReward(NaiveRewardManager):  # type: ignore[misc]
    """verl's `naive` manager with our hybrid reward, in place of the reward that verl chooses by data source."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **more: Any) -> None:
        chosen = config.reward.get("custom_reward_function") or {}
        if chosen.get("path") and OUR_REWARD not in str(chosen["path"]):
            raise InputError(
                f"reward manager `hybrid` would never call `{chosen['path']}`: it judges by the row's `ability`",
                where="reward.custom_reward_function.path",
                fix="leave the path out, or set reward.reward_manager.name=naive",
            )
        super().__init__(config, tokenizer, partial(_judge, dict(chosen.get("reward_kwargs") or {})), **more)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """Return `reward_score`, and as `reward_extra_info` everything else that `egpo.verl.reward` returns."""
        data = data[-1:]  # as in verl: if a conversation has several sequences, the last one is judged
        columns = data.non_tensor_batch
        extra = dict(fields_of(columns["extra_info"][0], "extra_info")) if "extra_info" in columns else {}
        if "ability" in columns:
            extra["ability"] = columns["ability"][0]
        columns["extra_info"] = np.array([extra], dtype=object)
        result: dict[str, Any] = await super().run_single(data)
        return result


def _judge(settings: dict[str, Any], **row: Any) -> dict[str, float | str]:
    return compute_score(**{**row, **settings, "data_source": HYBRID_SOURCE})


def register_hybrid_manager() -> None:
    register(HYBRID_MANAGER)(HybridReward)
