import itertools

import pytest

from egpo.config.schema import Update
from egpo.local.updates.optimizer import learning_rate


def rates(total=10, **settings):
    return [learning_rate(Update(lr=1.0, **settings), step, total) for step in range(total)]


def test_constant_is_constant():
    assert rates() == [1.0] * 10


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_warm_up_rises_in_equal_parts_and_no_step_is_lost_at_0(schedule):
    found = rates(schedule=schedule, warmup_steps=4)
    assert found[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert found[4] == max(found) == 1.0
    assert min(found) > 0


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_decay_falls_to_0_just_after_the_last_step(schedule):
    found = rates(schedule=schedule, warmup_steps=2)[2:]
    assert all(before > after for before, after in itertools.pairwise(found))
    settings = Update(lr=1.0, schedule=schedule, warmup_steps=2)
    assert learning_rate(settings, 10, 10) == pytest.approx(0)
    assert learning_rate(settings, 11, 10) == pytest.approx(0)
    assert learning_rate(settings, 6, 10) == pytest.approx(0.5)  # half way from 2 to 10


def test_linear_falls_in_equal_parts_and_cosine_slowly_at_both_ends():
    assert rates(schedule="linear") == pytest.approx([1 - step / 10 for step in range(10)])
    cosine = rates(schedule="cosine")
    assert cosine[1] > 0.9
    assert cosine[9] < 0.1


def test_a_warm_up_longer_than_the_run_never_ends():
    assert rates(total=3, warmup_steps=9, schedule="cosine") == pytest.approx([0.1, 0.2, 0.3])
