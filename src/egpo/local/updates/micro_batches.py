"""Rows into forward passes of a bounded number of tokens, without padding. B rows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from egpo.local.policies.packs import Sequences
from egpo.local.rollouts import Rollouts


@dataclass(frozen=True)
class RowTokens:
    """The token ids of a batch as lists: `problem[b]` indexes `prompts`; a response is without its padding."""

    prompts: Sequence[Sequence[int]]
    problem: Sequence[int]
    responses: Sequence[Sequence[int]]

    @classmethod
    def of(cls, rollouts: Rollouts) -> "RowTokens":
        return cls(rollouts.prompts, rollouts.problem_B.tolist(), rollouts.responses())


@dataclass(frozen=True)
class MicroBatch:
    """`rows` in the order in which `groups` hold their responses."""

    rows: tuple[int, ...]
    groups: tuple[Sequences, ...]

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        return sum(group.num_tokens for group in self.groups)


def micro_batches(rows: Iterable[int], tokens: RowTokens, budget: int) -> list[MicroBatch]:
    """Every row that has tokens exactly once, in parts of at most `budget` tokens; a row too long for it stands alone.

    A group stays together, so that its prompt is computed once; a group too large is cut, its prompt repeated.
    Longest first, into the first part with room.
    """
    pieces = [piece for group in _by_problem(rows, tokens) for piece in _pieces(group, tokens, budget)]
    parts = first_fit([piece.num_tokens for piece in pieces], budget)
    return [_joined([pieces[i] for i in part]) for part in parts]


def first_fit(sizes: Sequence[int], room: int) -> list[list[int]]:
    """Indices of `sizes` in bins of at most `room`, largest first; what is larger has a bin for itself."""
    bins: list[list[int]] = []
    loads: list[int] = []
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        place = next((b for b, load in enumerate(loads) if load + sizes[i] <= room), len(bins))
        if place == len(bins):
            bins.append([])
            loads.append(0)
        bins[place].append(i)
        loads[place] += sizes[i]
    return bins


def _by_problem(rows: Iterable[int], tokens: RowTokens) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for row in rows:
        if tokens.responses[row]:
            groups.setdefault(tokens.problem[row], []).append(row)
    return list(groups.values())


def _pieces(group: list[int], tokens: RowTokens, budget: int) -> list[MicroBatch]:
    """A group, whole where the budget allows."""
    prompt = tokens.prompts[tokens.problem[group[0]]]
    sizes = [Sequences((), [tokens.responses[row]]).num_tokens for row in group]
    pieces = [[group[i] for i in piece] for piece in first_fit(sizes, budget - len(prompt))]
    return [MicroBatch(tuple(rows), (Sequences(prompt, [tokens.responses[row] for row in rows]),)) for rows in pieces]


def _joined(pieces: Sequence[MicroBatch]) -> MicroBatch:
    return MicroBatch(
        rows=tuple(row for piece in pieces for row in piece.rows),
        groups=tuple(group for piece in pieces for group in piece.groups),
    )
