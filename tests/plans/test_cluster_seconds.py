"""Weights travel to vLLM tensor by tensor in float32, and a reference reads its shards from the host's memory."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.plans.cluster_plan import plan_split
from egpo.plans.links import Assumptions
from egpo.plans.shapes import LAYER_TENSORS, read_shape
from egpo.plans.splits import Split, possible_fsdp_sizes
from egpo.support import FAST_ARCHITECTURES
from tests.local.conftest import build_model
from tests.plans.random_jobs import H200, JOB, MIDDLE, SMALL, adapted, cards, jobs, loose, shapes

splits = st.sampled_from([(1, 1), (2, 4), (1, 64), (8, 8), (1, 1024)])


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_what_is_sent_is_the_state_dict(model_folder, kind):
    """verl sends every tensor of it, a tied head too, which vLLM drops."""
    sent, shape = build_model(kind).state_dict(), read_shape(str(model_folder(kind)))
    assert len(sent) == shape.sent_tensors
    assert sum(one.numel() for one in sent.values() if one.dim() == 2) == shape.sent_weights
    assert set(LAYER_TENSORS) == set(FAST_ARCHITECTURES)
    assert SMALL.sent_weights == SMALL.weights + SMALL.head
    assert MIDDLE.sent_weights == MIDDLE.weights


@loose
@given(shapes, jobs, cards, splits, st.sampled_from([0, 16]), st.booleans(), st.sampled_from([2, 4]), st.data())
def test_each_tensor_is_gathered_in_float32_by_itself(shape, job, card, split, rank, merged, size, data):
    split = Split(*split)
    if job.rows % split.gpus:
        return
    job = adapted(shape, job, rank, merged=merged) if rank else replace(job, lora=False)
    shards = data.draw(st.sampled_from(possible_fsdp_sizes(split.gpus)))
    plans = [
        plan_split(shape, replace(job, bytes_per_weight=size), card, split, Assumptions(hop_s=hop), 16_384, shards)
        for hop in (0.0, 1.0)
    ]
    alone = job.lora and not job.lora_merged
    tensors = shape.adapter_tensors() if alone else shape.sent_tensors
    assert plans[1].seconds.weight_sync_s - plans[0].seconds.weight_sync_s == pytest.approx(tensors * (shards - 1))
    moved = 4 * (job.adapter_weights if alone else shape.sent_weights) * (shards - 1) / shards
    assert plans[0].seconds.weight_sync_s >= moved / Assumptions().link(shards, split.gpus)


def test_float32_is_copied_and_cast_by_vllm():
    """With one GPU, nothing is gathered: a copy into a buffer, and from there each rank's part into its weights."""
    alone = plan_split(MIDDLE, JOB, H200, Split(1, 1))
    assert alone.seconds.weight_sync_s == pytest.approx((8 + 6) * MIDDLE.weights / H200.bytes_per_s)
    groups = [plan_split(MIDDLE, JOB, H200, split) for split in (Split(1, 8), Split(8, 1))]
    fewer_s = 6 * MIDDLE.weights * (1 - 1 / 8) / H200.bytes_per_s
    assert groups[0].seconds.weight_sync_s - groups[1].seconds.weight_sync_s == pytest.approx(fewer_s)


@loose
@given(shapes, jobs, cards, splits, st.sampled_from([1e6, 64e9]))
def test_a_reference_of_its_own_reads_its_shards_from_the_host_in_each_pass(shape, job, card, split, rate):
    split = Split(*split)
    if job.rows % split.gpus:
        return
    assumed, job = Assumptions(host_bytes_per_s=rate), replace(job, lora=False)
    with_it, without = (
        plan_split(shape, replace(job, reference=one), card, split, assumed, 16_384) for one in (True, False)
    )
    added_s = with_it.seconds.log_probs_s - without.seconds.log_probs_s
    tokens = job.rows // split.gpus * (job.prompt_tokens + job.response_tokens - 1)
    passes = max(1, -(-tokens // with_it.pass_tokens))
    assert added_s >= passes * 4 * shape.weights / split.gpus / (0.8 * rate) * (1 - 1e-9)
    assert with_it.seconds.update_s == without.seconds.update_s
    if rate == 64e9:
        same = replace(assumed, host_bytes_per_s=1e6)
        assert plan_split(shape, replace(job, reference=False), card, split, same, 16_384) == without


def test_the_reference_of_adapters_is_not_in_the_host_s_memory():
    job = replace(adapted(MIDDLE, JOB, 16), reference=True)
    fast, slow = (
        plan_split(MIDDLE, job, H200, Split(1, 8), Assumptions(host_bytes_per_s=rate)) for rate in (64e9, 1e6)
    )
    assert slow.seconds.log_probs_s == fast.seconds.log_probs_s
