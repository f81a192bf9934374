"""Tokens in one pass through the model: where memory runs out, the same work in smaller parts."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch

from egpo.errors import EgpoError, warn_once
from egpo.local.memory import OUT_OF_MEMORY, is_out_of_memory
from egpo.local.models.policy import Policy


class Part(Protocol):
    """Rows that go through the model together."""

    @property
    def num_tokens(self) -> int: ...
    @property
    def num_rows(self) -> int: ...


AnyPart = TypeVar("AnyPart", bound=Part)
Result = TypeVar("Result")


class TokenBudget:
    """Once halved it stays so for the run: memory that was short will be short again."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def halve(self, failed: Part) -> None:
        """So that the part that did not fit is cut in two at least."""
        if failed.num_rows == 1:
            raise EgpoError(
                f"out of memory on one sequence of {failed.num_tokens} tokens",
                where="update",
                fix="allow shorter sequences, set model.gradient_checkpointing, train adapters (model.lora), "
                "or take a smaller model",
            )
        self.tokens = max(1, failed.num_tokens // 2)
        warn_once(
            "out of memory in the update",
            f"out of memory on {failed.num_tokens} tokens at once: going on with {self.tokens}; "
            f"to begin with that, set micro_tokens to {self.tokens}",
        )


def budget_for(wanted: int | None, policy: Policy) -> TokenBudget:
    """As the recipe says, or what suits the device: a CPU works best out of its cache, a GPU on large products."""
    return TokenBudget(wanted or _suited(policy))


def _suited(policy: Policy) -> int:
    if policy.path == "fused":
        from egpo.local.models.cuda.packed import tokens_that_fit

        return tokens_that_fit(policy.model)
    return 16_384 if policy.device.type == "cuda" else 2_048


def within_memory(
    budget: TokenBudget,
    cut: Callable[[int], Sequence[AnyPart]],
    work: Callable[[AnyPart], Result],
    undo: Callable[[], None],
) -> list[Result]:
    """`work` on every part of `cut(tokens)`. Where one does not fit: `undo` all that was done, and begin again with
    half the tokens."""
    while True:
        results: list[Result] = []
        failed = next((part for part in cut(budget.tokens) if not _fits(part, work, results)), None)
        if failed is None:
            return results
        # Not before the exception is gone, and with it the frames that hold on to tensors.
        undo()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        budget.halve(failed)


def _fits(part: AnyPart, work: Callable[[AnyPart], Result], results: list[Result]) -> bool:
    try:
        results.append(work(part))
    except OUT_OF_MEMORY as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True
