"""Rows of verl's batch: responses, earlier outputs of a session, padding."""

import torch

from egpo.verl.rows import find_responses
from tests.verl.batches import keys_of


def test_one_output_a_session_is_one_response_a_row():
    keys = keys_of(2, 3)
    found = find_responses(keys, [{}] * 6)
    assert found.row_B.tolist() == found.response_N.tolist() == list(range(6))
    assert found.groups == ("0000-uid",) * 3 + ("0001-uid",) * 3


def test_the_last_output_of_a_session_speaks_for_it_in_whatever_order_rows_stand():
    keys = ["a_0_1", "b_0_0", "a_0_10", "a_1_0", "a_0_2"]
    found = find_responses(keys, [{}] * 5)
    assert [keys[row] for row in found.row_B.tolist()] == ["a_0_10", "b_0_0", "a_1_0"]
    assert found.to_rows(torch.tensor([1.0, 2.0, 3.0])).tolist() == [1.0, 2.0, 1.0, 3.0, 1.0]


def test_padding_rows_are_no_responses_and_get_nothing():
    keys = ["pad01_0_0", "a_0_0", "pad01_1_0"]
    found = find_responses(keys, [{"is_padding": True}, {}, {"is_padding": True}])
    assert found.groups == ("a",)
    assert found.to_rows(torch.tensor([5.0])).tolist() == [0.0, 5.0, 0.0]


def test_a_uid_may_hold_underscores():
    assert find_responses(["a_b_c_0_0"], [{}]).groups == ("a_b_c",)
