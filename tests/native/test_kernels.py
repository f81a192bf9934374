"""Every kernel against the formula in float64, and its gradients against autograd's."""

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import silu

from egpo.local.models.cpu_operations import (
    Angles,
    add_projection,
    attend,
    norm_and_rotate,
    projections,
    rms_norm,
    swiglu,
)
from egpo.local.models.packs import GroupLayout, PackLayout, Sequences, pack_groups
from egpo.local.sampling.choose import Sampling, choose
from egpo.native.library import address, kernels, why_no_kernels
from egpo.token_stats.chunked import logp_gradient, slice_stats

pytestmark = pytest.mark.skipif(kernels() is None, reason=f"no kernels: {why_no_kernels()}")


def normal(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def assert_same(ours, exact, *inputs):
    """Values and gradients, to the rounding of float32."""
    inputs = [tensor.requires_grad_() for tensor in inputs]
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    assert_same_gradients(ours(*inputs), exact(*wide), inputs, wide)


def assert_same_gradients(found, expected, inputs, wide):
    grad = normal(*found.shape, seed=9)
    pairs = zip(
        (found, *torch.autograd.grad(found, inputs, grad)),
        (expected, *torch.autograd.grad(expected, wide, grad.double())),
        strict=True,
    )
    for ours_, exact_ in pairs:
        tolerance = 3e-6 * float(exact_.detach().abs().max()) + 1e-6
        torch.testing.assert_close(ours_.double(), exact_, atol=tolerance, rtol=1e-5)


def exact_norm(x, weight, eps=1e-5):
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def exact_rotation(x_NHd, cos_Nd, sin_Nd):
    first, second = x_NHd.chunk(2, -1)
    return x_NHd * cos_Nd[:, None] + torch.cat([-second, first], -1) * sin_Nd[:, None]


class Norm:
    variance_epsilon = 1e-5

    def __init__(self, weight):
        self.weight = weight


sizes = st.integers(1, 40)


@settings(max_examples=25)
@given(sizes, st.integers(2, 40))
def test_norm(rows, width):
    assert_same(lambda x, w: rms_norm(x, w, 1e-5), exact_norm, normal(rows, width), normal(width))


@settings(max_examples=25)
@given(sizes, st.integers(1, 5), st.integers(1, 20), st.booleans())
def test_heads(tokens, heads, half, has_norm):
    angle = normal(tokens, half, scale=3).repeat(1, 2)
    angles = Angles(angle.cos(), angle.sin())
    x, weight = normal(tokens, heads, 2 * half), normal(2 * half)
    if has_norm:
        assert_same(
            lambda x, w: norm_and_rotate(x, Norm(w), angles),
            lambda x, w: exact_rotation(exact_norm(x, w), *(angle.double() for angle in angles)),
            *(x, weight),
        )
    else:
        assert_same(
            lambda x: norm_and_rotate(x, None, angles),
            lambda x: exact_rotation(x, *(angle.double() for angle in angles)),
            x,
        )


@settings(max_examples=25)
@given(sizes, sizes, st.sampled_from([0.1, 3.0, 60.0]))
def test_swiglu(rows, width, scale):
    assert_same(swiglu, lambda gate, up: silu(gate) * up, normal(rows, width, scale=scale), normal(rows, width, seed=1))


def test_swiglu_of_numbers_whose_product_is_none():
    """silu(-1e30) is 0, and so is 0 times anything."""
    gate, up = torch.tensor([-1e30, -1e30, 1e30, 5.0]), torch.tensor([1e30, -1e30, 1e-30, 2.0])
    torch.testing.assert_close(swiglu(gate, up), silu(gate) * up)


def with_sine(width):
    angle = torch.linspace(-3, 3, width // 2).repeat(8, 2)
    return Angles(angle.cos(), angle.sin())


@pytest.mark.parametrize(
    ("kernel", "shapes"),
    [
        (lambda x: rms_norm(x, torch.linspace(1, 2, 6), 1e-5), [(8, 6)]),
        (swiglu, [(8, 6), (8, 6)]),
        (lambda x: norm_and_rotate(x, None, with_sine(6)), [(8, 2, 6)]),
        (
            lambda q, k, v: attend(q, k, v, PackLayout((GroupLayout(0, 8, ()),), torch.device("cpu")), 0.3),
            [(8, 1, 6)] * 3,
        ),
        (lambda x: torch.cat(projections(x, (torch.nn.Linear(6, 5),) * 2), 1), [(8, 6)]),
    ],
    ids=["norm", "swiglu", "heads", "attention", "projections"],
)
def test_inputs_and_gradients_with_gaps_are_those_without(kernel, shapes):
    """A copy without gaps must live for as long as the kernel reads it."""

    def computed(gaps):
        torch.manual_seed(0)
        inputs = [normal(*shape, 2)[..., 0].requires_grad_() for shape in shapes]
        out = kernel(*(inputs if gaps else [tensor.contiguous() for tensor in inputs]))
        grad = torch.full((), 0.7).expand_as(out)
        return [out, *torch.autograd.grad(out, inputs, grad if gaps else grad.contiguous())]

    for found, expected in zip(computed(True), computed(False), strict=True):
        assert torch.equal(found, expected)


def exact_attention(query_NHd, key_NKd, value_NKd, layout, scale):
    """Token by token."""
    repeats = query_NHd.shape[1] // key_NKd.shape[1]
    keys, values = (tensor.repeat_interleave(repeats, 1) for tensor in (key_NKd, value_NKd))
    rows = []
    for start, length, prompt_start, prompt_length in layout.parts.tolist():
        for token in range(start, start + length):
            seen = [*range(prompt_start, prompt_start + prompt_length), *range(start, token + 1)]
            weights = torch.softmax(scale * torch.einsum("hd,shd->hs", query_NHd[token], keys[seen]), -1)
            rows.append(torch.einsum("hs,shd->hd", weights, values[seen]))
    return torch.stack(rows).flatten(1)


groups = st.lists(st.tuples(st.integers(1, 60), st.lists(st.integers(1, 110), max_size=3)), min_size=1, max_size=3)


@settings(max_examples=15)
@given(groups, st.sampled_from([(4, 2), (3, 1), (2, 2)]), st.sampled_from([4, 16, 20]))
def test_pack_attention(groups, heads, width):
    """Lengths below, at and above a block of queries."""
    pack = pack_groups([Sequences([0] * prompt, [[0] * length for length in lengths]) for prompt, lengths in groups])
    tokens, (queries, keys) = len(pack.token_N), heads
    assert_same(
        lambda q, k, v: attend(q, k, v, pack.layout, 0.3),
        lambda q, k, v: exact_attention(q, k, v, pack.layout, 0.3),
        *(normal(tokens, queries, width), normal(tokens, keys, width, seed=1), normal(tokens, keys, width, seed=2)),
    )


def test_attention_of_responses_without_a_prompt():
    """As supervised fine-tuning packs its examples."""
    lengths = (130, 61, 60, 1)
    layout = PackLayout((GroupLayout(0, 0, lengths[:2]), GroupLayout(191, 0, lengths[2:])), torch.device("cpu"))
    assert_same(
        lambda q, k, v: attend(q, k, v, layout, 0.3),
        lambda q, k, v: exact_attention(q, k, v, layout, 0.3),
        *(normal(sum(lengths), 4, 16), normal(sum(lengths), 2, 16, seed=1), normal(sum(lengths), 2, 16, seed=2)),
    )


@settings(max_examples=25)
@given(sizes, sizes, st.sampled_from([0.3, 1.0, 2.0]), st.sampled_from([1.0, 30.0]))
def test_slice_stats_and_their_gradient(tokens, words, temperature, scale):
    logits, target = normal(tokens, words, scale=scale), torch.arange(tokens) * 7 % (words + 2) - 1
    logp = torch.log_softmax(logits.double() / temperature, -1)
    stats = slice_stats(logits.clone(), temperature)
    lse = (logits.double() / temperature).logsumexp(-1)
    torch.testing.assert_close(stats.lse_N.double(), lse, atol=1e-5, rtol=1e-6)
    entropy = -(logp.exp() * logp).sum(-1)
    torch.testing.assert_close(stats.entropy_N.double(), entropy, atol=1e-5, rtol=1e-5)
    grad = normal(tokens, seed=3)
    onehot = (torch.arange(words) == target[:, None]).double()
    found = logp_gradient(logits.clone(), stats.lse_N, grad, target, temperature, torch.float32)
    expected = grad.double()[:, None] * (onehot - logp.exp()) / temperature
    # A float32 logit of hundreds is known to a few millionths of itself only.
    torch.testing.assert_close(found.double(), expected, atol=2e-5 * scale, rtol=1e-4)


def test_targets_with_gaps():
    logits, target, lse = normal(4, 5), torch.arange(8).remainder(5).view(4, 2)[:, 0], torch.zeros(4)
    found, expected = (
        logp_gradient(logits.clone(), lse, torch.ones(4), each, 1.0, torch.float32)
        for each in (target, target.contiguous())
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("scale", [0.5, 5.0])
def test_a_large_vocabulary_is_summed_to_the_last_digits(scale):
    logits = normal(3, 200_003, scale=scale)
    logp = torch.log_softmax(logits.double(), -1)
    entropy = -(logp.exp() * logp).sum(-1)
    choice, stats = choose(logits, torch.tensor([0.0, 0.5, 0.9]), Sampling()), slice_stats(logits.clone(), 1.0)
    drawn = logp.gather(1, choice.token_R[:, None])[:, 0]
    for found, exact in ((choice.entropy_R, entropy), (stats.entropy_N, entropy), (choice.logp_R, drawn)):
        torch.testing.assert_close(found.double(), exact, atol=4e-6, rtol=0)


def test_the_exponential_at_its_ends():
    """Through the softmax: words below the smallest number have probability 0 and add nothing, NaN stays NaN."""
    logits = torch.tensor([[0.0, -200.0, -torch.inf], [5.0, 5.0, -torch.inf], [0.0, torch.nan, 1.0]])
    stats = slice_stats(logits, 1.0)
    torch.testing.assert_close(stats.entropy_N[:2], torch.tensor([1.0, 2.0]).log())
    torch.testing.assert_close(stats.lse_N[:2], torch.tensor([0.0, 5.0 + math.log(2)]))
    assert bool(stats.lse_N[2].isnan())


@settings(max_examples=25)
@given(sizes, sizes, st.sampled_from([0.4, 1.0]))
def test_a_choice_is_where_the_cumulative_probability_passes_the_draw(rows, words, temperature):
    logits = normal(rows, words, scale=4)
    uniform = torch.rand(rows, generator=torch.Generator().manual_seed(rows))
    choice = choose(logits, uniform, Sampling(temperature=temperature))
    probability = torch.softmax(logits.double() / temperature, -1)
    above = probability.cumsum(-1).gather(1, choice.token_R[:, None])[:, 0]
    below = above - probability.gather(1, choice.token_R[:, None])[:, 0]
    assert bool(((below - 1e-6 <= uniform) & (uniform <= above + 1e-6)).all())
    logp = probability.log().gather(1, choice.token_R[:, None])[:, 0]
    torch.testing.assert_close(choice.logp_R.double(), logp, atol=1e-5, rtol=1e-5)


def test_a_word_of_probability_zero_is_never_drawn():
    logits = torch.tensor([[-torch.inf, 0.0, -300.0, 1.0, -torch.inf]]).repeat(3, 1)
    choice = choose(logits, torch.tensor([0.0, 0.5, 1.0]), Sampling())
    assert choice.token_R.tolist() == [1, 3, 3]


@settings(max_examples=25)
@given(st.integers(1, 20), sizes, st.integers(1, 150), st.booleans())
def test_products_with_packed_weights(rows, inputs, outputs, adds):
    """Whole and partial tiles of rows and panels of outputs, whether or not this CPU is better off with them."""
    library, (x, weight) = kernels(), (normal(rows, inputs), normal(outputs, inputs, seed=1))
    packed, out = torch.empty(library.packed_size(outputs, inputs)), normal(rows, outputs, seed=2)
    expected = x.double() @ weight.double().T + (out.double() if adds else 0)
    library.pack(address(weight), outputs, inputs, address(packed))
    onto = address(out) if adds else None
    library.multiply(address(x), address(packed), onto, address(out), rows, inputs, outputs)
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=25)
@given(sizes, st.integers(1, 600), st.lists(st.tuples(st.integers(1, 140), st.booleans()), min_size=1, max_size=3))
def test_projections_of_one_input(tokens, inputs, shapes):
    """More inputs than a block holds among them; with a bias and without."""
    layers = [torch.nn.Linear(inputs, outputs, bias=has_bias) for outputs, has_bias in shapes]
    wide = [copy.deepcopy(layer).double() for layer in layers]
    x = normal(tokens, inputs).requires_grad_()
    wide_x = x.detach().double().requires_grad_()
    found = torch.cat(projections(x, tuple(layers)), 1)
    expected = torch.cat([layer(wide_x) for layer in wide], 1)
    assert_same_gradients(found, expected, (x, *parameters(layers)), (wide_x, *parameters(wide)))


@settings(max_examples=15)
@given(sizes, st.integers(1, 600), st.integers(1, 140), st.booleans())
def test_a_projection_onto_something(tokens, inputs, outputs, has_bias):
    layer = torch.nn.Linear(inputs, outputs, bias=has_bias)
    wide = copy.deepcopy(layer).double()
    given_ = [normal(tokens, outputs, seed=1).requires_grad_(), normal(tokens, inputs).requires_grad_()]
    wide_given = [tensor.detach().double().requires_grad_() for tensor in given_]
    found, expected = add_projection(*given_, layer), wide_given[0] + wide(wide_given[1])
    assert_same_gradients(found, expected, (*given_, *parameters([layer])), (*wide_given, *parameters([wide])))


def parameters(layers):
    return [parameter for layer in layers for parameter in layer.parameters()]


def test_threads_change_no_bit():
    """Each number is computed by one thread, in an order that their count does not change."""
    x, weight, grad = normal(300, 64), normal(64), normal(300, 64, seed=1)
    pack = pack_groups([Sequences([0] * 20, [[0] * 60, [0] * 50])] * 2)
    tokens = len(pack.token_N)
    query, key, value = normal(tokens, 4, 16), normal(tokens, 2, 16), normal(tokens, 2, 16, seed=1)

    def computed(threads):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            inputs = [tensor.clone().requires_grad_() for tensor in (x, weight, query, key, value)]
            normed, seen = rms_norm(*inputs[:2], 1e-6), attend(*inputs[2:], pack.layout, 0.25)
            loss = (normed * grad).sum() + seen.square().sum()
            return [normed, seen, *torch.autograd.grad(loss, inputs)]
        finally:
            torch.set_num_threads(before)

    for one, three in zip(computed(1), computed(3), strict=True):
        assert torch.equal(one, three)
