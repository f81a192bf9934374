"""Every example once an epoch, whole, within the budget; and the same plan for the same seed."""

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from egpo.local.sft.batches import plan_batches

lengths = st.lists(st.integers(2, 60), min_size=1, max_size=40)


@given(lengths, st.integers(1, 200), st.integers(1, 3))
def test_every_epoch_takes_every_example_once(lengths, budget, epochs):
    batches = plan_batches(torch.tensor(lengths), batch_tokens=budget, epochs=epochs, seed=1)
    for epoch in range(epochs):
        taken = torch.cat([batch.examples for batch in batches if batch.epoch == epoch])
        assert sorted(taken.tolist()) == list(range(len(lengths)))
    assert [batch.epoch for batch in batches] == sorted(batch.epoch for batch in batches)


@given(lengths, st.integers(1, 200))
def test_a_step_holds_as_many_as_fit_and_one_at_least(lengths, budget):
    sizes = [
        [lengths[example] for example in batch.examples]
        for batch in plan_batches(torch.tensor(lengths), batch_tokens=budget, epochs=1, seed=1)
    ]
    assert all(sum(size) <= budget or len(size) == 1 for size in sizes)
    for size, following in pairwise(sizes):
        assert sum(size) + following[0] > budget


def test_the_order_is_a_function_of_the_seed_and_differs_between_epochs():
    def order(seed, epoch):
        batches = plan_batches(torch.full((50,), 3), batch_tokens=10, epochs=2, seed=seed)
        return torch.cat([batch.examples for batch in batches if batch.epoch == epoch]).tolist()

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(2, 0)
    assert order(1, 0) != order(1, 1)
