"""Sample one token for every row on a GPU: choose and record it, and compute the next hidden state.

Tensor suffixes: R rows, D hidden, V vocabulary. Everything is read from and written to fixed addresses, so that the
step can be captured as a CUDA graph: one graph for each number of rows, valid as long as the buffers.
"""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import linear

from egpo.local.memory import is_out_of_memory
from egpo.local.models.cuda.kernels.elementwise import add_rms_norm, swiglu
from egpo.local.models.cuda.kernels.heads import CachePlaces, Rotation, split_heads_into
from egpo.local.sampling.alternatives import record_in_graph
from egpo.local.sampling.choose import Choice, Sampling, choose
from egpo.local.sampling.cuda.decode_buffers import DecodeBuffers
from egpo.local.sampling.cuda.kernels.attention import LayerCache, attend_new
from egpo.local.sampling.cuda.kernels.draw_tokens import draw_tokens, record
from egpo.local.sampling.cuda.kernels.truncate import truncate_logits
from egpo.local.sampling.cuda.weights import DecoderWeights, LayerWeights


def next_token(
    weights: DecoderWeights,
    buffers: DecodeBuffers,
    rows: int,
    sampling: Sampling,
    records: bool = False,
    forces: bool = False,
) -> None:
    """Sample one token for the first `rows` rows. Rows that have ended change nothing but their own hidden state.

    `records`: also record the likeliest tokens. `forces`: tokens of `forced_BT` replace those that are sampled.
    """
    state = buffers.row_state(rows)
    hidden_RD = buffers.hidden_RD[:rows]
    uniform_R = buffers.uniform_BT[state.row_R, state.own_R.clamp(max=buffers.size.new_tokens - 1)]
    logits_RV = _logits(hidden_RD, weights.head_VD)
    choice = _choice(logits_RV, uniform_R, sampling)
    if records and buffers.tables.alternatives is not None:  # before `record`, which moves the rows on
        tables, entropy_R = buffers.tables.alternatives, choice.entropy_R
        record_in_graph(tables, state.row_R, state.own_R, state.live_R, logits_RV, entropy_R, sampling)
    forced_BT = buffers.forced_BT if forces else None
    record(choice, buffers.tables, state, buffers.stop_ids, buffers.limit_B, forced_BT)
    hidden_RD.copy_(_hidden(weights, buffers, rows, choice.token_R))


def _choice(logits_RV: Tensor, uniform_R: Tensor, sampling: Sampling) -> Choice:
    if sampling.temperature == 0:
        return choose(logits_RV, uniform_R, sampling)
    if not sampling.truncates:
        return draw_tokens(logits_RV, uniform_R, sampling.temperature)
    probability_RV = torch.softmax(logits_RV / sampling.temperature, dim=-1)
    held_R = truncate_logits(logits_RV, probability_RV, sampling)
    choice = draw_tokens(logits_RV, uniform_R, sampling.temperature)
    # To the log-probability over the whole vocabulary: `held_R` is the total probability of the kept tokens.
    return replace(choice, logp_R=choice.logp_R + held_R.log())


def _logits(hidden_RD: Tensor, head_VD: Tensor) -> Tensor:
    if hidden_RD.is_cuda and hidden_RD.dtype != torch.float32:
        return torch.mm(hidden_RD, head_VD.T, out_dtype=torch.float32)
    return hidden_RD.float() @ head_VD.float().T


def _hidden(weights: DecoderWeights, buffers: DecodeBuffers, rows: int, token_R: Tensor) -> Tensor:
    rotation = Rotation(buffers.cos, buffers.sin, buffers.of_state("position", rows))
    hidden_RD, update_RD = weights.embedding_VD[token_R], None
    for layer, cache in zip(weights.layers, buffers.layers, strict=True):
        hidden_RD, update_RD = _layer(layer, cache, weights, buffers, rows, rotation, hidden_RD, update_RD)
    return add_rms_norm(hidden_RD, update_RD, weights.norm, weights.eps)[1]


def _layer(
    layer: LayerWeights,
    cache: LayerCache,
    weights: DecoderWeights,
    buffers: DecodeBuffers,
    rows: int,
    rotation: Rotation,
    hidden_RD: Tensor,
    update_RD: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute a layer as `models.cuda.packed._layer` does, and write the new keys and values to the cache."""
    places = buffers.places(rows)
    hidden_RD, normed_RD = add_rms_norm(hidden_RD, update_RD, layer.attention_norm, layer.eps)
    joint_RA = linear(normed_RD, layer.joint, layer.joint_bias)
    query_RHd = split_heads_into(
        (cache.keys, cache.values), joint_RA, weights.heads, rotation, layer.head_norms,
        CachePlaces(places.slot_R, places.place_R, places.live_R),
    )  # fmt: skip
    update_RD = linear(attend_new(query_RHd, cache, places, layer.scale), layer.out)
    hidden_RD, normed_RD = add_rms_norm(hidden_RD, update_RD, layer.mlp_norm, layer.eps)
    return hidden_RD, linear(swiglu(linear(normed_RD, layer.gate_up)), layer.down)


_WARM_UPS = 2


class TokenGraphs:
    """The captured graphs of `next_token`, by number of rows, sampling settings, and recording of alternatives."""

    def __init__(self, weights: DecoderWeights, buffers: DecodeBuffers) -> None:
        self._weights, self._buffers = weights, buffers
        self._graphs: dict[tuple[int, Sampling, bool, bool], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if buffers.hidden_RD.is_cuda else None

    @torch.no_grad()
    def replay(self, rows: int, sampling: Sampling, times: int, *, records: bool = False, forces: bool = False) -> None:
        """Sample `times` more tokens for the first `rows` rows. `rows` must be a result of `row_scheduler.bucket`."""
        if self._pool is None:  # on a CPU with Triton's interpreter there are no graphs
            for _ in range(times):
                next_token(self._weights, self._buffers, rows, sampling, records, forces)
            return
        known = self._graphs.get((rows, sampling, records, forces))
        graph = known or self._capture(rows, sampling, records, forces)
        for _ in range(times):
            graph.replay()

    def _capture(self, rows: int, sampling: Sampling, records: bool, forces: bool) -> torch.cuda.CUDAGraph:
        """Capture a graph for this number of rows.

        All rows are marked as ended meanwhile, so that nothing is recorded.
        """
        live_R, hidden_RD = self._buffers.of_state("live", rows), self._buffers.hidden_RD[:rows]
        kept = live_R.clone(), hidden_RD.clone()
        live_R.zero_()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                next_token(self._weights, self._buffers, rows, sampling, records, forces)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # The outer block restores the stream if a failed capture cannot be ended.
            with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, pool=self._pool):
                next_token(self._weights, self._buffers, rows, sampling, records, forces)
        except RuntimeError as error:
            cause = error.__context__
            if cause is not None and is_out_of_memory(cause):  # the failure to end the capture hides it
                raise cause from None
            raise
        live_R.copy_(kept[0])
        hidden_RD.copy_(kept[1])
        self._graphs[rows, sampling, records, forces] = graph
        return graph
