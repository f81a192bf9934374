"""Which rows are sampled together, in which order: kept on the host, written to the device when it changes.

Rows that answer one prompt stand side by side, so that they read its keys together. A row keeps its slot of the cache
wherever it stands: nothing of the cache ever moves. When a row is over, its slot goes to one that waits.

Stop strings in text that was sampled a few tokens at a time.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from egpo.local.sampling.choose import Stops

FRESH = -1


@dataclass
class Seat:
    """`row` of the tables, answering `prompt`; `own` tokens so far; where it stood before (`stood`), FRESH if new."""

    row: int
    prompt: int
    slot: int
    own: int = 0
    stood: int = FRESH


class RowScheduler:
    def __init__(self, rows: Sequence[int], prompt_of: Sequence[int], slots: int) -> None:
        self._waiting = deque((row, prompt) for row, prompt in zip(rows, prompt_of, strict=True))
        self._free = list(range(slots))[::-1]
        self.taken: list[Seat] = []
        self.seat_waiting()

    def seat_waiting(self) -> bool:
        """As many as there are slots for. True where anyone sat down."""
        news = []
        while self._waiting and self._free:
            row, prompt = self._waiting.popleft()
            news.append(Seat(row, prompt, self._free.pop()))
        self.taken = sorted([*self.taken, *news], key=lambda seat: seat.prompt)
        return bool(news)

    def advance(self, steps: int) -> None:
        for stood, seat in enumerate(self.taken):
            seat.own, seat.stood = seat.own + steps, stood

    def leave(self, over: Sequence[bool]) -> bool:
        """True where anyone left."""
        self._free += [seat.slot for seat, gone in zip(self.taken, over, strict=True) if gone]
        self.taken = [seat for seat, gone in zip(self.taken, over, strict=True) if not gone]
        return any(over)

    def steps_left(self, limit: int) -> int:
        """Until the last row is full, if every row goes on."""
        return limit - min(seat.own for seat in self.taken)

    def state(self, prompt_lengths: Sequence[int], tile: int, rows: int) -> list[list[int]]:
        """As `room.Room.state` holds it, for the first `rows` rows: those past the last seat are over."""
        seats = self.taken
        columns = [
            [seat.row for seat in seats],
            [seat.prompt for seat in seats],
            tiles([seat.prompt for seat in seats], tile),
            [seat.slot for seat in seats],
            [seat.own for seat in seats],
            [max(0, seat.own - 1) for seat in seats],
            [prompt_lengths[seat.prompt] + seat.own - 1 for seat in seats],
            [1] * len(seats),
        ]
        return [column + [0] * (rows - len(seats)) for column in columns]


def tiles(prompts: Sequence[int], size: int) -> list[int]:
    """How many rows begin a tile at each place: at most `size`, all of one prompt.

    >>> tiles([0, 0, 0, 2, 2], 2)
    [2, 0, 1, 2, 0]
    """
    counts = [0] * len(prompts)
    begin = 0
    for place, prompt in enumerate(prompts):
        if prompt != prompts[begin] or place - begin == size:
            begin = place
        counts[begin] += 1
    return counts


def bucket(rows: int, most: int) -> int:
    """The number of rows to compute for `rows` of them: powers of two and the halves between, `most` at most.

    >>> [bucket(rows, 100) for rows in (1, 9, 20, 33, 64, 70, 97)]
    [8, 12, 24, 48, 64, 96, 100]
    """
    size = 8
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return min(size, most)


def first_stop(tokens: Sequence[int], known: int, stops: Stops, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The length at which a response would have ended, had it been looked at after every token; None where no stop
    string is in it. The first `known` tokens have been looked at."""
    reach = stops.num_tail_tokens
    window = tokenizer.decode(tokens[max(0, known + 1 - reach) :])
    if not any(string in window for string in stops.strings):
        return None
    for length in range(known + 1, len(tokens) + 1):
        tail = tokenizer.decode(tokens[max(0, length - reach) : length])
        if any(string in tail for string in stops.strings):
            return length
    return None
