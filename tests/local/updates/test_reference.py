import pytest
import torch

from egpo.config.schema import Lora, Model
from egpo.errors import EgpoWarning
from egpo.local.models.lora import add_adapters
from egpo.local.updates.micro_batches import TokenBudget
from egpo.local.updates.reference import load_reference, reference_logp
from tests.local.device import MODEL
from tests.local.plain_update import TEMPERATURE, plain_logp, plain_model, recorded_batch


@pytest.mark.parametrize("budget", [1, 40, 10_000])
def test_it_is_the_starting_policys_logp_however_far_the_policy_has_gone(load, model_folder, budget):
    policy = load()
    batch, start = recorded_batch(policy), plain_model(policy)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    reference = load_reference(policy, Model(path=str(model_folder("qwen3")), **MODEL), seed=0)
    logp_BT = reference_logp(reference, batch.rollouts, TEMPERATURE, TokenBudget(budget))
    assert not logp_BT.requires_grad
    assert logp_BT[~batch.rollouts.mask_BT].eq(0).all()
    for row, length in enumerate(batch.rollouts.length_B.tolist()):
        torch.testing.assert_close(
            logp_BT[row, :length], plain_logp(start, batch.rollouts, row).detach(), atol=1e-5, rtol=1e-5
        )


def test_a_second_copy_is_frozen_and_shares_nothing(load, model_folder):
    policy = load()
    reference = load_reference(policy, Model(path=str(model_folder("qwen3")), **MODEL), seed=0)
    assert not any(parameter.requires_grad for parameter in reference.policy.model.parameters())
    theirs = {parameter.data_ptr() for parameter in reference.policy.model.parameters()}
    assert not theirs & {parameter.data_ptr() for parameter in policy.model.parameters()}


def test_with_adapters_the_reference_is_the_policy_with_them_off(load, model_folder):
    settings = Model(path=str(model_folder("qwen3")), **MODEL, lora=Lora(rank=2))
    policy = load()
    batch, start = recorded_batch(policy), plain_model(policy)
    add_adapters(policy.model, settings.lora, seed=0)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            if parameter.requires_grad:
                parameter += 0.3 * torch.randn_like(parameter)
    reference = load_reference(policy, settings, seed=0)
    assert reference.policy is policy
    logp_BT = reference_logp(reference, batch.rollouts, TEMPERATURE, TokenBudget(100))
    torch.testing.assert_close(
        logp_BT[-1], plain_logp(start, batch.rollouts, len(batch.rollouts) - 1).detach(), atol=1e-5, rtol=1e-5
    )
    # Outside they are on again, and learn.
    assert sum(parameter.requires_grad for parameter in policy.model.parameters()) > 0


def test_memory_that_runs_out_halves_the_budget_here_too(load, model_folder):
    policy = load()
    batch = recorded_batch(policy)
    reference = load_reference(policy, Model(path=str(model_folder("qwen3")), **MODEL), seed=0)
    whole = reference_logp(reference, batch.rollouts, TEMPERATURE, TokenBudget(1000))
    hidden = reference.policy.hidden

    def short(pack):
        if len(pack.token_N) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return hidden(pack)

    reference.policy.hidden = short
    budget = TokenBudget(1000)
    with pytest.warns(EgpoWarning, match="out of memory"):
        cut = reference_logp(reference, batch.rollouts, TEMPERATURE, budget)
    assert budget.tokens <= 40
    torch.testing.assert_close(cut, whole, atol=1e-5, rtol=1e-5)
