"""The sampled responses of a step. Tensor suffixes: P problems, B rows, T tokens of the longest response."""

from dataclasses import dataclass

import torch
from torch import Tensor

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

    `mask_BT`: tokens that were sampled, including the stop token. `logp_BT`: log-probability of the sampled token at
    the sampling temperature, over the whole vocabulary: the old log-probability of the policy ratio. `entropy_BT`:
    Shannon entropy of the distribution that was sampled from, in nats. `finished_B`: the response was ended by a stop
    token or string, not cut off at the maximum length. `alternatives`: None unless they were asked for; only the dump
    of the rollouts reads them.
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

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def length_B(self) -> Tensor:
        return self.mask_BT.sum(dim=1)

    def responses(self) -> list[list[int]]:
        """Return the token ids of each response, without padding."""
        lengths = self.length_B.tolist()
        return [row[:length] for row, length in zip(self.response_BT.tolist(), lengths, strict=True)]

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
        )

    def groups(self) -> list[Sequences]:
        """Return the prompt and the responses of each problem, in the order of problems and rows."""
        responses: list[list[list[int]]] = [[] for _ in self.problems]
        for problem, response in zip(self.problem_B.tolist(), self.responses(), strict=True):
            responses[problem].append(response)
        return [Sequences(prompt, rows) for prompt, rows in zip(self.prompts, responses, strict=True)]


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
    )
