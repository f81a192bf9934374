from dataclasses import dataclass

import pytest
import torch

from egpo.errors import EgpoError, EgpoWarning
from egpo.local.memory import is_out_of_memory
from egpo.local.updates.micro_batches import TokenBudget, within_memory


@dataclass(frozen=True)
class Stretch:
    num_tokens: int
    num_rows: int


def halves_of_100(tokens):
    """100 tokens in rows of 10."""
    rows = max(1, tokens // 10)
    return [Stretch(10 * min(rows, 10 - start), min(rows, 10 - start)) for start in range(0, 10, rows)]


def test_work_that_fits_is_done_once_in_order():
    budget, done = TokenBudget(50), []
    results = within_memory(budget, halves_of_100, lambda part: done.append(part) or part.num_tokens, undo=done.clear)
    assert results == [50, 50]
    assert len(done) == 2
    assert budget.tokens == 50


def test_what_was_done_before_the_failure_is_undone_and_done_again():
    """The first two parts succeed, the third fails: their work must not count twice."""
    budget, done, calls = TokenBudget(40), [], []

    def work(part):
        calls.append(part)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        done.append(part.num_tokens)
        return part.num_tokens

    with pytest.warns(EgpoWarning, match="out of memory on 20 tokens at once: continuing with 10"):
        results = within_memory(budget, halves_of_100, work, undo=done.clear)
    assert results == done == [10] * 10
    assert budget.tokens == 10


def test_the_failed_attempt_holds_no_tensor_when_the_next_begins():
    import gc
    import weakref

    budget, alive = TokenBudget(100), []

    def work(part):
        gc.disable()  # references alone must free it: a GPU does not wait for the collector
        assert not any(ref() is not None for ref in alive)
        activations = torch.zeros(10)
        alive.append(weakref.ref(activations))
        if part.num_tokens > 30:
            raise torch.OutOfMemoryError("CUDA out of memory")

    try:
        with pytest.warns(EgpoWarning):
            within_memory(budget, halves_of_100, work, undo=lambda: None)
    finally:
        gc.enable()
    assert len(alive) > 2


def test_one_row_cannot_be_halved():
    def work(part):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.warns(EgpoWarning), pytest.raises(EgpoError, match="out of memory on one sequence of 10 tokens"):
        within_memory(TokenBudget(100), halves_of_100, work, undo=lambda: None)


def test_a_real_allocation_that_fails_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**58)
    assert is_out_of_memory(caught.value)
    assert not is_out_of_memory(RuntimeError("size mismatch"))
    assert not is_out_of_memory(ValueError("no"))
