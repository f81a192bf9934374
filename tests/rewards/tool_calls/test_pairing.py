"""The pairing of calls and answers, against every possible one."""

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from egpo.rewards.tool_calls.judge import Pairing

edges = st.integers(1, 5).flatmap(
    lambda n: st.lists(st.lists(st.booleans(), min_size=n, max_size=n), min_size=n, max_size=n)
)


@given(edges)
def test_a_complete_pairing_is_found_exactly_if_there_is_one(fit):
    answers = range(len(fit))
    pairing = Pairing(len(fit), lambda call, answer: fit[call][answer])
    found = all(pairing.add(answer) for answer in answers)
    assert found == any(all(fit[call][answer] for answer, call in enumerate(order)) for order in permutations(answers))
    assert bool(pairing.free_calls()) != found


def test_a_long_chain_of_moves():
    """Each answer prefers its neighbour's call; the last one sets all of them moving."""
    length = 3000
    pairing = Pairing(length, lambda call, answer: call in (answer - 1, answer) if answer else call == 0)
    order = [*range(1, length), 0]
    assert all(pairing.add(answer) for answer in order[:50])
    assert pairing.add(0)
    assert len(pairing.free_calls()) == length - 51
