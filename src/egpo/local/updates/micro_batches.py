"""Cut rows into forward passes of a bounded number of tokens without padding, and into smaller ones if memory runs out.

B rows, N tokens of a pass. `micro_batches` packs rows into passes, `split_rows` gives each core its rows, and
`within_memory` works through the passes with a `TokenBudget`, which it halves when a pass does not fit.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from transformers import PreTrainedModel

from egpo.errors import EgpoError, warn_once
from egpo.local.memory import OUT_OF_MEMORY, is_out_of_memory
from egpo.local.models.architectures import layers_of
from egpo.local.models.packs import Sequences
from egpo.local.models.policy import Policy
from egpo.local.rollouts import Rollouts
from egpo.local.updates.optimizer import BYTES_PER_WEIGHT

_CPU_TOKENS, _GPU_TOKENS = 2_048, 16_384
"""Tokens of a pass by default: a CPU is fastest within its cache, a GPU on large products."""
_MOST_FUSED_TOKENS, _FEWEST_FUSED_TOKENS = 40_960, 2_048
"""Bounds of the default for the engine's own layers on a GPU; larger passes are not faster."""
_ACTIVATIONS_FRAC = 0.6
"""Fraction of the memory that weights, gradients, moments and the decoder's buffers leave; the rest is for the
allocator's gaps."""
_DECODER_FRAC = 0.25
"""Fraction of the GPU's memory for the decoder's buffers."""


@dataclass(frozen=True)
class RowTokens:
    """The token ids of a batch as lists: row b answers `prompts[problem[b]]`; responses are without padding."""

    prompts: Sequence[Sequence[int]]
    problem: Sequence[int]
    responses: Sequence[Sequence[int]]

    @classmethod
    def of(cls, rollouts: Rollouts) -> "RowTokens":
        return cls(rollouts.prompts, rollouts.problem_B.tolist(), rollouts.responses())


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
    """Return every row that has tokens exactly once, in passes of at most `budget` tokens; a longer row is alone.

    A group stays together, so that its prompt is computed once; a group that is too large is cut, and its prompt
    repeated. The longest piece first, into the first pass that can hold it.
    """
    pieces = [piece for group in _by_problem(rows, tokens) for piece in _pieces(group, tokens, budget)]
    parts = first_fit([piece.num_tokens for piece in pieces], budget)
    return [_joined([pieces[i] for i in part]) for part in parts]


def first_fit(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Return the indices of `sizes` in bins of at most `capacity`, largest first; a larger one has a bin for itself."""
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
    """Return the rows that have tokens in at most `num_cores` parts with similar numbers of tokens.

    The largest piece first, to the part with the fewest tokens. Groups stay together unless there are too few."""
    if num_cores == 1:
        return [list(rows)]
    groups = [group for part in micro_batches(rows, tokens, budget=1 << 60) for group in part.groups]
    largest = max((group.num_tokens for group in groups), default=0)
    # Where groups are cut, each piece has the prompt.
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
    """Return a group whole if the budget allows, else in pieces."""
    prompt = tokens.prompts[tokens.problem[group[0]]]
    sizes = [Sequences((), [tokens.responses[row]]).num_tokens for row in group]
    pieces = [[group[i] for i in piece] for piece in first_fit(sizes, budget - len(prompt))]
    return [MicroBatch(tuple(rows), (Sequences(prompt, [tokens.responses[row] for row in rows]),)) for rows in pieces]


def _joined(pieces: Sequence[MicroBatch]) -> MicroBatch:
    return MicroBatch(
        rows=tuple(row for piece in pieces for row in piece.rows),
        groups=tuple(group for piece in pieces for group in piece.groups),
    )


class Pass(Protocol):
    """Rows that go through the model together."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_rows(self) -> int: ...


AnyPass = TypeVar("AnyPass", bound=Pass)
Result = TypeVar("Result")


class TokenBudget:
    """The most tokens of one pass. Once halved, it stays so for the run: memory that was short will be short again."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def halve(self, failed: Pass) -> None:
        """Lower the budget so that the failed pass is cut in at least two; raise if it is a single row."""
        if failed.num_rows == 1:
            raise EgpoError(
                f"out of memory on one sequence of {failed.num_tokens} tokens",
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
    """Return the recipe's number of tokens, or the default for the device and the model."""
    return TokenBudget(wanted or _default_tokens(policy))


def _default_tokens(policy: Policy) -> int:
    if policy.path == "cuda_layers":
        return tokens_that_fit(policy.model)
    return _GPU_TOKENS if policy.device.type == "cuda" else _CPU_TOKENS


def tokens_that_fit(model: PreTrainedModel) -> int:
    """Return the tokens of a pass through the engine's own layers on a GPU: call it before the first update."""
    free, total = torch.cuda.mem_get_info(model.device)
    free += torch.cuda.memory_reserved(model.device) - torch.cuda.memory_allocated(model.device)
    learning = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    left = free - BYTES_PER_WEIGHT * learning - _DECODER_FRAC * total
    tokens = int(_ACTIVATIONS_FRAC * left / bytes_per_token(model))
    return max(_FEWEST_FUSED_TOKENS, min(_MOST_FUSED_TOKENS, tokens))


def bytes_per_token(model: PreTrainedModel) -> int:
    """Return the bytes that the engine's own layers on a GPU keep of a token for the backward pass.

    Two sums and two norms of the hidden state, the joint projection, queries and the output of attention, keys and
    values (an estimated quarter more, for copies beside those of their prompts), and three inner states. With gradient
    checkpointing: the input of every layer, and the inner states of one."""
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
    """Return the results of `work` on every pass of `cut(tokens)`. If one does not fit into memory: `undo` everything,
    and start again with half the tokens."""
    while True:
        results: list[Result] = []
        failed = next((part for part in cut(budget.tokens) if not _fits(part, work, results)), None)
        if failed is None:
            return results
        # Only now is the exception gone, and with it the frames that hold tensors.
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
