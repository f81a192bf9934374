"""The self-check on Qwen2.5, Qwen3 and Llama 3 shapes whose weights have the outliers of trained models.

SmolLM2-135M, which is real, has the figures of REAL (benchmarks/self_check.py prints them for any model)."""

from functools import cache

import pytest
import torch

from egpo.local.models import self_check
from egpo.local.models.attention import ATTENTION_NAME
from egpo.local.models.policy import Policy
from tests.local.conftest import build_model, build_tokenizer
from tests.local.models import outlier_models
from tests.local.models.mutations import CACHE_SEES, MUTATIONS, mutations_of
from tests.local.models.outlier_models import FAMILIES, OutlierFigures, build_outlier_model, outlier_figures
from tests.local.models.test_self_check import ratios_with

REAL = OutlierFigures(usual_ratio=44.3, usual_kurtosis=88.1, peak_ratio=501.0, peak_kurtosis=557.9, peak_size=24494.1)
MAIN = ("qwen2.5", "qwen3", "llama3")
CASES = [
    (family, name)
    for family in MAIN
    for name in MUTATIONS
    if ("bias" not in name or family == "qwen2.5")
    and ("query and key norm" not in name or family == "qwen3")
    and (name not in ("rope unscaled", "rope scaled by another factor") or family == "llama3")
]


def policy_of(model, dtype=torch.float32):
    model.set_attn_implementation(ATTENTION_NAME)
    return Policy(model.to(dtype).train(), build_tokenizer(), 4096, frozenset([2]), 0)


@cache
def policy(family, dtype=torch.float32):
    return policy_of(build_outlier_model(family, build_tokenizer()), dtype)


def figures_of(found):
    group = self_check.text_tokens(found)
    return outlier_figures(found.model, [*group.prompt, *group.responses[0]])


@pytest.mark.parametrize("family", FAMILIES)
def test_outliers_are_of_the_size_of_a_real_models(family):
    found = figures_of(policy(family))
    assert 0.5 < found.usual_ratio / REAL.usual_ratio < 2
    assert 0.5 < found.usual_kurtosis / REAL.usual_kurtosis < 2
    assert 0.5 < found.peak_ratio / REAL.peak_ratio < 4
    # The kurtosis of one value among D zeros is D nearly: one channel alone makes the peak.
    assert found.peak_kurtosis > 0.9 * FAMILIES[family].hidden_size


def test_random_weights_have_no_outliers():
    found = figures_of(policy_of(build_model("qwen2")))
    assert found.peak_ratio < 20
    assert found.usual_kurtosis < 10


@torch.no_grad()
@pytest.mark.parametrize("family", MAIN)
def test_in_16_bits_they_round_as_badly_as_a_real_model(family):
    """transformers' own error, as a share of the spread of the logits: 3.5 % on SmolLM2-135M."""
    found = policy(family, torch.bfloat16)
    reference = self_check.ReferenceLogits.of(found, self_check.text_tokens(found))
    spread = float(torch.cat(reference.exact).std(dim=-1).mean())
    assert 0.008 < float(torch.cat(reference.their_errors).mean()) / spread < 0.1


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_they_pass_as_they_are(family, dtype):
    found = policy(family, dtype)
    assert found.path == "cpu_layers"
    assert all(path.ratio < 0.8 for path in self_check.measure_paths(found))


@torch.no_grad()
@pytest.mark.parametrize(("family", "seed"), [("qwen3", 0), ("llama3", 3), ("llama3", 0)])
def test_larger_outliers_pass_too(family, seed, monkeypatch):
    """Single tokens at which the engine's error happens to be large and transformers' small, or the other way round:
    with one factor for the mean and the 99th percentile these were refused."""
    monkeypatch.setattr(outlier_models, "CHANNEL_FACTOR", 40.0)
    monkeypatch.setattr(outlier_models, "SINK_SIZE", 4000.0)
    monkeypatch.setattr(outlier_models, "QUERY_FACTOR", 1.0)
    for dtype in (torch.float32, torch.bfloat16):
        paths = self_check.measure_paths(policy_of(build_outlier_model(family, build_tokenizer(), seed), dtype))
        assert all(path.ratio < 0.8 for path in paths)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("family", "name"), CASES)
def test_every_fault_is_refused_on_each_path(family, name, dtype):
    ratios = ratios_with(policy(family, dtype), name)
    for path in ("packed", "cached") if name in CACHE_SEES else ("packed",):
        assert max(ratio for found, ratio in ratios.items() if found.startswith(path)) > 2, ratios


def test_no_fault_is_left_out():
    for family in MAIN:
        assert {name for found, name in CASES if found == family} == set(mutations_of(policy(family)))
    assert {name for _, name in CASES} == set(MUTATIONS)
