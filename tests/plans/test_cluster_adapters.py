"""Adapters under verl: frozen weights are sharded too, gradients and moments are the adapters' alone."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.config.sections.training import Lora
from egpo.errors import InputError
from egpo.local.models.lora import add_adapters
from egpo.plans.cluster_plan import plan_cluster, plan_split
from egpo.plans.links import LIKE_EMBEDDED, Assumptions
from egpo.plans.shapes import StepJob, read_shape
from egpo.plans.splits import Split, possible_fsdp_sizes
from egpo.plans.step_plan import plan_job
from tests.local.conftest import build_model
from tests.plans.random_jobs import H200, JOB, LARGE, MIDDLE, adapted, cards, jobs, loose, micros, recipe, shapes

ranks = st.sampled_from([1, 8, 16, 64])
parts = st.sampled_from([(1, 1), (2, 4), (1, 64), (8, 8), (1, 1024)])


@loose
@given(shapes, jobs, cards, parts, ranks, st.booleans(), micros, st.data())
def test_adapters_take_no_more_memory_than_all_weights(shape, job, card, split, rank, merged, micro, data):
    """At the same rows. Beside its weights, vLLM holds the adapters themselves, unless they are merged."""
    split = Split(*split)
    if job.rows % split.gpus:
        return
    size = data.draw(st.sampled_from(possible_fsdp_sizes(split.gpus)))
    with_them = adapted(shape, job, rank, merged=merged)
    all_weights = replace(job, lora=False)
    some, whole = (plan_split(shape, one, card, split, None, micro, size) for one in (with_them, all_weights))
    held = 0 if merged else job.bytes_per_weight * with_them.adapter_weights
    if micro is not None:  # otherwise the memory that is left is used for larger passes
        assert some.update.total <= whole.update.total
    assert some.update.gradients <= whole.update.gradients
    assert some.update.optimizer <= whole.update.optimizer
    if some.at_once == whole.at_once:
        assert some.sampling.total <= whole.sampling.total + held + 1


@loose
@given(shapes, jobs, cards, parts, ranks, st.booleans())
def test_no_stage_is_faster_than_its_operations(shape, job, card, split, rank, merged):
    split = Split(*split)
    if job.rows % split.gpus:
        return
    with_them = adapted(shape, job, rank, merged=merged)
    for assumed in (Assumptions(), replace(LIKE_EMBEDDED, overlap=1.0)):
        plan = plan_split(shape, with_them, card, split, assumed)
        assert plan.seconds.step_s >= plan.seconds.update_s >= plan.bound_s > 0


@loose
@given(shapes, jobs, parts, ranks)
def test_only_the_adapters_have_gradients_and_moments(shape, job, split, rank):
    split = Split(*split)
    if job.rows % split.gpus:
        return
    with_them = adapted(shape, job, rank)
    plan = plan_split(shape, with_them, H200, split, Assumptions(base_bytes=0))
    assert plan.update.gradients == pytest.approx(4 * with_them.adapter_weights / split.gpus)
    assert plan.update.optimizer == pytest.approx(12 * with_them.adapter_weights / split.gpus)
    based = plan_split(shape, with_them, H200, split)
    assert based.sampling.optimizer - plan.sampling.optimizer == pytest.approx(4 * shape.weights / split.gpus)


def test_the_shards_of_frozen_weights_are_counted_once():
    """In the update beside two gathered units; the sampler's weights are away."""
    for size in (8, 64):
        plan = plan_split(MIDDLE, adapted(MIDDLE, JOB, 16), H200, Split(1, 64), fsdp_size=size)
        state = 4 * MIDDLE.weights + 12 * MIDDLE.adapter_weights(16)
        assert plan.update.weights == 4 * MIDDLE.head
        assert plan.update.optimizer == pytest.approx(state / size)


def test_frozen_weights_have_fewer_operations_and_send_no_gradients():
    slow = Assumptions(network_bytes_per_s=1e7)
    some, whole = (
        plan_split(MIDDLE, job, H200, Split(1, 64), slow, 16_384, 8) for job in (adapted(MIDDLE, JOB, 16), JOB)
    )
    assert some.bound_s == pytest.approx(whole.bound_s * 2 / 3)
    assert some.seconds.update_s < whole.seconds.update_s / 20


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("layers", [(), ("q_proj", "mlp.down_proj")])
def test_adapters_are_counted_as_peft_makes_them(model_folder, kind, layers):
    model = build_model(kind)
    add_adapters(model, Lora(rank=3, layers=layers), seed=0)
    made = [one.numel() for name, one in model.named_parameters() if ".lora_" in name]
    shape = read_shape(str(model_folder(kind)))
    assert (shape.adapter_weights(3, layers), shape.adapter_tensors(layers)) == (sum(made), len(made))


def test_merged_adapters_are_sent_as_all_weights():
    """Gathered in float32 as well. They are cast before they are copied for vLLM, not after."""
    split = Split(1, 64)
    merged = plan_split(MIDDLE, adapted(MIDDLE, JOB, 16, merged=True), H200, split)
    whole = plan_split(MIDDLE, JOB, H200, split)
    alone = plan_split(MIDDLE, adapted(MIDDLE, JOB, 16), H200, split)
    saved_s = 2 * 4 * MIDDLE.weights / 64 / (0.8 * Assumptions().host_bytes_per_s)
    fewer_s = (8 + 6 - 6 - 4 - 4) * MIDDLE.weights / H200.bytes_per_s
    assert merged.seconds.weight_sync_s == pytest.approx(whole.seconds.weight_sync_s + saved_s - fewer_s)
    assert alone.sampling.weights > merged.sampling.weights
    less = plan_split(MIDDLE, adapted(MIDDLE, JOB, 16), H200, Split(8, 8))
    assert less.seconds.weight_sync_s < alone.seconds.weight_sync_s, "each GPU copies a shard of the weights back"


def test_the_reference_of_adapters_is_a_pass_and_no_second_model():
    plain, beside = adapted(LARGE, JOB, 16), adapted(LARGE, replace(JOB, reference=True), 16)
    without, with_it = (plan_split(LARGE, one, H200, Split(8, 8)) for one in (plain, beside))
    assert with_it.peak_bytes == without.peak_bytes
    assert with_it.seconds.log_probs_s == 2 * without.seconds.log_probs_s
    alone, more = (
        plan_job(MIDDLE, one, H200) for one in (replace(JOB, lora=True), replace(JOB, lora=True, reference=True))
    )
    assert more.memory == alone.memory
    assert more.time.update_s > alone.time.update_s


def test_a_recipe_with_adapters_is_planned(model_folder):
    given_ = recipe(model_folder, lora={"rank": 4, "layers": ["v_proj"]}, kl=0.1, gpus=4)
    job = StepJob.of(given_, None, None)
    assert (job.lora, job.reference, job.model_copies) == (True, True, 1)
    plans = {
        merge: plan_cluster(given_.model_copy(update={"verl": recipe(model_folder, gpus=4, **more).verl}), "h200")[0]
        for merge, more in ((False, {}), (True, {"actor_rollout_ref": {"model": {"lora": {"merge": True}}}}))
    }
    assert plans[False].sampling.weights > plans[True].sampling.weights
    assert plans[False].update.gradients == 4 * read_shape(given_.model.path).adapter_weights(4, ("v_proj",)) / 4
    with pytest.raises(InputError, match="did you mean `v_proj`"):
        plan_cluster(recipe(model_folder, lora={"layers": ["v_prj"]}, gpus=4), "h200")
