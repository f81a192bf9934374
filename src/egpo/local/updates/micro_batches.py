"""Cut rows into forward passes of a bounded number of tokens without padding, and into smaller ones if memory runs out.

Tensor suffixes: B rows, N tokens of a pass. `micro_batches` packs rows into passes, `split_rows` gives each core its
rows, and `within_memory` works through the passes with a `TokenBudget`, which it halves when a pass does not fit.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from egpo.errors import EgpoError, warn_once
from egpo.local.memory import OUT_OF_MEMORY, held_by_others, is_out_of_memory
from egpo.local.models.architectures import layers_of
from egpo.local.models.packs import Sequences
from egpo.local.models.policy import Policy
from egpo.local.rollouts import Rollouts
from egpo.local.updates.optimizer import BYTES_PER_WEIGHT

_CPU_TOKENS, _GPU_TOKENS = 2_048, 16_384
"""Default number of tokens in a forward pass: a CPU is fastest if they fit its cache, a GPU on large products."""
_MOST_FUSED_TOKENS, _FEWEST_FUSED_TOKENS = 40_960, 2_048
"""Bounds of the default number of tokens for the engine's own layers on a GPU; larger passes are not faster."""
_ACTIVATIONS_FRAC = 0.6
"""Fraction of the remaining GPU memory that activations may use, after weights, gradients, optimizer moments and the
decoder's buffers. The rest allows for memory fragmentation."""
_DECODER_FRAC = 0.25
"""Fraction of the GPU's memory that is reserved for the buffers of the decoder, which samples responses."""


@dataclass(frozen=True)
class RowTokens:
    """The token ids of a batch as lists without padding. Row b is a response to `prompts[problem[b]]`.

    `sampled` marks the tokens of each response that were sampled; None: all.
    """

    prompts: Sequence[Sequence[int]]
    problem: Sequence[int]
    responses: Sequence[Sequence[int]]
    sampled: Sequence[Sequence[bool]] | None = None

    @classmethod
    def of(cls, rollouts: Rollouts) -> "RowTokens":
        return cls(rollouts.prompts, rollouts.problem_B.tolist(), rollouts.responses(), rollouts.sampled())

    def sequences(self, rows: Sequence[int]) -> Sequences:
        """Return the prompt and the responses of rows of one problem."""
        sampled = None if self.sampled is None else [self.sampled[row] for row in rows]
        return Sequences(self.prompts[self.problem[rows[0]]], [self.responses[row] for row in rows], sampled)


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward pass, in the order in which `groups` hold their responses."""

    rows: tuple[int, ...]
    groups: tuple[Sequences, ...]

    @property
    def num_rows(self) -> int:
        return len(self.rows)

    @property
    def num_tokens(self) -> int:
        return sum(group.num_tokens for group in self.groups)


def micro_batches(rows: Iterable[int], tokens: RowTokens, budget: int) -> list[MicroBatch]:
    """Split the rows that have tokens into passes of at most `budget` tokens; a longer row gets its own pass.

    A group stays together, so that its prompt is computed once; a group that is too large is cut, and its prompt
    repeated. Pieces are placed from the longest to the shortest, each into the first pass with enough space.
    """
    pieces = [piece for group in _by_problem(rows, tokens) for piece in _pieces(group, tokens, budget)]
    parts = first_fit([piece.num_tokens for piece in pieces], budget)
    return [_joined([pieces[i] for i in part]) for part in parts]


def first_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Distribute the indices of `sizes` over bins of at most `capacity`, largest size first (first-fit decreasing).

    A size larger than `capacity` gets its own bin.
    """
    bins: list[list[int]] = []
    loads: list[int] = []
    for i in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        place = next((b for b, load in enumerate(loads) if load + sizes[i] <= capacity), len(bins))
        if place == len(bins):
            bins.append([])
            loads.append(0)
        bins[place].append(i)
        loads[place] += sizes[i]
    return bins


def split_rows(rows: Sequence[int], tokens: RowTokens, num_cores: int) -> list[list[int]]:
    """Split the rows that have tokens into at most `num_cores` parts with similar numbers of tokens.

    Pieces are assigned from the largest to the smallest, each to the part with the fewest tokens. Groups stay together
    unless there are too few of them.
    """
    if num_cores == 1:
        return [list(rows)]
    groups = [group for part in micro_batches(rows, tokens, budget=1 << 60) for group in part.groups]
    largest = max((group.num_tokens for group in groups), default=0)
    # If a group is cut, each piece contains the prompt.
    prompt = max((len(group.prompt) for group in groups), default=0)
    fair = -(-(sum(group.num_tokens for group in groups) + prompt * (num_cores - 1)) // num_cores)
    parts: list[list[int]] = [[] for _ in range(num_cores)]
    loads = [0] * num_cores
    for piece in micro_batches(rows, tokens, budget=min(fair, largest)):
        place = loads.index(min(loads))
        parts[place].extend(piece.rows)
        loads[place] += piece.num_tokens
    return [part for part in parts if part]


def _by_problem(rows: Iterable[int], tokens: RowTokens) -> list[list[int]]:
    groups: dict[int, list[int]] = {}
    for row in rows:
        if tokens.responses[row]:
            groups.setdefault(tokens.problem[row], []).append(row)
    return list(groups.values())


def _pieces(group: list[int], tokens: RowTokens, budget: int) -> list[MicroBatch]:
    """Return a group as one piece if it fits the budget, else in several pieces."""
    prompt = tokens.prompts[tokens.problem[group[0]]]
    sizes = [Sequences((), [tokens.responses[row]]).num_tokens for row in group]
    pieces = [[group[i] for i in piece] for piece in first_fit(sizes, budget - len(prompt))]
    return [MicroBatch(tuple(rows), (tokens.sequences(rows),)) for rows in pieces]


def _joined(pieces: Sequence[MicroBatch]) -> MicroBatch:
    return MicroBatch(
        rows=tuple(row for piece in pieces for row in piece.rows),
        groups=tuple(group for piece in pieces for group in piece.groups),
    )


class Pass(Protocol):
    """The size of a forward pass: how many rows and tokens go through the model together."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_rows(self) -> int: ...


AnyPass = TypeVar("AnyPass", bound=Pass)
Result = TypeVar("Result")


class TokenBudget:
    """The largest number of tokens in one forward pass. Once lowered, it stays lower for the rest of the run."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def halve(self, failed: Pass) -> None:
        """Lower the budget so that the failed pass is cut into at least two; raise EgpoError if it is a single row."""
        if failed.num_rows == 1:
            raise EgpoError(
                f"out of memory on one sequence of {failed.num_tokens} tokens{held_by_others()}",
                where="update",
                fix="allow shorter sequences, set model.gradient_checkpointing, train adapters (model.lora), "
                "or use a smaller model",
            )
        self.tokens = max(1, failed.num_tokens // 2)
        warn_once(
            "out of memory in the update",
            f"out of memory on {failed.num_tokens} tokens at once: continuing with {self.tokens}; "
            f"to start with that number, set micro_tokens to {self.tokens}",
        )


def budget_for(wanted: int | None, policy: Policy) -> TokenBudget:
    """Return the budget for a forward pass: `wanted` tokens, or the default for the device and the model if None."""
    return TokenBudget(wanted or _default_tokens(policy))


def _default_tokens(policy: Policy) -> int:
    if policy.path == "cuda_layers":
        return tokens_that_fit(policy.model)
    return _GPU_TOKENS if policy.device.type == "cuda" else _CPU_TOKENS


def tokens_that_fit(model: PreTrainedModel) -> int:
    """Return how many tokens of one pass through the engine's own layers fit into the GPU's free memory.

    Call it before the first update: it assumes that gradients and optimizer state are not allocated yet.
    """
    free, total = torch.cuda.mem_get_info(model.device)
    free += torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
    learning = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    left = free - BYTES_PER_WEIGHT * learning - _DECODER_FRAC * total
    tokens = int(_ACTIVATIONS_FRAC * left / bytes_per_token(model))
    return max(_FEWEST_FUSED_TOKENS, min(_MOST_FUSED_TOKENS, tokens))


def bytes_per_token(model: PreTrainedModel) -> int:
    """Return how many bytes per token the engine's own layers on a GPU keep for the backward pass.

    These are, for each layer: two sums and two norms of the hidden state, the joint projection, queries and the output
    of attention, keys and values (an estimated quarter more, for the copies of prompts), and three inner states of the
    MLP. With gradient checkpointing: the input of every layer, and these tensors of one layer.
    """
    layers, hidden = layers_of(model), model.config.hidden_size
    heads = 3 * layers[0].query.out_features + 4.5 * layers[0].key.out_features
    inside = 4 * hidden + heads + 3 * model.config.intermediate_size
    numbers = inside + 2 * hidden * len(layers) if model.is_gradient_checkpointing else inside * len(layers)
    return int(numbers * model.dtype.itemsize)


def within_memory(
    budget: TokenBudget,
    cut: Callable[[int], Sequence[AnyPass]],
    work: Callable[[AnyPass], Result],
    undo: Callable[[], None],
) -> list[Result]:
    """Call `work` on every pass that `cut(tokens)` returns, and return the results.

    If a pass does not fit into memory, call `undo`, halve the budget, and start again with the first pass.
    """
    while True:
        results: list[Result] = []
        failed = next((part for part in cut(budget.tokens) if not _fits(part, work, results)), None)
        if failed is None:
            return results
        # The exception has been freed here, and with it the stack frames that hold tensors.
        undo()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        budget.halve(failed)


def _fits(part: AnyPass, work: Callable[[AnyPass], Result], results: list[Result]) -> bool:
    try:
        results.append(work(part))
    except OUT_OF_MEMORY as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
