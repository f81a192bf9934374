"""Reads verl's batch, one row per response.

In the names of tensors, N is the number of rows of the batch, B of responses, S of prompt tokens, T of response tokens.
N may be greater than B: an agent loop may put several outputs of one session into the batch, and verl adds padding
rows. `find_responses` selects the rows; `rows_of` reads their tensors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from egpo.environments.records import EpisodeRecord, episode_verdicts
from egpo.verl.episode_player import COLUMN


@dataclass(frozen=True, eq=False)
class Responses:
    """The responses in verl's batch. `row_B`: the row of each session's last output, which is the one that is judged.

    `groups`: the uid of each response's prompt. `response_N`: the response that a row of the batch belongs to, -1 for
    padding. `output_N`: the number of the row among the outputs of its session, from 0; 0 for padding.
    """

    row_B: Tensor
    groups: tuple[str, ...]
    response_N: Tensor
    output_N: Tensor

    def to_rows(self, value_B: Tensor) -> Tensor:
        """Return one value for each row of the batch: that of the row's response, or 0 for padding."""
        return torch.cat([value_B, value_B.new_zeros(1)])[self.response_N]

    def joined(self, value_NT: Tensor) -> Tensor:
        """Return the tokens of each response: those of its outputs one after the other, each T places long."""
        real_N = self.response_N >= 0
        num_outputs, length = int(self.output_N.max()) + 1, value_NT.shape[1]
        value_BOT = value_NT.new_zeros(len(self.row_B), num_outputs, length)
        value_BOT[self.response_N[real_N], self.output_N[real_N]] = value_NT[real_N]
        return value_BOT.flatten(1)

    def apart(self, value_BT: Tensor) -> Tensor:
        """Return the inverse of `joined`, with 0 for padding."""
        value_BOT = value_BT.reshape(len(value_BT), int(self.output_N.max()) + 1, -1)
        value_NT = value_BOT[self.response_N.clamp(min=0), self.output_N]
        return value_NT * (self.response_N >= 0).unsqueeze(1)


def find_responses(keys: Sequence[str], tags: Sequence[Mapping[str, Any]]) -> Responses:
    """Select the rows that are responses. As in verl's GRPO, the output with the highest index represents a session.

    verl's keys have the form `uid_session_index`.
    """
    outputs: dict[str, list[tuple[int, int]]] = {}
    for row, (key, tag) in enumerate(zip(keys, tags, strict=True)):
        session, _, index = key.rpartition("_")
        if not tag.get("is_padding", False):
            outputs.setdefault(session, []).append((int(index), row))
    response_N = torch.full((len(keys),), -1, dtype=torch.long)
    output_N = torch.zeros(len(keys), dtype=torch.long)
    for number, held in enumerate(outputs.values()):
        for place, (_, row) in enumerate(sorted(held)):
            response_N[row], output_N[row] = number, place
    return Responses(
        row_B=torch.tensor([max(held)[1] for held in outputs.values()], dtype=torch.long),
        groups=tuple(session.rpartition("_")[0] for session in outputs),
        response_N=response_N,
        output_N=output_N,
    )


@dataclass(frozen=True, eq=False)
class Rows:
    """The responses of a batch as tensors on the CPU.

    `logp_BT` and `entropy_BT` are of the policy before the update, at the sampling temperature. `sampled_logp_BT` is
    what vLLM recorded; None if verl does not ask for it (`rollout.calculate_log_probs=false`).
    `mask_BT`: tokens that the model wrote, not tool results. `information`: what the reward returned besides its score.
    `loop_fields`: what the agent loop returned besides tokens; of an episode, its record (`episode`) and `finished`.
    """

    groups: tuple[str, ...]
    prompt_BS: Tensor
    prompt_mask_BS: Tensor
    response_BT: Tensor
    mask_BT: Tensor
    entropy_BT: Tensor
    logp_BT: Tensor
    score_B: Tensor
    sampled_logp_BT: Tensor | None
    information: tuple[Mapping[str, Any], ...]
    loop_fields: tuple[Mapping[str, Any], ...] = ()

    @property
    def are_episodes(self) -> bool:
        """Whether a response is an episode of ours: it may have several turns, with tokens of others between them."""
        return any(COLUMN in fields for fields in self.loop_fields)

    @property
    def group_B(self) -> Tensor:
        """The group of each response, as a number in order of appearance."""
        number_of = {group: number for number, group in enumerate(dict.fromkeys(self.groups))}
        return torch.tensor([number_of[group] for group in self.groups], dtype=torch.long)

    @property
    def failed_B(self) -> Tensor:
        """Whether the checker could not judge each response."""
        return torch.tensor([bool(known.get("failed", False)) for known in self.information], dtype=torch.bool)

    @property
    def verdict_B(self) -> Tensor:
        """The score of each verdict. verl's reward differs from it if its reward manager subtracts a penalty."""
        known = zip(self.information, self.score_B.tolist(), strict=True)
        return torch.tensor([float(one.get("score", score)) for one, score in known], dtype=self.score_B.dtype)

    @property
    def correct_B(self) -> Tensor | None:
        """Whether each response is correct; None if the reward returns no `acc`, or one that is not 0 or 1."""
        said = [known.get("acc") for known in self.information]
        return torch.tensor([bool(one) for one in said]) if all(one in (0, 1) for one in said) else None

    @property
    def comparable_B(self) -> Tensor:
        """Whether each response is judged, and another one of its group is, too, or it is alone in its group."""
        judged_B, group_B = ~self.failed_B, self.group_B
        size_P = torch.bincount(group_B)
        judged_P = torch.bincount(group_B[judged_B], minlength=len(size_P))
        return judged_B & ((judged_P > 1) | (size_P == 1))[group_B]


def require_judged(rows: Rows) -> None:
    """Raise EgpoError if the rows are episodes, and the environment failed in all of them, as in the other engine."""
    if rows.are_episodes and bool(rows.failed_B.all()):
        episode_verdicts([EpisodeRecord.from_json(fields[COLUMN]) for fields in rows.loop_fields if COLUMN in fields])


FIELDS = ["prompts", "responses", "response_mask", "entropy", "old_log_probs", "rm_scores", "extra_fields"]
OPTIONAL_FIELDS = ["rollout_log_probs"]


def rows_of(data: Any, groups: Sequence[str]) -> Rows:
    """Read a TensorDict that has the keys `FIELDS`: jagged tensors of tokens, and one dictionary per row."""
    extra, sampled = data.get("extra_fields"), data.get("rollout_log_probs")
    loop_fields = tuple(_mapping(one) for one in (extra.tolist() if extra is not None else [{}] * len(groups)))
    prompt_BS = _padded(data["prompts"])
    return Rows(
        groups=tuple(groups),
        prompt_BS=prompt_BS,
        prompt_mask_BS=torch.arange(prompt_BS.shape[1]) < _lengths(data["prompts"])[:, None],
        response_BT=_padded(data["responses"]),
        mask_BT=_padded(data["response_mask"]).bool(),
        entropy_BT=_padded(data["entropy"]).float(),
        logp_BT=_padded(data["old_log_probs"]).float(),
        score_B=_padded(data["rm_scores"]).sum(-1),
        sampled_logp_BT=None if sampled is None else _padded(sampled).float(),
        information=tuple(_mapping(fields.get("reward_extra_info")) for fields in loop_fields),
        loop_fields=loop_fields,
    )


TOKEN_FIELDS = ["entropy", "response_mask"]


@dataclass(frozen=True, eq=False)
class TokenTables:
    """Entropy and mask of the response tokens of every row of the batch: responses, earlier outputs and padding."""

    entropy_NT: Tensor
    mask_NT: Tensor

    @classmethod
    def of(cls, data: Any) -> "TokenTables":
        """Read a TensorDict that has the keys `TOKEN_FIELDS`."""
        return cls(_padded(data["entropy"]).float(), _padded(data["response_mask"]).bool())


def _padded(jagged: Tensor) -> Tensor:
    return jagged.to_padded_tensor(0) if jagged.is_nested else jagged


def _lengths(jagged: Tensor) -> Tensor:
    """Return the lengths of the rows. Rows of equal length may come as a plain tensor."""
    if not jagged.is_nested:
        return torch.full((len(jagged),), jagged.shape[1])
    length_B: Tensor = jagged.offsets().diff()  # type: ignore[attr-defined]
    return length_B


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
