"""The kernel keeps just what `kept_tokens` keeps by sorting. Run by `make test-gpu`."""

import pytest
import torch

from egpo.local.sampling.choose import Sampling, kept_tokens

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

LIMITS = [
    Sampling(top_k=1),
    Sampling(top_k=20),
    Sampling(top_k=10**6),
    Sampling(top_p=1e-9),
    Sampling(top_p=0.5),
    Sampling(top_p=0.95),
    Sampling(top_p=1 - 2**-40),
    Sampling(min_p=0.05),
    Sampling(min_p=1.0),
    Sampling(top_k=50, top_p=0.9),
    Sampling(top_k=3, top_p=0.999999),
    Sampling(top_p=0.9, min_p=0.02),
    Sampling(top_k=30, top_p=0.9, min_p=0.02),
]


def rows_of(kind, num_words):
    generator = torch.Generator().manual_seed(num_words)
    logits_RV = torch.randn(6, num_words, generator=generator)
    if kind == "peaked":
        logits_RV *= 12
    elif kind == "tied":
        logits_RV = logits_RV.round()
    elif kind == "even":
        logits_RV = torch.zeros(6, num_words)
    elif kind == "one word":
        logits_RV = torch.full((6, num_words), -torch.inf)
        logits_RV[:, num_words // 3] = 0.0
    return logits_RV


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("kind", ["spread", "peaked", "tied", "even", "one word"])
@pytest.mark.parametrize("num_words", [7, 512, 2048, 5000])
def test_the_words_that_stay_are_those_of_a_sort(gpu, kind, num_words, limits):
    from egpo.local.sampling.cuda.kernels.truncate import truncate_logits

    logits_RV = rows_of(kind, num_words).to(gpu)
    probability_RV = torch.softmax(logits_RV, dim=-1)
    expected_RV = kept_tokens(probability_RV, limits) & (probability_RV > 0)
    held_R = truncate_logits(logits_RV, probability_RV, limits)
    kept_RV = (logits_RV > -torch.inf) & (probability_RV > 0)
    assert torch.equal(kept_RV, expected_RV)
    torch.testing.assert_close(held_R, torch.where(kept_RV, probability_RV, 0.0).double().sum(-1).float())


def test_words_that_stay_keep_their_logits(gpu):
    from egpo.local.sampling.cuda.kernels.truncate import truncate_logits

    logits_RV = rows_of("spread", 5000).to(gpu)
    before_RV = logits_RV.clone()
    truncate_logits(logits_RV, torch.softmax(logits_RV, dim=-1), Sampling(top_k=40))
    kept_RV = logits_RV > -torch.inf
    assert kept_RV.sum(-1).tolist() == [40] * 6
    assert torch.equal(logits_RV[kept_RV], before_RV[kept_RV])
