"""Rows into forward passes of a bounded number of tokens, without padding. B rows.

The gradient of one mini-batch's loss, summed over micro-batches. B rows, T tokens; M response tokens of a pack.

A mini-batch on several cores: whose rows each takes, and how their gradients become one.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from egpo.config.sections.training import Update
from egpo.local.models.packs import Sequences, pack_groups
from egpo.local.models.policy import Policy
from egpo.local.rollouts import Rollouts
from egpo.local.updates.losses import KL_ESTIMATORS, clipped_surrogate
from egpo.token_stats import token_stats


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


@dataclass(frozen=True, eq=False)
class Targets:
    """What the loss compares the policy with, on its device. `reference_BT` only where KL is a term of the loss."""

    old_logp_BT: Tensor
    mask_BT: Tensor
    advantage_B: Tensor
    weight_B: Tensor
    reference_BT: Tensor | None = None

    def of(self, rows: Sequence[int]) -> "_TokenTargets":
        """At the tokens of these rows, in order."""
        row_R = torch.tensor(rows, device=self.mask_BT.device)
        mask_RT = self.mask_BT[row_R]
        length_R = mask_RT.sum(1)
        return _TokenTargets(
            old_logp_M=self.old_logp_BT[row_R][mask_RT],
            advantage_M=self.advantage_B[row_R].repeat_interleave(length_R),
            weight_M=self.weight_B[row_R].repeat_interleave(length_R),
            reference_M=None if self.reference_BT is None else self.reference_BT[row_R][mask_RT],
        )


@dataclass(frozen=True, eq=False)
class _TokenTargets:
    old_logp_M: Tensor
    advantage_M: Tensor
    weight_M: Tensor
    reference_M: Tensor | None


@dataclass(frozen=True)
class LossSums:
    """Sums over tokens, to be divided where they are reported; `pg_loss` is weighted already. 0-d tensors, so that no
    micro-batch waits for the device, or numbers."""

    pg_loss: Tensor | float = 0.0
    kl: Tensor | float = 0.0
    clipped: Tensor | float = 0.0
    capped: Tensor | float = 0.0
    minus_log_ratio: Tensor | float = 0.0
    num_tokens: Tensor | float = 0.0

    def __add__(self, other: "LossSums") -> "LossSums":
        return LossSums(*(mine + theirs for mine, theirs in zip(self._values(), other._values(), strict=True)))

    def as_numbers(self) -> "LossSums":
        return LossSums(*map(float, self._values()))

    def _values(self) -> Iterator[Tensor | float]:
        return (getattr(self, field.name) for field in fields(self))


def loss_of(
    policy: Policy, part: MicroBatch, targets: Targets, settings: Update, temperature: float
) -> tuple[Tensor, LossSums]:
    """One forward pass: the sum over tokens of weight * (surrogate + kl * KL), without the logits ever standing whole.
    Entropy has no gradient."""
    pack = pack_groups(part.groups, policy.device)
    hidden_MD = policy.hidden(pack)[pack.source_M]
    logp_M, _ = token_stats(hidden_MD, policy.head_VD, pack.target_M, temperature)
    return _loss(logp_M, targets.of(part.rows), settings)


def _loss(logp_M: Tensor, targets: _TokenTargets, settings: Update) -> tuple[Tensor, LossSums]:
    high = settings.clip if settings.clip_high is None else settings.clip_high
    surrogate = clipped_surrogate(
        logp_M, targets.old_logp_M, targets.advantage_M, low=settings.clip, high=high, dual=settings.dual_clip
    )
    pg_loss = loss = (targets.weight_M * surrogate.loss_M).sum()
    kl_M = torch.zeros_like(logp_M)
    if targets.reference_M is not None:
        kl_M = KL_ESTIMATORS[settings.kl_estimator](logp_M, targets.reference_M)
        loss = pg_loss + settings.kl * (targets.weight_M * kl_M).sum()
    sums = LossSums(
        pg_loss=pg_loss.detach(),
        kl=kl_M.detach().sum(),
        clipped=surrogate.clipped_M.sum(),
        capped=surrogate.capped_M.sum(),
        minus_log_ratio=surrogate.minus_log_ratio_M.sum(),
        num_tokens=float(len(logp_M)),
    )
    return loss, sums


def row_shares(rows: Sequence[int], tokens: RowTokens, sides: int) -> list[list[int]]:
    """Every row that has tokens in one of at most `sides` shares of like numbers of tokens: the largest piece first,
    to the share with the least. Groups stay together unless there are too few of them."""
    if sides == 1:
        return [list(rows)]
    groups = [group for part in micro_batches(rows, tokens, budget=1 << 60) for group in part.groups]
    largest = max((group.num_tokens for group in groups), default=0)
    # Where groups are cut, each piece has the prompt.
    prompt = max((len(group.prompt) for group in groups), default=0)
    fair = -(-(sum(group.num_tokens for group in groups) + prompt * (sides - 1)) // sides)
    shares: list[list[int]] = [[] for _ in range(sides)]
    loads = [0] * sides
    for piece in micro_batches(rows, tokens, budget=min(fair, largest)):
        place = loads.index(min(loads))
        shares[place].extend(piece.rows)
        loads[place] += piece.num_tokens
    return [share for share in shares if share]


class OwnGradients:
    """The sum of one share's gradients, apart from the weights' own, which other shares must not meet half way."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        self._weights = [weight for weight in parameters if weight.requires_grad]
        self._sums: list[Tensor | None] = [None] * len(self._weights)

    def add(self, loss: Tensor) -> None:
        found = torch.autograd.grad(loss, self._weights, allow_unused=True)
        self._sums = [_sum(known, new) for known, new in zip(self._sums, found, strict=True)]

    def forget(self) -> None:
        self._sums = [None] * len(self._weights)

    def hand_over(self) -> None:
        """To the weights. Share by share in order, so that their sum does not depend on who was done first."""
        for weight, gradient in zip(self._weights, self._sums, strict=True):
            weight.grad = _sum(weight.grad, gradient)


def _sum(known: Tensor | None, new: Tensor | None) -> Tensor | None:
    """In place of the first."""
    if known is None or new is None:
        return new if known is None else known
    return known.add_(new)
