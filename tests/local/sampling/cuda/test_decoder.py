"""Sampling by captured graphs: the laws of `tests/local/sampling`, and those of graphs. Run by `make test-gpu`."""

import pytest
import torch

from egpo.config.schema import Rollout, Update
from egpo.errors import EgpoWarning
from egpo.local.draws import Draws
from egpo.local.models.attention import ATTENTION_NAME
from egpo.local.sampling.sample import cuda_decoder, sample
from egpo.local.updates.optimizer import Optimizer
from tests.local.sampling.test_sample import ENDS, TASK, Greedy, drawn

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

SHAPES = ["llama", "qwen2", "qwen3"]
LIMITS = [
    {},
    {"temperature": 0.6},
    {"top_k": 5},
    {"top_p": 0.8},
    {"top_k": 5, "top_p": 0.8},
    {"min_p": 0.1},
    {"top_p": 0.9, "min_p": 0.05, "temperature": 0.8},
]


@torch.no_grad()
def plain_statistics(policy, rollouts, row, temperature):
    prompt = rollouts.prompts[int(rollouts.problem_B[row])]
    response = rollouts.response_BT[row, : int(rollouts.length_B[row])]
    policy.model.set_attn_implementation("eager")
    logits = policy.model(torch.tensor([[*prompt, *response.tolist()]], device="cuda"), use_cache=False).logits[0]
    policy.model.set_attn_implementation(ATTENTION_NAME)
    logp = torch.log_softmax(logits[len(prompt) - 1 : -1].float() / temperature, dim=-1)
    return logp[torch.arange(len(response)), response], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_recorded_statistics_equal_a_separate_forward_pass(load_on_gpu, shape, temperature):
    policy = load_on_gpu(shape)
    assert cuda_decoder(policy) is not None
    rollouts = drawn(policy, temperature=temperature, n=6, stop_tokens=ENDS)
    assert len(set(rollouts.length_B.tolist())) > 2
    for row in range(len(rollouts)):
        logp, entropy = plain_statistics(policy, rollouts, row, temperature)
        length = len(logp)
        torch.testing.assert_close(rollouts.logp_BT[row, :length], logp, atol=2e-4, rtol=0)
        torch.testing.assert_close(rollouts.entropy_BT[row, :length], entropy, atol=2e-4, rtol=0)
        assert not rollouts.logp_BT[row, length:].any()
        assert (rollouts.response_BT[row, length:] == policy.pad_id).all()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("limits", LIMITS)
def test_a_gpu_says_what_a_cpu_says(load_on_cpu, load_on_gpu, shape, limits):
    """The same draws, the same float32 arithmetic but for rounding: the same words, and ends at the same places."""
    here, there = (
        drawn(policy, n=5, stop_tokens=ENDS, **limits) for policy in (load_on_gpu(shape), load_on_cpu(shape))
    )
    assert here.texts == there.texts
    assert torch.equal(here.finished_B.cpu(), there.finished_B)
    torch.testing.assert_close(here.logp_BT.cpu(), there.logp_BT, atol=2e-4, rtol=0)
    torch.testing.assert_close(here.entropy_BT.cpu(), there.entropy_BT, atol=2e-4, rtol=0)


def test_a_row_does_not_depend_on_its_company_nor_on_who_waits(load_on_gpu):
    policy = load_on_gpu()
    together = drawn(policy, n=5, stop_tokens=ENDS)
    for index, problem in enumerate(TASK.problems("train")):
        alone = drawn(policy, [problem], n=5, stop_tokens=ENDS)
        assert alone.texts == together.texts[5 * index : 5 * index + 5]
    for at_once in (1, 3, 7):
        in_parts = drawn(policy, n=5, rows_at_once=at_once, stop_tokens=ENDS)
        assert in_parts.texts == together.texts
        torch.testing.assert_close(in_parts.logp_BT, together.logp_BT, atol=1e-4, rtol=0)


def test_more_prompts_than_are_held_at_once(load_on_gpu, monkeypatch):
    policy = load_on_gpu()
    together = drawn(policy, n=2, stop_tokens=ENDS)
    monkeypatch.setattr("egpo.local.sampling.cuda.decoder._PROMPTS_AT_ONCE", 3)
    assert drawn(policy, n=2, stop_tokens=ENDS).texts == together.texts


def test_responses_longer_than_a_look_and_than_a_block_of_keys(load_on_cpu, load_on_gpu):
    settings = {"n": 4, "max_response_tokens": 150}
    assert drawn(load_on_gpu(), **settings).texts == drawn(load_on_cpu(), **settings).texts


def test_greedy_and_stop_strings(load_on_cpu, load_on_gpu):
    policy, other = load_on_gpu(), load_on_cpu()
    settings = Greedy(n=1, max_response_tokens=8)
    greedy, expected = (sample(p, TASK, TASK.problems("train"), settings, Draws(1)) for p in (policy, other))
    assert greedy.texts == expected.texts
    needle = drawn(other).texts[0][4:7]
    stopped, expected = drawn(policy, stop=[needle]), drawn(other, stop=[needle])
    assert stopped.texts == expected.texts
    assert torch.equal(stopped.finished_B.cpu(), expected.finished_B)


def test_graphs_see_weights_that_were_moved_in_place_and_those_that_were_replaced(load_on_cpu, load_on_gpu):
    policy, other = load_on_gpu(), load_on_cpu()
    before = drawn(policy).texts
    for p in (policy, other):
        optimizer = Optimizer(p.model.named_parameters(), Update(lr=1e-2))
        for name, weight in p.model.named_parameters():
            weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(len(name))).to(weight)
        optimizer.step(1e-2)
    moved = drawn(policy)
    assert moved.texts != before
    assert moved.texts == drawn(other).texts
    for p in (policy, other):
        head = p.model.base_model.layers[0].self_attn.o_proj
        head.weight = torch.nn.Parameter(head.weight.detach() * 1.5)
    assert drawn(policy).texts == drawn(other).texts


def test_adapters_are_merged_into_what_is_sampled_from(load_on_gpu):
    pytest.importorskip("peft")
    from egpo.config.schema import Lora
    from egpo.local.models.lora import add_adapters

    policy = load_on_gpu()
    before = drawn(policy).texts
    add_adapters(policy.model, Lora(rank=4), 0)
    assert drawn(policy).texts == before
    for name, parameter in policy.model.named_parameters():
        if ".lora_B" in name:
            parameter.data.normal_(std=0.3)
    rollouts = drawn(policy, stop_tokens=ENDS)
    assert rollouts.texts != before
    for row in range(0, len(rollouts), 3):
        logp, _ = plain_statistics(policy, rollouts, row, 1.0)
        torch.testing.assert_close(rollouts.logp_BT[row, : len(logp)], logp, atol=1e-3, rtol=0)


def test_memory_that_runs_out_makes_rows_wait(load_on_gpu, monkeypatch):
    from egpo.local.sampling.cuda import decoder

    expected = drawn(load_on_gpu(), n=4, stop_tokens=ENDS).texts
    buffers, asked = decoder.DecodeBuffers, []

    def scarce(model, size):
        asked.append(size.rows)
        if size.rows > 5:
            raise torch.OutOfMemoryError("no room")
        return buffers(model, size)

    monkeypatch.setattr(decoder, "DecodeBuffers", scarce)
    with pytest.warns(EgpoWarning, match="rows_at_once"):
        assert drawn(load_on_gpu(), n=4, stop_tokens=ENDS).texts == expected
    assert asked == [16, 8, 4]


@pytest.mark.parametrize("capturing", [False, True])
def test_memory_that_runs_out_while_a_graph_is_made_makes_rows_wait(load_on_gpu, monkeypatch, capturing):
    from egpo.local.sampling.cuda import token_graphs

    expected = drawn(load_on_gpu(), n=4, stop_tokens=ENDS).texts
    next_token, asked = token_graphs.next_token, []

    def scarce(weights, buffers, rows, sampling, *flags):
        asked.append(rows)
        next_token(weights, buffers, rows, sampling, *flags)
        if rows > 8 and torch.cuda.is_current_stream_capturing() == capturing:
            raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(token_graphs, "next_token", scarce)
    policy = load_on_gpu()
    with pytest.warns(EgpoWarning, match="rows_at_once"):
        assert drawn(policy, n=4, stop_tokens=ENDS).texts == expected
    assert asked[0] == 16
    assert asked[-1] <= 8
    assert drawn(policy, n=4, stop_tokens=ENDS).texts == expected  # and goes on so


def test_a_shortage_halves_the_buffers_and_not_the_job_that_met_it(load_on_gpu, monkeypatch):
    from egpo.local.sampling.cuda import token_graphs

    policy, next_token, failed = load_on_gpu(), token_graphs.next_token, []
    drawn(policy, n=4)  # makes the buffers
    expected = drawn(load_on_gpu(), n=4, temperature=0.6).texts

    def scarce_once(weights, buffers, rows, sampling, *flags):
        if not failed:
            failed.append(rows)
            raise torch.OutOfMemoryError("no room")
        next_token(weights, buffers, rows, sampling, *flags)

    monkeypatch.setattr(token_graphs, "next_token", scarce_once)
    with pytest.warns(EgpoWarning, match="16 rows at once; continuing with 8"):
        assert drawn(policy, n=4, temperature=0.6, rows_at_once=2).texts == expected
    assert failed == [8]
    drawn(policy, n=4)
    assert cuda_decoder(policy)._buffers.size.rows == 8


def test_a_model_it_does_not_know_says_so_in_one_line(load_on_gpu):
    policy = load_on_gpu("gpt2")
    with pytest.warns(EgpoWarning, match="no fast kernels for GPT2LMHeadModel"):
        assert cuda_decoder(policy) is None


def test_a_buffers_is_kept_for_jobs_that_fit_and_made_anew_for_larger_ones(load_on_gpu):
    policy = load_on_gpu()
    first = drawn(policy, n=4).texts
    buffers = cuda_decoder(policy)._buffers
    assert drawn(policy, n=4, max_response_tokens=12).texts != first
    assert cuda_decoder(policy)._buffers is buffers
    drawn(policy, n=6)
    assert cuda_decoder(policy)._buffers is not buffers
    assert drawn(policy, n=4).texts == first


@pytest.mark.parametrize("shape", SHAPES)
def test_in_bfloat16_the_recorded_statistics_are_near_the_packed_ones(load_on_gpu, shape):
    from egpo.local.updates.micro_batches import TokenBudget
    from egpo.local.updates.reference import packed_logp

    policy = load_on_gpu(shape, "bfloat16")
    rollouts = drawn(policy, n=8, stop_tokens=ENDS)
    packed = packed_logp(policy, rollouts, 1.0, TokenBudget(4096))
    difference = (packed - rollouts.logp_BT)[rollouts.mask_BT].abs()
    assert float(difference.mean()) < 0.05


@pytest.mark.parametrize("limits", LIMITS)
def test_graphs_record_the_alternatives_that_a_cpu_records(load_on_cpu, load_on_gpu, limits):
    """And a job with alternatives changes neither its responses nor those of a later job without them."""
    settings = Rollout(n=5, max_response_tokens=24, stop_tokens=ENDS, **limits)
    gpu, cpu = load_on_gpu(), load_on_cpu()
    plain = drawn(gpu, n=5, stop_tokens=ENDS, **limits)
    here, there = (
        sample(policy, TASK, TASK.problems("train"), settings, Draws(1), alternatives=4) for policy in (gpu, cpu)
    )
    assert here.texts == there.texts == plain.texts == drawn(gpu, n=5, stop_tokens=ENDS, **limits).texts
    for row, length in enumerate(here.length_B.tolist()):
        ours, theirs = here.alternatives.of_row(row, length), there.alternatives.of_row(row, length)
        assert list(ours) == list(theirs)
        for position, found in ours.items():
            probabilities = [probability for _, probability in found]
            assert probabilities == pytest.approx([p for _, p in theirs[position]][: len(found)], abs=2e-4)
