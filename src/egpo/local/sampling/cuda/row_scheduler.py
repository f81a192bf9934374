"""The schedule of rows: which are sampled together and in which order. The host keeps it and sends it to the device.

Rows of one prompt are adjacent, so that they read its keys together. A row keeps its cache slot when the order of rows
changes: nothing in the cache ever moves. When a row ends, a waiting row gets its slot. This module also has the other
bookkeeping that needs no GPU: numbers of rows per graph, chunks of prompts, stop strings.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from egpo.local.sampling.choose import Stops

NEW_ROW = -1

Prompt = Sequence[int]


@dataclass(eq=False)
class ActiveRow:
    """A row that is being sampled: its index in the tables (`row`), its prompt, and its cache slot.

    `own`: the number of tokens sampled so far. `last_place`: the row's index among the active rows before the last
    change; NEW_ROW if it was not among them.
    """

    row: int
    prompt: int
    slot: int
    own: int = 0
    last_place: int = NEW_ROW


class RowScheduler:
    """A scheduler of waiting rows and of rows that are being sampled (`active`), at most one per cache slot."""

    def __init__(self, rows: Sequence[int], prompt_of: Sequence[int], slots: int) -> None:
        self._waiting = deque((row, prompt) for row, prompt in zip(rows, prompt_of, strict=True))
        self._free = list(range(slots))[::-1]
        self.active: list[ActiveRow] = []
        self.admit_waiting()

    def admit_waiting(self) -> bool:
        """Give the free slots to waiting rows. Return whether any row was admitted."""
        admitted = []
        while self._waiting and self._free:
            row, prompt = self._waiting.popleft()
            admitted.append(ActiveRow(row, prompt, self._free.pop()))
        self.active = sorted([*self.active, *admitted], key=lambda row: row.prompt)
        return bool(admitted)

    def advance(self, steps: int) -> None:
        """Count `steps` more tokens for every active row."""
        for place, row in enumerate(self.active):
            row.own, row.last_place = row.own + steps, place

    def release(self, over: Sequence[bool]) -> bool:
        """Drop the active rows that have ended, and free their slots. Return whether any row was dropped."""
        self._free += [row.slot for row, is_over in zip(self.active, over, strict=True) if is_over]
        self.active = [row for row, is_over in zip(self.active, over, strict=True) if not is_over]
        return any(over)

    def park(self, row: ActiveRow) -> None:
        """Take a row out of the active ones; it keeps its slot."""
        self.active = [one for one in self.active if one is not row]

    def free(self, row: ActiveRow) -> None:
        """Free the slot of a parked row that is over."""
        self._free.append(row.slot)

    def unpark(self, row: ActiveRow) -> None:
        """Continue a parked row, whose next token must be forced: its hidden state is not kept."""
        row.last_place = NEW_ROW
        self.active = sorted([*self.active, row], key=lambda one: one.prompt)

    def steps_left(self, limit: int) -> int:
        """Return after how many more tokens every active row has `limit` tokens, if none ends earlier."""
        return limit - min(row.own for row in self.active)

    def state(self, prompt_lengths: Sequence[int], tile: int, rows: int) -> list[list[int]]:
        """Return `DecodeBuffers.state` for `rows` rows: first the active ones, then rows that are marked as ended."""
        active = self.active
        columns = [
            [row.row for row in active],
            [row.prompt for row in active],
            tiles([row.prompt for row in active], tile),
            [row.slot for row in active],
            [row.own for row in active],
            [max(0, row.own - 1) for row in active],
            [prompt_lengths[row.prompt] + row.own - 1 for row in active],
            [1] * len(active),
        ]
        return [column + [0] * (rows - len(active)) for column in columns]


def tiles(prompts: Sequence[int], size: int) -> list[int]:
    """Cut adjacent rows of one prompt into tiles of at most `size` rows.

    Return one number per row: the size of the tile that starts at the row, or 0 if none does.

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
    """Return the number of rows of the graph to use for `rows` active rows: the next of a few sizes, at most `most`.

    The sizes are powers of two from 8 on, and 1.5 times those.

    >>> [bucket(rows, 100) for rows in (1, 9, 20, 33, 64, 70, 97)]
    [8, 12, 24, 48, 64, 96, 100]
    """
    size = 8
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return min(size, most)


def first_stop(tokens: Sequence[int], known: int, stops: Stops, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the length at which a response first has a stop string; None if it has none.

    The first `known` tokens have been checked before.
    """
    reach = stops.num_tail_tokens
    window = tokenizer.decode(tokens[max(0, known + 1 - reach) :])
    if not any(string in window for string in stops.strings):
        return None
    for length in range(known + 1, len(tokens) + 1):
        tail = tokenizer.decode(tokens[max(0, length - reach) : length])
        if any(string in tail for string in stops.strings):
            return length
    return None


def chunk_prompts(prompts: Sequence[Prompt], most_tokens: int) -> Iterator[Sequence[Prompt]]:
    """Split prompts into consecutive chunks of at most `most_tokens`; a longer prompt forms its own chunk."""
    first = tokens = 0
    for place, prompt in enumerate(prompts):
        if tokens and tokens + len(prompt) > most_tokens:
            yield prompts[first:place]
            first, tokens = place, 0
        tokens += len(prompt)
    yield prompts[first:]
