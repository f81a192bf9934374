"""The update on a real GPU. Run by `make test-gpu`."""

import contextlib

import pytest
import torch

from egpo.config.schema import Model, Update
from egpo.errors import EgpoWarning
from egpo.local.models.loading import load_policy
from egpo.local.updates.micro_batches import TokenBudget
from egpo.local.updates.optimizer import Optimizer
from egpo.local.updates.update import update
from tests.local.plain_update import recorded_batch
from tests.local.updates.test_update import LOSSES, SHAPES, settings_of, updated

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


def load_on_gpu(folder, dtype):
    return load_policy(Model(path=str(folder), device="cuda", dtype=dtype))


@pytest.mark.parametrize("shape", SHAPES)
def test_a_gpu_computes_what_a_cpu_does(load_on_cpu, model_folder, shape):
    batch, settings = recorded_batch(load_on_cpu(shape)), settings_of(**LOSSES["all of it"])
    _, gradient, weights = updated(load_on_cpu(shape), batch, settings, budget=TokenBudget(40))
    policy = load_on_gpu(model_folder(shape), "float32")
    _, other_gradient, other_weights = updated(policy, batch.to("cuda"), settings, budget=TokenBudget(40))
    for name in gradient:
        torch.testing.assert_close(other_gradient[name].cpu(), gradient[name], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(other_weights[name].cpu(), weights[name], atol=1e-4, rtol=0)


def test_memory_of_a_gpu_that_really_runs_out_halves_the_micro_batch(load_on_cpu, model_folder):
    """The same update with room for all of it at once, and for a part."""
    policies = [load_on_gpu(model_folder("qwen2"), "bfloat16") for _ in range(2)]
    batch = recorded_batch(load_on_cpu("qwen2"), num_problems=64, n=32).to("cuda")
    budgets = [TokenBudget(100_000), TokenBudget(100_000)]
    states = []
    for policy, budget, room in zip(policies, budgets, (None, 48 * 2**20), strict=True):
        optimizer = Optimizer(policy.model.named_parameters(), Update(lr=1e-5))
        settings = settings_of(lr=1e-5)
        torch.cuda.empty_cache()
        if room:
            free = torch.cuda.memory_reserved() + room
            torch.cuda.set_per_process_memory_fraction(free / torch.cuda.get_device_properties(0).total_memory)
        try:
            with pytest.warns(EgpoWarning) if room else contextlib.nullcontext():
                update(policy, optimizer, batch.rollouts, batch.advantage_B, settings, budget, 0)
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        states.append(optimizer.state())
    assert budgets[0].tokens == 100_000 > budgets[1].tokens
    for name, value in states[0].items():
        if name.startswith("exp_avg/"):
            torch.testing.assert_close(states[1][name], value, atol=1e-3, rtol=1e-2)
