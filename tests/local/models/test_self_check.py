"""The self-check passes models as they are, catches every fault put into the engine, and says by how much.

`egpo-tiny` is trained; SmolLM2-135M is checked in tests/local/test_real_model.py, where it can be had."""

import json

import pytest
import torch

from egpo.config.schema import Model
from egpo.errors import InputError
from egpo.fingerprints import sealed
from egpo.local.models import self_check, verdicts
from egpo.local.models.exact_forward import plain_logits
from egpo.local.models.loading import load_policy
from tests.local.models.mutations import CACHE_SEES, MUTATIONS, mutations_of

TRAINED = "egpo-tiny"
PLAIN = [name for name in MUTATIONS if not any(part in name for part in ("bias", "unscaled", "another factor"))]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """No verdict of an earlier test."""
    monkeypatch.setattr(verdicts, "cache_folder", lambda: tmp_path)
    return tmp_path / "self_checks"


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def policy(request):
    return load_policy(Model(path=TRAINED, device="cpu", dtype=request.param))


@pytest.fixture
def biased(tmp_path):
    """A model with biases large enough to matter; random, since none of the trained ones here has any."""
    from tests.local.conftest import build_model, build_tokenizer

    model = build_model("qwen2")
    with torch.no_grad():
        for layer in model.base_model.layers:
            for part in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                part.bias.normal_()
    model.save_pretrained(tmp_path / "model")
    build_tokenizer().save_pretrained(tmp_path / "model")
    return lambda dtype: load_policy(Model(path=str(tmp_path / "model"), device="cpu", dtype=dtype))


@torch.no_grad()
def ratios_with(policy, name):
    """Return the ratio of each path with a fault in the engine and not in the reference. Caught is above 1."""
    pairs = [("", policy, self_check.text_tokens(policy))]
    if policy.head_VD.dtype != torch.float32:
        pairs.append((" float32", *self_check.shallow_policy(policy)))
    ratios = {}
    for note, checked, group in pairs:
        reference = self_check.ReferenceLogits.of(checked, group)
        with MUTATIONS[name](checked):
            ratios[f"packed{note}"] = reference.errors_of("", self_check.packed_logits(checked, group)).ratio
            if name in CACHE_SEES:
                ratios[f"cached{note}"] = reference.errors_of("", self_check.cached_logits(checked, group)).ratio
    return ratios


@torch.no_grad()
def test_a_trained_model_passes_with_room(policy):
    assert all(path.ratio < 0.8 for path in self_check.measure_paths(policy))


@pytest.mark.parametrize("name", PLAIN)
def test_every_fault_is_caught_on_each_path(policy, name):
    ratios = ratios_with(policy, name)
    for path in ("packed", "cached") if name in CACHE_SEES else ("packed",):
        # The smallest: an epsilon that is too small, in float32, by 1.7. It changes the logits by a 20,000th.
        assert max(ratio for found, ratio in ratios.items() if found.startswith(path)) > 1.5, ratios


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_missing_bias_is_caught(biased, dtype):
    policy = biased(dtype)
    assert {name for name in MUTATIONS if "bias" in name} < set(mutations_of(policy))
    assert min(ratios_with(policy, "no query and key bias").values()) > 2


@torch.no_grad()
def test_a_mutation_leaves_the_model_as_it_was(policy):
    before = verdicts.weights_digest(policy.model)
    for name in mutations_of(policy):
        ratios_with(policy, name)
    assert verdicts.weights_digest(policy.model) == before
    assert all(path.ratio < 0.8 for path in self_check.measure_paths(policy))


def test_a_refusal_says_by_how_much_and_against_what(policy):
    with (
        MUTATIONS["shifted positions"](policy),
        pytest.raises(InputError, match=r"packed logits differ from float\d+ by .* transformers' own in") as caught,
    ):
        self_check.require_agreement(policy, "model x")
    assert "allowed is 3 and 8 times that" in str(caught.value)


def test_a_verdict_is_kept_for_these_weights_and_no_others(policy, cache, monkeypatch):
    monkeypatch.setattr(verdicts, "WORTH_KEEPING_S", 0.0)
    self_check.require_agreement(policy, "m")
    (file,) = cache.iterdir()
    rows = json.loads(file.read_text())["rows"]
    rows[0]["ours"]["mean"] = 1e9
    file.write_text(json.dumps(sealed({"rows": rows})))
    with pytest.raises(InputError, match="1e\\+09"):
        self_check.require_agreement(policy, "m")
    with torch.no_grad():
        policy.head_VD[3, 3] += 1
        try:
            self_check.require_agreement(policy, "m")
        finally:
            policy.head_VD[3, 3] -= 1
    file.write_text("{")
    self_check.require_agreement(policy, "m")


def test_a_digest_sees_one_weight_and_two_in_each_others_place(policy):
    before = verdicts.weights_digest(policy.model)
    weight = policy.model.base_model.layers[1].mlp.up_proj.weight
    with torch.no_grad():
        row = weight[0].clone()
        weight[0], weight[5] = weight[5].clone(), row
        swapped = verdicts.weights_digest(policy.model)
        row = weight[0].clone()
        weight[0], weight[5] = weight[5].clone(), row
    assert swapped != before == verdicts.weights_digest(policy.model)


@torch.no_grad()
def test_the_exact_pass_is_that_of_a_model_in_the_higher_precision(load):
    """Slices, norms and embeddings together give what a converted copy of the model gives."""
    for shape in ("qwen2", "qwen3", "gpt2"):
        policy = load(shape, dtype="bfloat16")
        rows = [[3, 4, 5, 60, 7], [8, 9, 10]]
        found = plain_logits(policy.model, rows, torch.float32)
        whole = load(shape, dtype="bfloat16").model.float()
        for logits, row in zip(found, rows, strict=True):
            expected = plain_logits(whole, [row])[0]
            torch.testing.assert_close(logits[: len(row)], expected, atol=2e-5, rtol=1e-5)
        assert {weight.dtype for weight in policy.model.parameters()} == {torch.bfloat16}
