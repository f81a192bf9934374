"""The CPU layers compute what `model(input_ids)` of transformers computes: values, and the gradient of every weight."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

from egpo.config.schema import Lora
from egpo.local.models import cpu_decoder
from egpo.local.models.attention import ATTENTION_NAME
from egpo.local.models.caches import BlockSlots, compacted
from egpo.local.models.lora import add_adapters
from egpo.local.models.packs import Sequences, pack_groups
from egpo.local.models.policy import Policy
from egpo.native import library

SIZES = {
    "vocab_size": 120,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SHAPES = {
    "queries share keys by three": Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True),
    "every query its own keys": Qwen3Config(**SIZES | {"num_key_value_heads": 6}, head_dim=4),
    "one head of keys": Qwen2Config(**SIZES | {"num_key_value_heads": 1}, tie_word_embeddings=True),
    "heads wider than hidden": Qwen3Config(**SIZES, head_dim=16, attention_bias=True),
    "a bias on queries and keys": Qwen2Config(**SIZES),
    "biases everywhere": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "blocks of keys": Qwen3Config(**SIZES, head_dim=32),
    "wide heads and biases everywhere": LlamaConfig(**SIZES, head_dim=80, attention_bias=True, mlp_bias=True),
    "an odd number of queries to a key": Qwen2Config(**SIZES | {"hidden_size": 96}),
    "plain llama": LlamaConfig(**SIZES, rms_norm_eps=1e-2),
    "another base of rotation": LlamaConfig(**SIZES, rope_parameters={"rope_type": "default", "rope_theta": 50.0}),
    "scaled rotation": LlamaConfig(
        **SIZES, rope_parameters={**LLAMA3, "rope_theta": 100.0, "original_max_position_embeddings": 16}
    ),
}
IN_BLOCKS = ["blocks of keys", "wide heads and biases everywhere", "an odd number of queries to a key"]
"""Those whose heads the decoding kernel takes."""


def policy_of(config, dtype=torch.float32):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION_NAME, dtype=dtype)
    for weight in model.parameters():  # norms and biases too, which start at 1 and 0
        weight.data += 0.1 * torch.randn_like(weight)
    policy = Policy(model, tokenizer=None, context=64, stop_ids=frozenset(), pad_id=0)
    assert policy.path == "cpu_layers"
    return policy


def plain_hidden(policy, tokens):
    """(tokens, D), by transformers alone."""
    policy.model.set_attn_implementation("eager")
    hidden = policy.model.base_model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]
    policy.model.set_attn_implementation(ATTENTION_NAME)
    return hidden


def some_tokens(*lengths):
    generator = torch.Generator().manual_seed(sum(lengths))
    return [torch.randint(1, 120, (length,), generator=generator).tolist() for length in lengths]


GROUPS = [
    Sequences(some_tokens(5)[0], some_tokens(4, 1, 6)),
    Sequences(some_tokens(9)[0], some_tokens(3, 3)),
    Sequences(some_tokens(1)[0], some_tokens(2)),
]


def packed(policy):
    pack = pack_groups(GROUPS)
    return policy.hidden(pack)[pack.source_M]


def plain(policy):
    rows = [(group.prompt, response) for group in GROUPS for response in group.responses]
    hidden = [plain_hidden(policy, [*prompt, *response])[len(prompt) - 1 : -1] for prompt, response in rows]
    return torch.cat(hidden)


def gradients(policy, hidden):
    policy.model.zero_grad()
    # Not a sum of squares: after a norm that has no gradient to speak of.
    hidden.float().mul(torch.linspace(-1, 2, hidden.numel()).view_as(hidden)).sum().backward()
    named = policy.model.named_parameters()
    return {name: weight.grad.clone() for name, weight in named if weight.grad is not None}


@pytest.fixture(scope="module", params=["kernels", "torch"], autouse=True)
def engine(request):
    """Everything with the compiled kernels and without them."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(library, "kernels", lambda: None)
        elif library.kernels() is None:
            pytest.skip(f"no kernels: {library.why_no_kernels()}")
        yield request.param


def assert_as_transformers(policy):
    found, expected = packed(policy), plain(policy)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    ours, theirs = gradients(policy, found), gradients(policy, expected)
    assert ours.keys() == theirs.keys() != set()
    for name, gradient in theirs.items():
        tolerance = 1e-4 * float(gradient.abs().max()) + 1e-5
        torch.testing.assert_close(ours[name], gradient, atol=tolerance, rtol=0, msg=name)


@pytest.mark.parametrize("shape", SHAPES)
def test_packs_give_the_values_and_gradients_of_transformers(shape):
    assert_as_transformers(policy_of(SHAPES[shape]))


@pytest.mark.parametrize("trained", ["layers.1", "layers.0.self_attn.q_proj", "bias", "norm", "embed"])
def test_weights_that_are_not_trained_get_no_gradient(trained):
    policy = policy_of(SHAPES["wide heads and biases everywhere"])
    for name, weight in policy.model.named_parameters():
        weight.requires_grad_(trained in name)
    assert_as_transformers(policy)


def test_shared_weights_get_the_sum_of_their_gradients():
    """A layer that is run twice, and two projections of one weight in it."""
    policy = policy_of(SHAPES["blocks of keys"])
    layers = policy.model.base_model.layers
    layers[1] = layers[0]
    layers[0].mlp.up_proj.weight = layers[0].mlp.gate_proj.weight
    assert_as_transformers(policy)


@pytest.mark.parametrize("shape", ["queries share keys by three", "a bias on queries and keys"])
def test_in_bfloat16_both_are_as_far_from_float32(shape):
    """Rounding differs with the order of operations; the CPU layers must not round worse than transformers does."""
    exact, rounded = policy_of(SHAPES[shape]), policy_of(SHAPES[shape])
    rounded.model.to(torch.bfloat16)
    exact.model.load_state_dict(rounded.model.state_dict())
    truth = plain(exact)
    ours, theirs = packed(rounded), plain(rounded)
    assert ours.dtype == torch.bfloat16
    assert bool((ours - truth).abs().mean() < 1.5 * (theirs - truth).abs().mean())
    wanted, found, other = gradients(exact, truth), gradients(rounded, ours), gradients(rounded, theirs)
    for name, gradient in wanted.items():
        error, their_error = (float((each[name] - gradient).abs().mean()) for each in (found, other))
        assert error < 2 * their_error + 1e-3 * float(gradient.abs().mean()), name


schedules = st.lists(st.lists(st.booleans(), min_size=6, max_size=6), max_size=5)


@pytest.fixture(scope="module", params=["queries share keys by three", "plain llama", *IN_BLOCKS])
def policy(request):
    return policy_of(SHAPES[request.param])


@pytest.fixture(scope="module", params=["packed", "as torch holds them"])
def weights(request):
    """Where both ways of products with weights are there, both are tried."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "packed":
            patch.setattr(cpu_decoder, "_MOST_PACKED_WEIGHTS", 0)
        yield


@torch.no_grad()
@settings(max_examples=20)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), schedules)
def test_slots_give_the_values_of_transformers_whichever_rows_leave(policy, weights, prompt_R, schedule):
    prompts = some_tokens(7, 2, 4)
    pack, slots = pack_groups([Sequences(prompt) for prompt in prompts]), policy.open_slots()
    policy.hidden(pack, slots)
    slots.spread(pack.layout, prompt_R, max_new=len(schedule) + 1)
    rows = [list(prompts[prompt]) for prompt in prompt_R]
    for step, stays in enumerate([[True] * 6, *schedule]):
        kept = compacted(torch.tensor(stays[: len(rows)]))
        slots.keep(kept)
        rows = [rows[row] for row in kept.tolist()]
        if not rows:
            return
        token_R = torch.tensor([(11 * step + 5 * place) % 119 + 1 for place in range(len(rows))])
        found = policy.next_hidden(token_R, slots)
        for row, token, hidden in zip(rows, token_R.tolist(), found, strict=True):
            row.append(token)
            torch.testing.assert_close(hidden, plain_hidden(policy, row)[-1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", ["blocks of keys", "queries share keys by three"])
def test_the_decoding_kernel_takes_heads_of_whole_vectors(engine, shape):
    slots = policy_of(SHAPES[shape]).open_slots()
    assert isinstance(slots, BlockSlots) == (engine == "kernels" and shape in IN_BLOCKS)


def test_the_decoding_kernel_leaves_angles_that_depend_on_the_length(engine):
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 100.0}
    policy = policy_of(LlamaConfig(**SIZES, head_dim=16, rope_parameters=dynamic))
    assert not isinstance(policy.open_slots(), BlockSlots)


def test_the_decoding_kernel_leaves_weights_that_have_adapters():
    policy = policy_of(SHAPES["blocks of keys"])
    add_adapters(policy.model, Lora(rank=2, alpha=4.0), seed=0)
    assert not isinstance(policy.open_slots(), BlockSlots)


def test_the_same_pack_gives_the_same_bits():
    policy = policy_of(SHAPES["queries share keys by three"])
    one, two = packed(policy), packed(policy)
    assert torch.equal(one, two)
    first, second = gradients(policy, one), gradients(policy, two)
    assert all(torch.equal(first[name], second[name]) for name in first)
