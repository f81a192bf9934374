"""Laws of choosing a token: draws follow the distribution, truncation keeps what it says, entropy is entropy."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from egpo.local.sampling.choose import Sampling, choose, draw, entropy, kept_tokens, truncate

logits = st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=12)


def slow_kept(probabilities, sampling):
    """The set that remains, one rule after another, by sorting in Python."""
    order = sorted(range(len(probabilities)), key=lambda i: -probabilities[i])
    if sampling.top_k:
        order = order[: sampling.top_k]
    total = sum(probabilities[i] for i in order)
    kept, held = [], 0.0
    for i in order:
        if sampling.top_p < 1 and held >= sampling.top_p * total and kept:
            break
        kept.append(i)
        held += probabilities[i]
    return {i for i in kept if probabilities[i] >= sampling.min_p * probabilities[order[0]]}


@given(
    logits,
    st.sampled_from([1.0, 0.9, 0.5, 0.1]),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.05, 0.4]),
)
def test_truncation_agrees_with_the_slow_rule(values, top_p, top_k, min_p):
    sampling = Sampling(1.0, top_p, top_k, min_p)
    probability_RV = torch.softmax(torch.tensor([values], dtype=torch.float64), dim=-1)
    left = truncate(probability_RV, sampling)[0]
    expected = slow_kept(probability_RV[0].tolist(), sampling)
    found = {i for i, p in enumerate(left.tolist()) if p > 0}
    # Tokens of equal probability, or at the very edge of top_p, may be kept or not by rounding.
    assert abs(float(left.sum()) - 1) < 1e-9
    assert int(probability_RV.argmax()) in found or probability_RV.max() in probability_RV[0][sorted(found)]
    border = expected ^ found
    assert all(_at_the_edge(i, probability_RV[0].tolist(), sampling) for i in border)


def _at_the_edge(i, probabilities, sampling):
    order = sorted(probabilities, reverse=True)
    kept = order[: sampling.top_k or None]
    before = sum(p for p in kept if p > probabilities[i])
    edges = [before - sampling.top_p * sum(kept), probabilities[i] - sampling.min_p * order[0]]
    tied = sum(p == probabilities[i] for p in probabilities) > 1
    return tied or any(abs(edge) < 1e-9 for edge in edges)


@given(logits, st.floats(0, 1, exclude_max=True))
def test_a_token_without_probability_is_never_drawn(values, uniform):
    probability_RV = torch.softmax(torch.tensor([values]), dim=-1)
    probability_RV[0, ::2] = 0.0
    token = int(draw(probability_RV, torch.tensor([uniform], dtype=torch.float64)))
    assert probability_RV[0, token] > 0 or not probability_RV.any()


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_the_ends_of_the_interval_draw_the_first_and_the_last_possible_token(uniform):
    probability_RV = torch.tensor([[0.0, 0.25, 0.25, 0.5, 0.0]])
    assert int(draw(probability_RV, torch.tensor([uniform], dtype=torch.float64))) == (1 if uniform == 0 else 3)


def test_draws_follow_the_distribution():
    probability_RV = torch.tensor([[0.5, 0.2, 0.2, 0.1]])
    uniform_R = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    token_R = draw(probability_RV.expand(10_000, -1), uniform_R)
    assert torch.bincount(token_R).tolist() == [5000, 2000, 2000, 1000]


def test_rare_tokens_of_a_large_vocabulary_are_drawn_as_often_as_they_should():
    """A float32 running sum would lose them: each adds less than its rounding."""
    size = 1 << 19
    probability_RV = torch.full((1, size), 0.5 / (size - 1))
    probability_RV[0, 0] = 0.5
    token = int(draw(probability_RV, torch.tensor([0.75], dtype=torch.float64)))
    assert abs(token - size / 2) < size * 1e-4


@given(logits, st.floats(0.1, 3.0))
def test_log_probability_and_entropy_are_those_of_the_tempered_distribution(values, temperature):
    choice = choose(torch.tensor([values]), torch.tensor([0.3]), Sampling(temperature))
    exact = torch.log_softmax(torch.tensor(values, dtype=torch.float64) / temperature, dim=-1)
    assert math.isclose(float(choice.logp_R), float(exact[int(choice.token_R)]), abs_tol=2e-4)
    assert math.isclose(float(choice.entropy_R), float(-(exact.exp() * exact).sum()), abs_tol=1e-4)


def test_entropy_of_one_possible_token_is_zero_and_of_equal_ones_is_the_logarithm():
    assert float(entropy(torch.tensor([[0.0, 1.0, 0.0]]))) == 0.0
    assert math.isclose(float(entropy(torch.full((1, 8), 1 / 8))), math.log(8), rel_tol=1e-6)


def test_greedy_reports_the_model_at_temperature_one():
    choice = choose(torch.tensor([[0.0, 2.0, 1.0]]), torch.tensor([0.99]), Sampling(0.0))
    assert int(choice.token_R) == 1
    assert math.isclose(float(choice.logp_R), 2 - math.log(1 + math.e**2 + math.e), rel_tol=1e-5)


LIMITS = [
    {"top_k": 4},
    {"top_p": 0.6},
    {"min_p": 0.2},
    {"top_k": 5, "top_p": 0.8},
    {"top_k": 6, "top_p": 0.9, "min_p": 0.1},
    {"top_k": 500},
    {"min_p": 1.0},
]


def plainly_truncated(probability_V, top_k=0, top_p=1.0, min_p=0.0):
    """One limit after another, each on what the one before it left, normalised: as vLLM and transformers do."""
    left_V = probability_V.clone()
    for limit in ("top_k", "top_p", "min_p"):
        ordered, order = left_V.sort(descending=True)
        if limit == "top_k" and top_k:
            left_V[order[top_k:]] = 0
        if limit == "top_p" and top_p < 1:
            left_V[order[int((ordered.cumsum(0) < top_p).sum()) + 1 :]] = 0
        if limit == "min_p":
            left_V[left_V < min_p * left_V.max()] = 0
        left_V = left_V / left_V.sum()
    return left_V


def test_what_is_just_under_top_p_is_not_rounded_up_to_it():
    probability = torch.tensor([[0.5 - 1e-8, 0.3, 0.2 + 1e-8]], dtype=torch.float64)
    assert kept_tokens(probability, Sampling(top_p=0.5)).tolist() == [[True, True, False]]


def test_of_equal_tokens_the_first_ones_stay():
    probability = torch.tensor([[0.1, 0.2, 0.2, 0.3, 0.2]])
    assert kept_tokens(probability, Sampling(top_k=3)).tolist() == [[False, True, True, True, False]]


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
@pytest.mark.parametrize("limits", LIMITS, ids=str)
def test_tokens_come_as_often_as_the_limits_say_one_after_another(limits, temperature):
    """Draws on an even grid: a token's share of them is its probability to a grid's step."""
    num_draws = 20_000
    logits_V = 2 * torch.randn(12, generator=torch.Generator().manual_seed(3))
    uniform_R = (torch.arange(num_draws, dtype=torch.float64) + 0.5) / num_draws
    choice = choose(logits_V.expand(num_draws, -1), uniform_R, Sampling(temperature, **limits))
    whole_V = torch.softmax(logits_V.double() / temperature, dim=-1)
    expected_V = plainly_truncated(whole_V, **limits)
    share_V = torch.bincount(choice.token_R, minlength=12) / num_draws
    torch.testing.assert_close(share_V.double(), expected_V, atol=2e-4, rtol=0)
    expected = -torch.special.xlogy(expected_V, expected_V).sum()
    torch.testing.assert_close(choice.entropy_R.double(), expected.expand(num_draws), atol=1e-5, rtol=0)
    torch.testing.assert_close(choice.logp_R.double(), whole_V.log()[choice.token_R], atol=1e-5, rtol=0)
