"""One token for every row: choose it from the last hidden state, record it, and compute the next one. Everything it
reads and writes has one place for good, so that it can be captured. R rows, D hidden, V vocabulary."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import linear

from egpo.local.cuda.kernels.choose import draw_tokens
from egpo.local.cuda.kernels.decode_attention import LayerCache, attend_new
from egpo.local.cuda.kernels.heads import CachePlaces, Rotation, split_heads_into
from egpo.local.cuda.kernels.norm import add_rms_norm
from egpo.local.cuda.kernels.record import record
from egpo.local.cuda.kernels.swiglu import swiglu
from egpo.local.cuda.kernels.truncate import truncate_logits
from egpo.local.cuda.room import Room
from egpo.local.cuda.weights import DecoderWeights, LayerWeights
from egpo.local.sampling.choose import Choice, Sampling, choose


def next_token(weights: DecoderWeights, room: Room, rows: int, sampling: Sampling) -> None:
    """For the first `rows` rows of the room. Rows that are over change nothing but their own hidden state."""
    state = room.row_state(rows)
    hidden_RD = room.hidden_RD[:rows]
    uniform_R = room.uniform_BT[state.row_R, state.own_R.clamp(max=room.size.new_tokens - 1)]
    choice = _choice(_logits(hidden_RD, weights.head_VD), uniform_R, sampling)
    record(choice, room.tables, state, room.stop_ids, room.limit_1)
    hidden_RD.copy_(_hidden(weights, room, rows, choice.token_R))


def _choice(logits_RV: Tensor, uniform_R: Tensor, sampling: Sampling) -> Choice:
    if sampling.temperature == 0:
        return choose(logits_RV, uniform_R, sampling)
    if not sampling.truncates:
        return draw_tokens(logits_RV, uniform_R, sampling.temperature)
    probability_RV = torch.softmax(logits_RV / sampling.temperature, dim=-1)
    held_R = truncate_logits(logits_RV, probability_RV, sampling)
    choice = draw_tokens(logits_RV, uniform_R, sampling.temperature)
    # Of the whole vocabulary: what was drawn from holds this much of it.
    return replace(choice, logp_R=choice.logp_R + held_R.log())


def _logits(hidden_RD: Tensor, head_VD: Tensor) -> Tensor:
    if hidden_RD.is_cuda and hidden_RD.dtype != torch.float32:
        return torch.mm(hidden_RD, head_VD.T, out_dtype=torch.float32)
    return hidden_RD.float() @ head_VD.float().T


def _hidden(weights: DecoderWeights, room: Room, rows: int, token_R: Tensor) -> Tensor:
    rotation = Rotation(room.cos, room.sin, room.of_state("position", rows))
    hidden_RD, update_RD = weights.embedding_VD[token_R], None
    for layer, cache in zip(weights.layers, room.layers, strict=True):
        hidden_RD, update_RD = _layer(layer, cache, weights, room, rows, rotation, hidden_RD, update_RD)
    return add_rms_norm(hidden_RD, update_RD, weights.norm, weights.eps)[1]


def _layer(
    layer: LayerWeights,
    cache: LayerCache,
    weights: DecoderWeights,
    room: Room,
    rows: int,
    rotation: Rotation,
    hidden_RD: Tensor,
    update_RD: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """As `packed._layer`, with the new keys and values put into the cache."""
    places = room.places(rows)
    hidden_RD, normed_RD = add_rms_norm(hidden_RD, update_RD, layer.first_norm, layer.eps)
    joint_RA = linear(normed_RD, layer.joint, layer.joint_bias)
    query_RHd = split_heads_into(
        (cache.keys, cache.values), joint_RA, weights.heads, rotation, layer.head_norms,
        CachePlaces(places.slot_R, places.place_R, places.live_R),
    )  # fmt: skip
    update_RD = linear(attend_new(query_RHd, cache, places, layer.scale), layer.out)
    hidden_RD, normed_RD = add_rms_norm(hidden_RD, update_RD, layer.second_norm, layer.eps)
    return hidden_RD, linear(swiglu(linear(normed_RD, layer.gate_up)), layer.down)
