"""A plan for many GPUs begins with the plan for one, and moves the right way from there."""

import subprocess
import sys
from dataclasses import asdict, fields, replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.errors import InputError
from egpo.plans.cluster_plan import assumptions_of, best_plan, plan_cluster, plan_split
from egpo.plans.links import LIKE_EMBEDDED, Assumptions, assumptions_for
from egpo.plans.splits import Split, part_of, possible_splits
from egpo.plans.step_plan import plan_job, plan_parts
from tests.plans.random_jobs import COUNTS, H200, JOB, LARGE, MIDDLE, SMALL, cards, jobs, loose, micros, recipe, shapes


@loose
@given(shapes, jobs, cards, micros)
def test_one_gpu_is_the_plan_for_one_gpu(shape, job, card, micro):
    """The parts are those of the embedded engine, but for the key-value cache, which verl frees before the update."""
    plan, parts = plan_split(shape, job, card, Split(1, 1), LIKE_EMBEDDED, micro), plan_parts(shape, job, card, micro)
    assert asdict(plan.update) == pytest.approx({**asdict(parts.parts), "cache": 0.0})
    whole = plan_job(shape, job, card, micro)
    if plan.at_once == job.rows == whole.memory.at_once:
        assert plan.sampling.cache == pytest.approx(parts.parts.cache)
        assert plan.seconds.step_s == pytest.approx(whole.time.step_s)
        assert plan.seconds.rollout_s == pytest.approx(whole.time.sample_s)
    for part in ("weights", "optimizer", "context"):
        assert getattr(plan.sampling, part) == pytest.approx(getattr(parts.parts, part))


@loose
@given(shapes, jobs, cards, st.sampled_from([(1, 1), (1, 8), (8, 8), (1, 1024)]), st.sampled_from([2, 4]))
def test_weights_are_held_once_in_the_update(shape, job, card, split, size):
    """In float32, with their moments, in any precision of computing: beside them, two units that FSDP2 has gathered."""
    split, job = Split(*split), replace(job, lora=False, bytes_per_weight=size)
    if job.rows % split.gpus:
        return
    plan = plan_split(shape, job, card, split)
    assert plan.update.weights == min(size * shape.weights, 2 * size * max(shape.layer, shape.head))
    assert plan.update.optimizer * split.gpus == pytest.approx(12 * shape.weights)
    assert plan.sampling.weights == pytest.approx(size * shape.weights / split.tensor_parallel)


@loose
@given(shapes, jobs, cards, st.sampled_from([(1, 1), (1, 8), (8, 8), (1, 1024)]), micros)
def test_a_reference_takes_no_memory_of_a_gpu(shape, job, card, split, micro):
    """Unless trainer and sampler share the weights, as in the embedded engine."""
    split = Split(*split)
    if job.rows % split.gpus or micro is None:  # otherwise passes are as large as the memory that is left allows
        return
    with_it, without = (
        plan_split(shape, replace(job, lora=False, reference=one), card, split, None, micro) for one in (True, False)
    )
    assert (with_it.update, with_it.sampling, with_it.at_once) == (without.update, without.sampling, without.at_once)
    shared = plan_split(shape, replace(job, lora=False, reference=True), card, split, LIKE_EMBEDDED, micro)
    assert shared.sampling.weights > with_it.sampling.weights


@loose
@given(shapes, jobs, cards, micros)
def test_memory_never_grows_with_more_gpus(shape, job, card, micro):
    """At a fixed size of the groups of tensor parallelism. Rows are whole: one row of rounding is allowed."""
    for tensor in (1, 2, 8):
        peaks, updates = [], []
        for gpus in (count for count in COUNTS if count >= tensor and job.rows % count == 0):
            plan = plan_split(shape, job, card, Split(tensor, gpus // tensor), micro_tokens=micro)
            peaks.append(plan.sampling.total)
            updates.append(plan.update.total)
        row = 2 * shape.cached_numbers * job.longest + 8 * shape.vocabulary
        assert all(after <= before * (1 + 1e-9) + row for before, after in pairwise(peaks))
        assert all(after <= before * (1 + 1e-9) for before, after in pairwise(updates))


@loose
@given(shapes, jobs, cards, st.sampled_from(COUNTS), st.sampled_from([1, 2, 4, 8]))
def test_seconds_are_never_below_the_operations(shape, job, card, gpus, tensor):
    if gpus % tensor or job.rows % gpus:
        return
    for assumed in (Assumptions(), replace(LIKE_EMBEDDED, overlap=1.0)):
        plan = plan_split(shape, job, card, Split(tensor, gpus // tensor), assumed)
        assert plan.seconds.step_s >= plan.seconds.update_s >= plan.bound_s
        assert min(asdict(plan.seconds).values()) >= 0


@loose
@given(jobs, st.sampled_from(COUNTS), st.booleans())
def test_parts_hold_all_rows(job, parts, shared):
    part = part_of(job, parts, shared=shared)
    assert part.rows * parts >= job.rows
    assert part.at_once <= part.rows


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({}, {"network_bytes_per_s": 5e9}),
        ({}, {"link_share": 0.3}),
        ({}, {"hop_s": 1e-4}),
        ({"overlap": 1.0}, {"overlap": 0.0}),
        ({}, {"rollout_factor": 3.0}),
        ({"shared_prompts": 1}, {}),
        ({}, {"padding": 2.0}),
        ({}, {"overhead_s": 60.0}),
        ({}, {"log_probs": 2}),
        ({}, {"node_gpus": 4}),
        ({}, {"host_bytes_per_s": 1e9}),
        ({}, {"base_bytes": 8}),
    ],
)
def test_every_assumption_has_an_effect_in_the_right_direction(better, worse):
    split = Split(1, 8 if "node_gpus" in worse else 64)
    # The host's memory holds a reference's shards. One with adapters is the policy, and vLLM's weights wait there.
    job = replace(JOB, reference=True)
    if "host_bytes_per_s" in worse:
        waiting, awake = (
            plan_split(MIDDLE, replace(JOB, lora=True), H200, split, assumptions_for("h200", one))
            for one in (worse, better)
        )
        assert waiting.seconds.weight_sync_s > awake.seconds.weight_sync_s
    fast, slow = (plan_split(MIDDLE, job, H200, split, assumptions_for("h200", one)) for one in (better, worse))
    assert slow.seconds.step_s > fast.seconds.step_s


def test_links_inside_a_node_matter_to_tensor_parallelism():
    plans = [
        plan_split(MIDDLE, JOB, H200, Split(8, 1), assumptions_for("h200", given))
        for given in ({}, {"reduce_s": 1e-4}, {"node_bytes_per_s": 25e9})
    ]
    assert plans[0].seconds.rollout_s < min(plans[1].seconds.rollout_s, plans[2].seconds.rollout_s)
    named = {field.name for field in fields(Assumptions)}
    assert named == set(asdict(Assumptions())), "all of them are printed"


def test_splits_divide_gpus_heads_and_nodes():
    assert possible_splits(SMALL, 8) == [Split(1, 8), Split(2, 4), Split(4, 2), Split(8, 1)]
    assert possible_splits(SMALL, 12) == [Split(1, 12), Split(2, 6), Split(4, 3)]
    assert [one.tensor_parallel for one in possible_splits(SMALL, 64, node_gpus=4)] == [1, 2, 4]
    wide = replace(SMALL, queries=12, keys=4)
    assert possible_splits(wide, 24, node_gpus=6) == [Split(1, 24), Split(2, 12)], "groups of 4 would leave a node of 6"
    with pytest.raises(InputError, match="nodes of 6 GPUs cannot be divided into groups of 4"):
        plan_split(wide, replace(JOB, prompts=96), H200, Split(4, 6), Assumptions(node_gpus=6))
    for split, fault in ((Split(3, 4), "16 query heads"), (Split(16, 4), "does not fit into a node of 8")):
        with pytest.raises(InputError, match=fault):
            plan_split(SMALL, replace(JOB, prompts=48), H200, split)
    with pytest.raises(InputError, match="1024 responses cannot be divided among 12 GPUs"):
        plan_split(SMALL, JOB, H200, Split(1, 12))


def test_a_model_that_one_gpu_cannot_hold_gets_a_split_that_can():
    plans = [plan_split(LARGE, JOB, H200, split, micro_tokens=16_384) for split in possible_splits(LARGE, 8)]
    assert not plan_split(LARGE, JOB, H200, Split(1, 1), micro_tokens=16_384).fits
    checkpointed = replace(JOB, gradient_checkpointing=True)
    many = [plan_split(LARGE, checkpointed, H200, split, micro_tokens=16_384) for split in possible_splits(LARGE, 64)]
    assert best_plan(many).fits
    assert best_plan(many).seconds.step_s == min(plan.seconds.step_s for plan in many if plan.fits)
    assert best_plan(plans).peak_bytes <= max(plan.peak_bytes for plan in plans)


def test_a_recipe_is_planned_for_its_gpus(model_folder):
    plans = plan_cluster(recipe(model_folder, gpus=8, nodes=2), "a100")
    assert {plan.split.gpus for plan in plans} == {16}
    (chosen,) = plan_cluster(recipe(model_folder, gpus=8, tensor_parallel=2), "h200")
    assert chosen.split == Split(2, 4)
    for settings_, fault in (
        ({"gpus": 8, "tensor_parallel": 3}, "8 GPUs cannot be divided into groups of 3"),
        ({"gpus": 2, "tensor_parallel": 4}, "4 tensor-parallel ranks are more than 2 GPUs"),
        ({"gpus": 7}, "128 responses cannot be divided among 7 GPUs"),
        ({"device": "cpu"}, "the recipe trains on a CPU"),
    ):
        with pytest.raises(InputError, match=fault):
            plan_cluster(recipe(model_folder, **settings_), "h200")


def test_the_nodes_of_a_recipe_are_its_own_up_to_eight_gpus(model_folder):
    """A single node has no network, however many GPUs it has in use."""
    for words, node in (({"gpus": 4, "nodes": 4}, 4), ({"gpus": 16, "nodes": 2}, 8), ({"gpus": 4}, 8)):
        found = assumptions_of(recipe(model_folder, **words), "h200", {})
        assert found == Assumptions(node_gpus=node)
        assert plan_cluster(recipe(model_folder, **words), "h200") == plan_cluster(
            recipe(model_folder, **words), "h200", assumed=found
        )
    narrow, wide = recipe(model_folder, gpus=4, nodes=2), recipe(model_folder, gpus=8)
    several, one = plan_cluster(narrow, "h200")[0], plan_cluster(wide, "h200")[0]
    assert several.seconds.update_s > one.seconds.update_s, "a ring of eight GPUs in two nodes uses the network"
    assert assumptions_of(narrow, "h200", {"node_gpus": 72.0}).node_gpus == 72


@pytest.mark.parametrize(
    ("given_", "fault"),
    [({"overlapp": 1.0}, "did you mean `overlap`"), ({"overlap": 2.0}, "cannot be 2"), ({"link_share": 0.0}, "cannot")],
)
def test_assumptions_are_checked(given_, fault):
    with pytest.raises(InputError, match=fault):
        assumptions_for("h200", given_)


def test_links_follow_the_card():
    assert (
        assumptions_for("rtx4090", {}).link(2)
        < assumptions_for("a100", {}).link(2)
        < assumptions_for("h100", {}).link(2)
    )
    assert assumptions_for("h200", {}).link(8) > assumptions_for("h200", {}).link(9)


def test_the_page_shows_what_the_script_computes():
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, root / "benchmarks" / "cluster_plan.py"], capture_output=True, text=True, check=True
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("|")]
    page = (root / "docs" / "scale.md").read_text()
    assert len(rows) == 36
    assert [row for row in rows if row not in page] == []
