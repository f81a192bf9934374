"""What the plug-in reads of verl's batch, one row a response. B responses, S prompt tokens, T response tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Rows:
    """On the CPU. `logp_BT` and `entropy_BT` are of the policy before the update, at the sampling temperature.

    `mask_BT`: what the model wrote, without tool results. `information`: what the reward said besides its score.
    """

    groups: tuple[str, ...]
    prompt_BS: Tensor
    prompt_mask_BS: Tensor
    response_BT: Tensor
    mask_BT: Tensor
    entropy_BT: Tensor
    logp_BT: Tensor
    score_B: Tensor
    information: tuple[Mapping[str, Any], ...]

    @property
    def group_B(self) -> Tensor:
        """The groups, numbered in order of appearance."""
        number_of = {group: number for number, group in enumerate(dict.fromkeys(self.groups))}
        return torch.tensor([number_of[group] for group in self.groups], dtype=torch.long)

    @property
    def failed_B(self) -> Tensor:
        """Responses that the checker could not judge: nothing is known of them."""
        return torch.tensor([bool(known.get("failed", False)) for known in self.information], dtype=torch.bool)

    @property
    def correct_B(self) -> Tensor | None:
        """None where the reward does not say `acc`, or says a shaped score under that name."""
        said = [known.get("acc") for known in self.information]
        return torch.tensor([bool(one) for one in said]) if all(one in (0, 1) for one in said) else None

    @property
    def comparable_B(self) -> Tensor:
        """Judged, and with another judged response in the group, unless groups are of one."""
        judged_B, group_B = ~self.failed_B, self.group_B
        size_P = torch.bincount(group_B)
        judged_P = torch.bincount(group_B[judged_B], minlength=len(size_P))
        return judged_B & ((judged_P > 1) | (size_P == 1))[group_B]


FIELDS = ["prompts", "responses", "response_mask", "entropy", "old_log_probs", "rm_scores", "extra_fields"]


def rows_of(data: Any, groups: Sequence[str]) -> Rows:
    """Of a TensorDict that holds `FIELDS`: jagged tensors, and a dictionary a row."""
    extra = data.get("extra_fields")
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
        information=tuple(_information(one) for one in (extra.tolist() if extra is not None else [{}] * len(groups))),
    )


def _padded(jagged: Tensor) -> Tensor:
    return jagged.to_padded_tensor(0) if jagged.is_nested else jagged


def _lengths(jagged: Tensor) -> Tensor:
    """Rows of one length may come as a plain tensor."""
    if not jagged.is_nested:
        return torch.full((len(jagged),), jagged.shape[1])
    length_B: Tensor = jagged.offsets().diff()  # type: ignore[attr-defined]
    return length_B


def _information(extra: Any) -> Mapping[str, Any]:
    said = extra.get("reward_extra_info") if isinstance(extra, Mapping) else None
    return said if isinstance(said, Mapping) else {}
