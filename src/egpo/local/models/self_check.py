"""Compare the engine's forward passes with that of transformers on a few tokens, before anything is trained.

Some features of models cannot be seen in their config, such as position biases of attention (ALiBi), soft-capped
logits, or a recurrent state instead of a key-value cache. A feature that the engine does not support makes the logits
differ, and InputError is raised.
"""

import torch
from torch import Tensor

from egpo.errors import InputError
from egpo.local.models.attention import ATTENTION_NAME
from egpo.local.models.packs import Sequences, pack_groups
from egpo.local.models.policy import Policy

_PROMPT_LENGTH, _RESPONSE_LENGTHS = 5, (4, 1, 3)
_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 8e-2}
"""Largest allowed difference, as a fraction of the standard deviation of the logits."""


@torch.no_grad()
def require_agreement(policy: Policy, where: str) -> None:
    """Raise InputError if the logits of a pack or of a cache differ from those of the plain model."""
    group = _some_tokens(policy)
    expected = [_plain_logits(policy, [*group.prompt, *response]) for response in group.responses]
    spread = float(torch.cat(expected).std())
    differences = {
        "packed": _largest_difference(_packed_logits(policy, group), expected),
        "cached": _largest_difference(_cached_logits(policy, group), expected),
    }
    allowed = _TOLERANCE.get(policy.head_VD.dtype, 8e-2) * max(spread, 1e-3)
    for path, difference in differences.items():
        if not difference <= allowed:
            raise InputError(
                f"the engine computes {type(policy.model).__name__} wrongly ({path} logits differ by {difference:.2g})",
                where=where,
                fix="the local engine supports only standard causal attention, and logits that are the product of "
                "hidden states and the head's weight; use engine=verl for this model",
            )


def _some_tokens(policy: Policy) -> Sequences:
    num_tokens = policy.head_VD.shape[0]
    tokens = [(7 + 31 * i) % num_tokens for i in range(_PROMPT_LENGTH + sum(_RESPONSE_LENGTHS))]
    starts = [_PROMPT_LENGTH + sum(_RESPONSE_LENGTHS[:i]) for i in range(len(_RESPONSE_LENGTHS))]
    responses = [tokens[start : start + length] for start, length in zip(starts, _RESPONSE_LENGTHS, strict=True)]
    return Sequences(tokens[:_PROMPT_LENGTH], responses)


def _plain_logits(policy: Policy, tokens: list[int]) -> Tensor:
    """Return the logits that predict the response, by `model(input_ids)` with the attention of transformers."""
    policy.model.set_attn_implementation("sdpa" if policy.model._supports_sdpa else "eager")
    try:
        logits: Tensor = policy.model(torch.tensor([tokens], device=policy.device), use_cache=False).logits
    finally:
        policy.model.set_attn_implementation(ATTENTION_NAME)
    return logits[0, _PROMPT_LENGTH - 1 : -1].float()


def _packed_logits(policy: Policy, group: Sequences) -> list[Tensor]:
    pack = pack_groups([group], policy.device)
    logits_MV = policy.logits(policy.hidden(pack)[pack.source_M])
    return list(torch.split(logits_MV, [len(response) for response in group.responses]))


def _cached_logits(policy: Policy, group: Sequences) -> list[Tensor]:
    """Return the logits of the longest response, computed one token at a time with a cache."""
    pack, slots = pack_groups([Sequences(group.prompt)], policy.device), policy.open_slots()
    hidden = policy.hidden(pack, slots)[-1:]
    slots.spread(pack.layout, [0], max_new=len(group.responses[0]))
    rows = [hidden]
    for token in group.responses[0][:-1]:
        rows.append(policy.next_hidden(torch.tensor([token], device=policy.device), slots))
    return [policy.logits(torch.cat(rows))]


def _largest_difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """Return the largest difference over tokens. For one token it is the root mean square over the vocabulary: among a
    million logits in 16 bits, the largest rounding error of a single one says little."""
    pairs = zip(found, expected[: len(found)], strict=True)
    return max(float((ours - theirs).square().mean(dim=-1).sqrt().max()) for ours, theirs in pairs)
