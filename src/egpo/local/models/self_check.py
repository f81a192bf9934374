"""Does the engine compute what the model computes? A few tokens through each of its paths, before anything is trained.

Models differ in more than their config says: positions by bias, capped logits, states in place of a cache. Whatever
this engine does not cover shows here as a difference, and is refused.
"""

import torch
from torch import Tensor

from egpo.errors import InputError
from egpo.local.models.attention import NAME
from egpo.local.models.packs import Sequences, pack_groups
from egpo.local.models.policy import Policy

_PROMPT_LENGTH, _RESPONSE_LENGTHS = 5, (4, 1, 3)
_TOLERANCE = {torch.float32: 2e-3, torch.bfloat16: 8e-2}
"""Of the logits' spread."""


@torch.no_grad()
def require_agreement(policy: Policy, where: str) -> None:
    """Logits of the plain model against those of a pack and of slots."""
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
                f"{type(policy.model).__name__} is not computed faithfully ({path} logits are off by {difference:.2g})",
                where=where,
                fix="the local engine covers models of plain attention and a plain head; use engine=verl for this one",
            )


def _some_tokens(policy: Policy) -> Sequences:
    num_tokens = policy.head_VD.shape[0]
    tokens = [(7 + 31 * i) % num_tokens for i in range(_PROMPT_LENGTH + sum(_RESPONSE_LENGTHS))]
    starts = [_PROMPT_LENGTH + sum(_RESPONSE_LENGTHS[:i]) for i in range(len(_RESPONSE_LENGTHS))]
    responses = [tokens[start : start + length] for start, length in zip(starts, _RESPONSE_LENGTHS, strict=True)]
    return Sequences(tokens[:_PROMPT_LENGTH], responses)


def _plain_logits(policy: Policy, tokens: list[int]) -> Tensor:
    """As `model(input_ids)` gives them, with the attention of transformers: those that predict the response."""
    policy.model.set_attn_implementation("sdpa" if policy.model._supports_sdpa else "eager")
    try:
        logits: Tensor = policy.model(torch.tensor([tokens], device=policy.device), use_cache=False).logits
    finally:
        policy.model.set_attn_implementation(NAME)
    return logits[0, _PROMPT_LENGTH - 1 : -1].float()


def _packed_logits(policy: Policy, group: Sequences) -> list[Tensor]:
    pack = pack_groups([group], policy.device)
    logits_MV = policy.logits(policy.hidden(pack)[pack.source_M])
    return list(torch.split(logits_MV, [len(response) for response in group.responses]))


def _cached_logits(policy: Policy, group: Sequences) -> list[Tensor]:
    """The longest response by slots, one token at a time."""
    pack, slots = pack_groups([Sequences(group.prompt)], policy.device), policy.open_slots()
    hidden = policy.hidden(pack, slots)[-1:]
    slots.spread(pack.layout, [0], max_new=len(group.responses[0]))
    rows = [hidden]
    for token in group.responses[0][:-1]:
        rows.append(policy.next_hidden(torch.tensor([token], device=policy.device), slots))
    return [policy.logits(torch.cat(rows))]


def _largest_difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """Over tokens; of one token, the root mean square over the vocabulary: among a million logits in halves, the one
    that is rounded worst is far off."""
    pairs = zip(found, expected[: len(found)], strict=True)
    return max(float((ours - theirs).square().mean(dim=-1).sqrt().max()) for ours, theirs in pairs)
