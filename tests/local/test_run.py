"""The order of problems: all of them in every epoch, and a position is all there is to remember."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.errors import InputError
from egpo.local.run import ProblemStream
from egpo.tasks import Problem

PROBLEMS = [Problem(str(i), (), "") for i in range(7)]


def stream(admits=lambda problems: [True] * len(problems), seed=0, problems=PROBLEMS):
    return ProblemStream(problems, seed, admits)


@given(st.lists(st.integers(0, 9), max_size=8))
def test_however_it_is_taken_the_order_is_the_same(counts):
    one_by_one = stream().take(sum(counts))
    parts = stream()
    assert [problem for count in counts for problem in parts.take(count)] == one_by_one


def test_every_epoch_holds_every_problem_once_in_another_order():
    keys = [problem.key for problem in stream().take(28)]
    epochs = [keys[i : i + 7] for i in range(0, 28, 7)]
    assert all(sorted(epoch) == sorted(problem.key for problem in PROBLEMS) for epoch in epochs)
    assert len(set(map(tuple, epochs))) > 1
    assert [problem.key for problem in stream(seed=1).take(28)] != keys


def test_a_stream_set_to_a_position_goes_on_from_there():
    whole, later = stream(), stream()
    whole.take(10)
    later.position = whole.position
    assert later.take(10) == whole.take(10)


def test_what_is_not_admitted_is_left_out_and_counted():
    odd = stream(admits=lambda problems: [int(problem.key) % 2 == 1 for problem in problems])
    assert {problem.key for problem in odd.take(6)} == {"1", "3", "5"}
    assert odd.num_left_out > 0


def test_nothing_admitted_and_nothing_there_are_errors():
    with pytest.raises(InputError, match="all 7 prompts"):
        stream(admits=lambda problems: [False] * len(problems)).take(1)
    with pytest.raises(InputError, match="no problems"):
        stream(problems=[])
