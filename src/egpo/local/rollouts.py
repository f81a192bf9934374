"""The sampled responses of a step. Tensor suffixes: P problems, B rows, T tokens of the longest response."""

from dataclasses import dataclass

import torch
from torch import Tensor

from egpo.local.models.packs import Sequences
from egpo.tasks import Problem


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Sampled responses. Row b is a response to `problems[problem_B[b]]`, padded on the right.

    `mask_BT`: tokens that were sampled, including the stop token. `logp_BT`: log-probability of the sampled token at
    the sampling temperature, over the whole vocabulary: the old log-probability of the policy ratio. `entropy_BT`:
    Shannon entropy of the distribution that was sampled from, in nats. `finished_B`: the response was ended by a stop
    token or string, not cut off at the maximum length.
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
        """Return the rollouts of these rows, in this order, without problems that none of them answers."""
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
    )
