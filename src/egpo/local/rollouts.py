"""The sampled responses of a step. Tensor suffixes: P problems, B rows, T tokens of the longest response."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from egpo.environments.records import EpisodeRecord
from egpo.local.models.packs import Sequences
from egpo.tasks import Problem


@dataclass(frozen=True, eq=False)
class Alternatives:
    """The likeliest tokens at the positions of highest entropy of each row. S positions per row, K tokens each.

    `position_BS` is -1 where a row has fewer than S positions of enough entropy. Probabilities are in descending order.
    """

    position_BS: Tensor
    entropy_BS: Tensor
    token_BSK: Tensor
    probability_BSK: Tensor

    @classmethod
    def empty(cls, num_rows: int, num_positions: int, num_tokens: int, device: torch.device) -> "Alternatives":
        size = (num_rows, num_positions)
        return cls(
            position_BS=torch.full(size, -1, dtype=torch.int32, device=device),
            entropy_BS=torch.zeros(size, device=device),
            token_BSK=torch.zeros((*size, num_tokens), dtype=torch.int32, device=device),
            probability_BSK=torch.zeros((*size, num_tokens), device=device),
        )

    def clear(self, row_R: Tensor) -> None:
        """Forget what these rows have recorded."""
        self.position_BS[row_R] = -1
        self.entropy_BS[row_R] = 0.0

    def write(
        self,
        at: tuple[Tensor, Tensor],
        position: int | Tensor,
        entropy_R: Tensor,
        token_RK: Tensor,
        probability_RK: Tensor,
    ) -> None:
        """Store one position of some rows: `at` holds their rows and places in the tables."""
        count = token_RK.shape[1]
        self.position_BS[at] = position
        self.entropy_BS[at] = entropy_R
        self.token_BSK[(*at, slice(count))] = token_RK.int()
        self.probability_BSK[(*at, slice(count))] = probability_RK

    def of_row(self, row: int, length: int) -> dict[int, list[tuple[int, float]]]:
        """Return the tokens of positive probability by position, for the positions before `length`, in their order."""
        known = {}
        for place, position in enumerate(self.position_BS[row].tolist()):
            if 0 <= position < length:
                pairs = zip(self.token_BSK[row, place].tolist(), self.probability_BSK[row, place].tolist(), strict=True)
                known[position] = [(token, probability) for token, probability in pairs if probability > 0]
        return dict(sorted(known.items()))

    def tables(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.position_BS, self.entropy_BS, self.token_BSK, self.probability_BSK

    def on_cpu(self) -> "Alternatives":
        return Alternatives(*(table.cpu() for table in self.tables()))


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Sampled responses. Row b is a response to `problems[problem_B[b]]`, padded on the right.

    `mask_BT`: tokens that were sampled, including the stop token. In an episode the tokens between two turns, which the
    environment wrote, are part of the row and are not in the mask. `logp_BT`: log-probability of the sampled token at
    the sampling temperature, over the whole vocabulary: the old log-probability of the policy ratio. `entropy_BT`:
    Shannon entropy of the distribution that was sampled from, in nats. `finished_B`: the response was ended by a stop
    token or string, not cut off at the maximum length. `alternatives`: None unless they were asked for; only the dump
    of the rollouts reads them. `episodes`: None for single responses.
    """

    problems: tuple[Problem, ...]
    prompts: tuple[tuple[int, ...], ...]
    problem_B: Tensor
    response_BT: Tensor
    mask_BT: Tensor
    logp_BT: Tensor
    entropy_BT: Tensor
    finished_B: Tensor
    texts: tuple[str, ...]
    alternatives: Alternatives | None = None
    episodes: "tuple[EpisodeRow, ...] | None" = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def length_B(self) -> Tensor:
        """The number of sampled tokens of each row."""
        return self.mask_BT.sum(dim=1)

    @property
    def end_B(self) -> Tensor:
        """The number of tokens of each row, up to its last sampled one: those between two turns count too."""
        if self.episodes is None:
            return self.length_B
        column_T = torch.arange(1, self.mask_BT.shape[1] + 1, device=self.mask_BT.device)
        return (self.mask_BT * column_T).amax(dim=1)

    def responses(self) -> list[list[int]]:
        """Return the token ids of each response, without padding."""
        return [row[:end] for row, end in zip(self.response_BT.tolist(), self.end_B.tolist(), strict=True)]

    def sampled(self) -> list[list[bool]] | None:
        """Return which tokens of each response were sampled; None if all were."""
        if self.episodes is None:
            return None
        return [row[:end] for row, end in zip(self.mask_BT.tolist(), self.end_B.tolist(), strict=True)]

    def by_turn(self) -> "tuple[Rollouts, list[int]]":
        """Return the rows to train on, and the row of this batch that each belongs to.

        A row whose turns have prompts of their own becomes one row per turn. All others stay as they are.
        """
        if self.episodes is None:
            return self, list(range(len(self)))
        if any(episode.prompts is not None for episode in self.episodes):
            return _rows_by_turn(self)
        if any(episode.prompt is not None for episode in self.episodes):
            return _with_own_prompts(self), list(range(len(self)))
        return self, list(range(len(self)))

    def table_by_turn(self, table_BT: Tensor) -> Tensor:
        """Return a table of this batch's tokens for the rows that `by_turn` returns."""
        if self.episodes is None or all(episode.prompts is None for episode in self.episodes):
            return table_BT
        return _cut_by_turn(self, table_BT)

    def select(self, rows: list[int]) -> "Rollouts":
        """Return the rollouts of these rows, in this order, without problems that none of them answers, and without
        alternatives."""
        row_B = torch.tensor(rows, dtype=torch.long)
        kept = sorted(set(self.problem_B[row_B].tolist()))
        problem_B = torch.tensor([kept.index(problem) for problem in self.problem_B[row_B].tolist()], dtype=torch.long)
        here = row_B.to(self.response_BT.device)
        tables = (self.response_BT, self.mask_BT, self.logp_BT, self.entropy_BT, self.finished_B)
        response_BT, mask_BT, logp_BT, entropy_BT, finished_B = (table[here] for table in tables)
        return Rollouts(
            problems=tuple(self.problems[index] for index in kept),
            prompts=tuple(self.prompts[index] for index in kept),
            problem_B=problem_B,
            response_BT=response_BT,
            mask_BT=mask_BT,
            logp_BT=logp_BT,
            entropy_BT=entropy_BT,
            finished_B=finished_B,
            texts=tuple(self.texts[row] for row in rows),
            episodes=None if self.episodes is None else tuple(self.episodes[row] for row in rows),
        )

    def groups(self) -> list[Sequences]:
        """Return the prompt and the responses of each problem, in the order of problems and rows."""
        responses: list[list[list[int]]] = [[] for _ in self.problems]
        for problem, response in zip(self.problem_B.tolist(), self.responses(), strict=True):
            responses[problem].append(response)
        return [Sequences(prompt, rows) for prompt, rows in zip(self.prompts, responses, strict=True)]


@dataclass(frozen=True)
class EpisodeRow:
    """One episode of a batch: its record, and the columns `start` to `end` of the row that each turn sampled.

    `opened` says for each turn whether its prompt ended with the opening thinking tag. `prompts`: the token ids of each
    turn's own prompt, if the chat template rewrites earlier turns; the row then has the sampled tokens of all turns and
    nothing between them. None: every turn continues the row. `prompt`: the row's own prompt, if its environment began
    with other words than that of the problem's first row.
    """

    record: EpisodeRecord
    turns: tuple[tuple[int, int], ...]
    opened: tuple[bool, ...]
    prompts: tuple[tuple[int, ...], ...] | None = None
    prompt: tuple[int, ...] | None = None


def _rows_by_turn(rollouts: Rollouts) -> tuple[Rollouts, list[int]]:
    assert rollouts.episodes is not None
    spans = [(row, turn) for row, episode in enumerate(rollouts.episodes) for turn in range(len(episode.turns))]
    prompts: dict[tuple[int, tuple[int, ...]], int] = {}
    for row, turn in spans:
        episode = rollouts.episodes[row]
        assert episode.prompts is not None, "all rows of a batch have prompts of their own, or none has"
        prompts.setdefault((int(rollouts.problem_B[row]), episode.prompts[turn]), len(prompts))
    of_turn = [
        prompts[int(rollouts.problem_B[row]), (rollouts.episodes[row].prompts or ())[turn]] for row, turn in spans
    ]
    last = [turn == len(rollouts.episodes[row].turns) - 1 for row, turn in spans]
    row_B = [row for row, _ in spans]
    finished_B = torch.tensor(
        [not is_last or bool(rollouts.finished_B[row]) for row, is_last in zip(row_B, last, strict=True)]
    )
    single = Rollouts(
        problems=tuple(rollouts.problems[problem] for problem, _ in prompts),
        prompts=tuple(prompt for _, prompt in prompts),
        problem_B=torch.tensor(of_turn, dtype=torch.long),
        response_BT=_cut_by_turn(rollouts, rollouts.response_BT),
        mask_BT=_cut_by_turn(rollouts, rollouts.mask_BT),
        logp_BT=_cut_by_turn(rollouts, rollouts.logp_BT),
        entropy_BT=_cut_by_turn(rollouts, rollouts.entropy_BT),
        finished_B=finished_B.to(rollouts.finished_B.device),
        texts=tuple(rollouts.episodes[row].record.turns[turn].text for row, turn in spans),
    )
    return single, row_B


def _cut_by_turn(rollouts: Rollouts, table_BT: Tensor) -> Tensor:
    """Return the columns of each turn as a row of its own, padded to the longest turn."""
    places = [(row, *place) for row, episode in enumerate(rollouts.episodes or ()) for place in episode.turns]
    longest = max((end - start for _, start, end in places), default=0)
    rows = [table_BT[row, start:end] for row, start, end in places]
    return torch.stack([torch.nn.functional.pad(part, (0, longest - len(part))) for part in rows])


def _with_own_prompts(rollouts: Rollouts) -> Rollouts:
    """Return the rollouts with one problem per distinct prompt, instead of one prompt per problem."""
    places: dict[tuple[int, tuple[int, ...]], int] = {}
    problem_B = []
    for problem, episode in zip(rollouts.problem_B.tolist(), rollouts.episodes or (), strict=True):
        key = (problem, episode.prompt or rollouts.prompts[problem])
        problem_B.append(places.setdefault(key, len(places)))
    return replace(
        rollouts,
        problems=tuple(rollouts.problems[problem] for problem, _ in places),
        prompts=tuple(prompt for _, prompt in places),
        problem_B=torch.tensor(problem_B, dtype=torch.long),
    )


def joined(parts: list[Rollouts], pad_id: int) -> Rollouts:
    """Concatenate rollouts, padded to the longest response. Problems are renumbered."""
    longest = max(part.response_BT.shape[1] for part in parts)

    def table(name: str, fill: float) -> Tensor:
        tables = [getattr(part, name) for part in parts]
        widths = [(0, longest - table.shape[1]) for table in tables]
        padded = [
            torch.nn.functional.pad(table, width, value=fill) for table, width in zip(tables, widths, strict=True)
        ]
        return torch.cat(padded)

    found = [part.alternatives for part in parts if part.alternatives is not None]
    columns = zip(*(one.tables() for one in found), strict=True)
    first_problems = torch.tensor([0, *(len(part.problems) for part in parts)]).cumsum(0).tolist()
    return Rollouts(
        problems=tuple(problem for part in parts for problem in part.problems),
        prompts=tuple(prompt for part in parts for prompt in part.prompts),
        problem_B=torch.cat([part.problem_B + first for part, first in zip(parts, first_problems, strict=False)]),
        response_BT=table("response_BT", pad_id),
        mask_BT=table("mask_BT", False),
        logp_BT=table("logp_BT", 0.0),
        entropy_BT=table("entropy_BT", 0.0),
        finished_B=torch.cat([part.finished_B for part in parts]),
        texts=tuple(text for part in parts for text in part.texts),
        alternatives=Alternatives(*map(torch.cat, columns)) if len(found) == len(parts) else None,
        episodes=None
        if any(part.episodes is None for part in parts)
        else tuple(episode for part in parts for episode in part.episodes or ()),
    )
