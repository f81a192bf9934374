import pytest
import torch

from egpo.local.updates.losses import KL_ESTIMATORS, kl_per_response, less_kl


def test_k1_and_k3_are_without_bias_and_k2_has_the_gradient():
    """Over a whole vocabulary: the expectation under p is the KL, and its gradient is that of k2."""
    generator = torch.Generator().manual_seed(0)
    logits, other = (torch.randn(7, generator=generator, dtype=torch.float64) for _ in range(2))
    logits.requires_grad_()
    logp, ref = torch.log_softmax(logits, 0), torch.log_softmax(other, 0)
    kl = (logp.exp() * (logp - ref)).sum()
    exact = torch.autograd.grad(kl, logits, retain_graph=True)[0]
    p = logp.exp().detach()
    for name in ("k1", "k3"):
        assert (p * KL_ESTIMATORS[name](logp, ref)).sum().item() == pytest.approx(kl.item())
    of_k2 = torch.autograd.grad((p * KL_ESTIMATORS["k2"](logp, ref)).sum(), logits, retain_graph=True)[0]
    torch.testing.assert_close(of_k2, exact)
    of_k1 = torch.autograd.grad((p * KL_ESTIMATORS["k1"](logp, ref)).sum(), logits)[0]
    torch.testing.assert_close(of_k1, torch.zeros(7, dtype=torch.float64))


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_equal_policies_are_0_apart_and_k2_and_k3_never_negative(name):
    logp = -5 * torch.rand(50, generator=torch.Generator().manual_seed(1))
    assert KL_ESTIMATORS[name](logp, logp).eq(0).all()
    if name != "k1":
        assert KL_ESTIMATORS[name](logp, logp.flip(0)).ge(0).all()


def test_k3_close_to_0_does_not_drown_in_rounding():
    logp, apart = torch.tensor([-1.0]), torch.tensor([-1.0 + 2**-12])
    assert float(KL_ESTIMATORS["k3"](logp, apart)) == pytest.approx(2**-25, rel=1e-2)


def test_k3_far_away_is_finite_and_pulls_back():
    """verl cuts k3 at 10: a token 5 nats away would have no gradient."""
    logp = torch.tensor([-5.0, -200.0, -0.1], requires_grad=True)
    value = KL_ESTIMATORS["k3"](logp, torch.tensor([-0.0, -0.1, -200.0]))
    gradient = torch.autograd.grad(value.sum(), logp)[0]
    assert value.isfinite().all()
    assert gradient[0] < -10  # raise logp
    assert gradient[1] == 0
    assert gradient[2] == pytest.approx(1)  # lower it


def test_kl_comes_off_the_reward_by_the_sum_over_the_tokens_that_were_sampled():
    logp_BT = torch.tensor([[-1.0, -2.0, 9.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    reference_BT = torch.tensor([[-2.0, -4.0, 0.0], [-0.5, 7.0, 7.0], [7.0, 7.0, 7.0]])
    mask_BT = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]]).bool()
    kl_B = kl_per_response(logp_BT, reference_BT, mask_BT, "k1")
    assert kl_B.tolist() == [3.0, -0.5, 0.0]
    reward_B = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    assert less_kl(reward_B, kl_B, 0.5).tolist() == [-0.5, 1.25, 0.0]
    assert less_kl(reward_B, kl_B, 0.5).dtype == torch.float64
