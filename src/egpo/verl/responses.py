"""Which rows of verl's batch are responses. N rows of the batch, B responses.

An agent loop may put several outputs of one session into the batch, and verl fills it up with padding rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Responses:
    """`row_B`: where in the batch the last output of each session stands, which is judged. `groups`: its prompt's uid.
    `response_N`: which response a row of the batch belongs to, -1 for padding."""

    row_B: Tensor
    groups: tuple[str, ...]
    response_N: Tensor

    def to_rows(self, value_B: Tensor) -> Tensor:
        """Each response's value at each of its rows; 0 at padding."""
        return torch.cat([value_B, value_B.new_zeros(1)])[self.response_N]


def find_responses(keys: Sequence[str], tags: Sequence[Mapping[str, Any]]) -> Responses:
    """verl's keys are `uid_session_index`; as in its own GRPO, the output of the highest index speaks for a session."""
    last: dict[str, tuple[int, int]] = {}
    session_of: list[str | None] = []
    for row, (key, tag) in enumerate(zip(keys, tags, strict=True)):
        session, _, index = key.rpartition("_")
        session_of.append(None if tag.get("is_padding", False) else session)
        if session_of[-1] is not None:
            last[session] = max(last.get(session, (-1, -1)), (int(index), row))
    number_of = {session: number for number, session in enumerate(last)}
    return Responses(
        row_B=torch.tensor([row for _, row in last.values()], dtype=torch.long),
        groups=tuple(session.rpartition("_")[0] for session in last),
        response_N=torch.tensor([-1 if s is None else number_of[s] for s in session_of], dtype=torch.long),
    )
