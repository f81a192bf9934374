"""Sharding over fewer GPUs (`fsdp_size`) costs memory, never network for gathers, and does not change other stages."""

from dataclasses import asdict, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.errors import InputError
from egpo.plans.cluster_plan import best_plan, plan_cluster, plan_fsdp_sizes, plan_split
from egpo.plans.links import LIKE_EMBEDDED, Assumptions, Mesh, all_reduce_s, assumptions_for, gather_s
from egpo.plans.splits import FSDP_SIZE, Split, mesh_of, possible_fsdp_sizes, possible_splits
from tests.plans.random_jobs import COUNTS, H200, JOB, LARGE, SMALL, adapted, cards, jobs, loose, micros, recipe, shapes

sections = st.sampled_from([(1, 8), (8, 1), (1, 64), (4, 16), (8, 8), (2, 512)])


def plans_by_size(shape, job, card, split, micro=None, assumed=None):
    """Return the plan for each size, all GPUs first; none if the rows cannot be divided."""
    if job.rows % split.gpus:
        return []
    return [plan_split(shape, job, card, split, assumed, micro, size) for size in possible_fsdp_sizes(split.gpus)]


@loose
@given(shapes, jobs, cards, st.sampled_from(COUNTS), micros)
def test_all_gpus_are_the_default(shape, job, card, gpus, micro):
    if job.rows % gpus:
        return
    plans = [plan_split(shape, job, card, Split(1, gpus), None, micro, size) for size in (None, -1, -5, gpus)]
    assert all(plan == plans[0] for plan in plans)
    assert plans[0].fsdp_size == gpus


@loose
@given(shapes, jobs, cards, sections, micros, st.sampled_from([0, 16, 64]))
def test_memory_never_falls_when_the_size_falls(shape, job, card, parts, micro, rank):
    """With larger shards, fewer rows may fit into vLLM's cache: one row of rounding is allowed there."""
    job = adapted(shape, job, rank) if rank else job
    row = 2 * shape.cached_numbers * job.longest + 8 * shape.vocabulary
    for more, fewer in pairwise(plans_by_size(shape, job, card, Split(*parts), micro)):
        assert fewer.update.total >= more.update.total
        assert fewer.sampling.total >= more.sampling.total - row
        assert fewer.at_once <= more.at_once
        for part in ("weights", "optimizer", "gradients"):
            assert getattr(fewer.update, part) >= getattr(more.update, part)


@loose
@given(shapes, jobs, cards, sections, st.sampled_from([0, 16]))
def test_every_group_holds_the_whole_state(shape, job, card, parts, rank):
    """The units that are gathered are the same, however many GPUs hold them."""
    job = replace(adapted(shape, job, rank) if rank else job, reference=False)
    plans = plans_by_size(shape, job, card, Split(*parts), 16_384)
    for plan in plans:
        for state in ("optimizer", "gradients"):
            held = getattr(plan.update, state) * plan.fsdp_size
            assert held == pytest.approx(getattr(plans[0].update, state) * plans[0].fsdp_size)
        assert plan.sampling.optimizer == plan.update.optimizer
        assert plan.update.weights == plans[0].update.weights


def test_a_reference_of_its_own_stays_divided_among_all_gpus():
    jobs = (replace(JOB, reference=True), JOB)
    few, many = ([plan_split(LARGE, job, H200, Split(8, 8), None, 16_384, size) for job in jobs] for size in (8, 64))
    for more, less in (few, many):
        assert more.peak_bytes == less.peak_bytes, "in the host's memory"
        added_s = more.seconds.log_probs_s - less.seconds.log_probs_s
        assert added_s == pytest.approx(many[0].seconds.log_probs_s - many[1].seconds.log_probs_s)
    shared = [plan_split(LARGE, jobs[0], H200, Split(8, 8), LIKE_EMBEDDED, 16_384, size) for size in (8, 64)]
    assert shared[0].update.weights - shared[1].update.weights == pytest.approx(2 * LARGE.weights * (1 / 8 - 1 / 64))


@loose
@given(shapes, jobs, cards, sections, st.booleans())
def test_no_stage_is_faster_than_its_operations_and_sums(shape, job, card, parts, hidden):
    assumed = replace(LIKE_EMBEDDED, overlap=1.0) if hidden else Assumptions()
    split = Split(*parts)
    for plan in plans_by_size(shape, job, card, split, assumed=assumed):
        trained = 0 if job.lora else 4 * shape.weights
        summed = all_reduce_s(trained, shape.layers, Mesh(split.gpus, plan.fsdp_size), assumed)
        assert plan.seconds.step_s >= plan.seconds.update_s >= max(plan.bound_s, summed)
        assert min(asdict(plan.seconds).values()) >= 0


@loose
@given(shapes, jobs, cards, sections)
def test_a_group_within_a_node_gathers_without_the_network(shape, job, card, parts):
    """Only the sums of gradients leave the node, and a reference of its own, which all GPUs share."""
    job = replace(job, reference=job.reference and job.lora)
    slow = Assumptions(network_bytes_per_s=1e9)
    fast, late = (plans_by_size(shape, job, card, Split(*parts), assumed=one) for one in (Assumptions(), slow))
    for before, after in zip(fast, late, strict=True):
        same = (before.seconds.log_probs_s, before.seconds.weight_sync_s)
        if before.fsdp_size <= 8:
            assert (after.seconds.log_probs_s, after.seconds.weight_sync_s) == same
        assert after.seconds.rollout_s == before.seconds.rollout_s
        assert after.seconds.update_s >= before.seconds.update_s


def test_groups_over_the_end_of_a_node_use_the_network():
    assumed = Assumptions()
    assert assumed.link(4, 24) == assumed.link(8, 24) == assumed.link(6, 6) == assumed.link(8)
    assert assumed.link(6, 24) == assumed.link(12, 24) == assumed.link(24)


def test_one_group_sums_nothing_and_one_gpu_gathers_nothing():
    assumed = Assumptions()
    assert all_reduce_s(1e9, 10, Mesh(64, 64), assumed) == 0
    assert gather_s(1e9, 10, Mesh(64, 1), assumed) == 0
    assert all_reduce_s(1e9, 0, Mesh(64, 8), assumed) == pytest.approx(2 * 7 / 8 * 1e9 / 8 / assumed.link(64))
    assert all_reduce_s(1e9, 10, Mesh(64, 1), assumed) > all_reduce_s(1e9, 10, Mesh(64, 8), assumed) > 0


@loose
@given(st.integers(1, 2000), st.integers(1, 4000))
def test_a_size_that_does_not_divide_the_gpus_is_refused(gpus, size):
    sizes = possible_fsdp_sizes(gpus)
    if size in sizes:
        assert mesh_of(gpus, size).replicas * size == gpus
        return
    with pytest.raises(InputError) as caught:
        mesh_of(gpus, size)
    (fault,) = caught.value.faults
    assert fault.where == f"verl.{FSDP_SIZE}"
    assert f"choose one of {', '.join(map(str, sorted(sizes)))};" in fault.fix


@pytest.mark.parametrize(
    ("size", "fault"),
    [
        (5, "16 GPUs cannot be divided into groups of 5"),
        (32, "32 GPUs cannot share the weights: there are 16"),
        (0, "0 is not a number of GPUs"),
        (True, "True is not a number of GPUs"),
        ("eight", "'eight' is not a number of GPUs"),
        (8.0, r"8\.0 is not a number of GPUs"),
    ],
)
def test_the_size_of_a_recipe_is_checked(model_folder, size, fault):
    given_ = recipe(model_folder, gpus=8, nodes=2, actor_rollout_ref={"actor": {"fsdp_config": {"fsdp_size": size}}})
    with pytest.raises(InputError, match=fault):
        plan_cluster(given_, "h200")


@pytest.mark.parametrize("sections", [{"actor": {"fsdp_config": {"fsdp_size": 4}}}, {"actor.fsdp_config.fsdp_size": 4}])
def test_a_recipe_is_planned_with_its_size_and_beside_it_with_all(model_folder, sections):
    given_ = recipe(model_folder, gpus=8, nodes=2, actor_rollout_ref=sections)
    assert {plan.fsdp_size for plan in plan_cluster(given_, "h200")} == {4}
    sizes = plan_fsdp_sizes(given_, "h200")
    assert [plan.fsdp_size for plan in sizes] == [16, 8, 4, 2, 1]
    every = [plan for size in (16, 8, 4, 2, 1) for plan in plan_cluster(given_, "h200", fsdp_size=size)]
    assert best_plan(sizes) == best_plan(every)
    assert {plan.fsdp_size for plan in plan_cluster(recipe(model_folder, gpus=8), "h200")} == {8}


def test_small_models_on_many_gpus_gain_and_large_ones_do_not_fit_into_few():
    """The reason for the setting: 1,024 hops for each layer of a small model, and 512 GB of weights in a large one."""
    job = replace(JOB, prompts=8192, at_once=8192 * 16, gradient_checkpointing=True)
    rings = {
        size: plan_split(SMALL, job, H200, Split(1, 1024), micro_tokens=16_384, fsdp_size=size) for size in (8, 1024)
    }
    assert rings[8].seconds.update_s < rings[1024].seconds.update_s
    assert rings[8].fits
    found = [
        plan_split(LARGE, job, H200, split, assumptions_for("h200", {}), 16_384, 1)
        for split in possible_splits(LARGE, 1024)
    ]
    assert not any(plan.fits for plan in found)
