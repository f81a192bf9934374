import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from egpo.local.updates.losses import token_weights

AGGREGATIONS = ("token_mean", "sequence_mean", "fixed_length")
lengths = st.lists(st.integers(0, 50), min_size=1, max_size=20).map(torch.tensor)


def total(length_B, aggregation, horizon=50):
    """The loss of a batch in which every token's is 1."""
    return float((token_weights(length_B, aggregation, horizon) * length_B).sum())


@given(lengths)
def test_means_of_a_constant_are_that_constant(length_B):
    expected = 1.0 if length_B.sum() else 0.0
    assert total(length_B, "token_mean") == pytest.approx(expected, rel=1e-5)
    assert total(length_B, "sequence_mean") == pytest.approx(expected, rel=1e-5)


@given(lengths)
def test_a_fixed_length_is_the_mean_length_in_units_of_the_horizon(length_B):
    full_B = length_B[length_B > 0].double()
    expected = float(full_B.mean()) / 50 if len(full_B) else 0.0
    assert total(length_B, "fixed_length") == pytest.approx(expected, rel=1e-5)


@given(lengths)
def test_all_tokens_or_all_responses_are_alike(length_B):
    full_B = length_B > 0
    assert token_weights(length_B, "token_mean", 50)[full_B].unique().numel() <= 1
    shares_B = (token_weights(length_B, "sequence_mean", 50) * length_B)[full_B]
    torch.testing.assert_close(shares_B, torch.full_like(shares_B, 1 / max(1, int(full_B.sum()))))
    assert token_weights(length_B, "fixed_length", 50)[full_B].unique().numel() <= 1


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_row_without_tokens_does_not_count(aggregation):
    with_empty = token_weights(torch.tensor([3, 0, 5]), aggregation, 10)
    assert with_empty[1] == 0
    assert torch.equal(with_empty[[0, 2]], token_weights(torch.tensor([3, 5]), aggregation, 10))


@pytest.mark.parametrize(
    ("aggregation", "verls"), [("token_mean", 8.125), ("sequence_mean", 7.5), ("fixed_length", 2.166667)]
)
def test_the_figures_are_verls(aggregation, verls):
    """Made with verl 0.9.1's agg_loss: token-mean, seq-mean-token-mean, seq-mean-token-sum-norm (scale factor 10)."""
    length_B = torch.tensor([3, 0, 1, 4])
    loss_BT, mask_BT = torch.arange(16.0).view(4, 4), torch.arange(4) < length_B[:, None]
    weight_B = token_weights(length_B, aggregation, 10)
    assert float((weight_B[:, None] * loss_BT * mask_BT).sum()) == pytest.approx(verls)
