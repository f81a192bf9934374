"""The step of one token as captured graphs: one for each number of rows in use, for as long as the room stands."""

import torch

from egpo.local.cuda.room import Room
from egpo.local.cuda.token_step import next_token
from egpo.local.cuda.weights import DecoderWeights
from egpo.local.memory import is_out_of_memory
from egpo.local.sampling.choose import Sampling

_WARM_UPS = 2


class TokenGraphs:
    def __init__(self, weights: DecoderWeights, room: Room) -> None:
        self._weights, self._room = weights, room
        self._graphs: dict[tuple[int, Sampling], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle() if room.hidden_RD.is_cuda else None

    @torch.no_grad()
    def replay(self, rows: int, sampling: Sampling, times: int) -> None:
        """`times` more tokens for the first `rows` rows: a size of `seats.bucket`."""
        if self._pool is None:  # Triton's interpreter, on a CPU
            for _ in range(times):
                next_token(self._weights, self._room, rows, sampling)
            return
        graph = self._graphs.get((rows, sampling)) or self._capture(rows, sampling)
        for _ in range(times):
            graph.replay()

    def _capture(self, rows: int, sampling: Sampling) -> torch.cuda.CUDAGraph:
        """Warmed up and captured with every row over, so that nothing is recorded."""
        live_R, hidden_RD = self._room.of_state("live", rows), self._room.hidden_RD[:rows]
        kept = live_R.clone(), hidden_RD.clone()
        live_R.zero_()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                next_token(self._weights, self._room, rows, sampling)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            # The outer block gives the stream back where a capture that failed cannot even be ended.
            with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph, pool=self._pool):
                next_token(self._weights, self._room, rows, sampling)
        except RuntimeError as error:
            cause = error.__context__
            if cause is not None and is_out_of_memory(cause):  # hidden by the error of the end
                raise cause from None
            raise
        live_R.copy_(kept[0])
        hidden_RD.copy_(kept[1])
        self._graphs[rows, sampling] = graph
        return graph
