"""The self-check on Qwen2.5, Qwen3 and Llama 3 shapes whose weights have the outliers of trained models.

SmolLM2-135M, which is real, has the figures of REAL (benchmarks/self_check.py prints them for any model)."""

import copy
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma3TextConfig,
    MambaConfig,
    MistralConfig,
    Qwen3MoeConfig,
)

from egpo.config.schema import Model
from egpo.errors import InputError
from egpo.local.models import self_check
from egpo.local.models.attention import ATTENTION_NAME
from egpo.local.models.loading import load_policy
from egpo.local.models.policy import Policy
from egpo.support import FAST_ARCHITECTURES
from tests.local.conftest import build_model, build_tokenizer
from tests.local.models import outlier_models
from tests.local.models.mutations import CACHE_SEES, MUTATIONS, mutations_of
from tests.local.models.outlier_models import FAMILIES, OutlierFigures, build_outlier_model, outlier_figures
from tests.local.models.test_self_check import ratios_with

REAL = OutlierFigures(usual_ratio=44.3, usual_kurtosis=88.1, peak_ratio=501.0, peak_kurtosis=557.9, peak_size=24494.1)
PAGE = Path(__file__).resolve().parents[3] / "docs/models.md"
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


_TINY = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "vocab_size": 300,
    "initializer_range": 0.25,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_WINDOW = "has a sliding window of 8 tokens; use engine=verl"
_OTHERS = {
    "mistral": (MistralConfig(sliding_window=None, **_TINY), None),
    "mistral, wide window": (MistralConfig(sliding_window=4096, **_TINY), None),
    "mistral, narrow window": (MistralConfig(sliding_window=8, **_TINY), _WINDOW),
    "gemma3": (Gemma3TextConfig(sliding_window=8, head_dim=16, **_TINY), _WINDOW),
    "experts": (Qwen3MoeConfig(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, **_TINY), None),
    "alibi": (
        BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=300, eos_token_id=2, initializer_range=0.25),
        "the engine computes BloomForCausalLM wrongly",
    ),
    "no attention": (
        MambaConfig(hidden_size=32, num_hidden_layers=2, vocab_size=300, eos_token_id=2),
        "MambaForCausalLM cannot be checked",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
@pytest.mark.parametrize("which", _OTHERS)
def test_other_architectures_are_computed_by_transformers_or_refused_in_one_line(which, tmp_path):
    config, refusal = _OTHERS[which]
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(copy.deepcopy(config)).save_pretrained(tmp_path)
    build_tokenizer().save_pretrained(tmp_path)
    settings = Model(path=str(tmp_path), device="cpu")
    if refusal is None:
        assert load_policy(settings).path == "transformers"
        return
    with pytest.raises(InputError, match=refusal) as caught:
        load_policy(settings)
    assert len(str(caught.value).splitlines()) == 1
    assert "engine=verl" in str(caught.value)


def test_the_page_has_one_row_per_architecture():
    """With the kind of weights on which each was run, and, of the engine's own, its smallest margin."""
    table = PAGE.read_text().split("## Architectures", 1)[1].split("\n|---", 1)[1].splitlines()[1:]
    rows = {cells[1].strip(): cells[2].strip() for cells in (line.split("|") for line in table if line.startswith("|"))}
    kinds = ("real:", "trained here:", "outliers by construction", "random only", "unsupported")
    assert all(kind.startswith(kinds) for kind in rows.values()), rows
    for name in FAST_ARCHITECTURES.values():
        assert [row for row in rows if row.startswith(name)], name
