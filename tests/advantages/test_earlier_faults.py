"""Every fault of an earlier implementation, with the input that showed it."""

import warnings

import numpy as np
import pytest
import torch

from egpo.advantages import ESTIMATORS, Signals, egpo, egpo_calibrated, explain, grpo
from egpo.errors import EgpoWarning
from tests.advantages.batches import called

NAN = float("nan")

NAMES = sorted(ESTIMATORS)
SMALL_GROUPS = pytest.mark.filterwarnings("ignore:.*under `pass_at_k`.*:egpo.errors.EgpoWarning")


@pytest.mark.parametrize(("reward", "naive"), [(0.9, -0.056), (0.3, 0.029)])
def test_sixteen_equal_rewards_gave_an_advantage(reward, naive):
    reward_B = torch.full((16,), reward)
    plain = (reward_B - reward_B.mean()) / (reward_B.std() + 1e-6)
    assert float(plain[0]) == pytest.approx(naive, abs=2e-3), "the plain float32 formula has the fault"
    assert torch.equal(grpo(Signals(reward_B, [1] * 16)), torch.zeros(16))


def test_equal_rewards_summed_in_another_order_are_equal():
    reward_B = torch.tensor([0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1, 0.6, 0.6], dtype=torch.float64)
    assert reward_B.std() > 0
    assert torch.equal(grpo(Signals(reward_B, [0] * 4)), torch.zeros(4, dtype=torch.float64))


def test_dust_around_zero_is_no_reward():
    reward_B = torch.tensor([[1.0, -0.9, -0.1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]).sum(-1)
    assert reward_B[0] != 0
    assert torch.equal(grpo(Signals(reward_B, [0] * 4)), torch.zeros(4))


@pytest.mark.parametrize(("dtype", "apart"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_rewards_that_do_differ_are_told_apart(dtype, apart):
    assert float(grpo(Signals(torch.tensor([1.0, 1.0 + apart], dtype=dtype), [0, 0]), normalize=False).abs().min()) > 0
    assert explain("grpo", Signals(torch.tensor([1e6, 1e6 + 1], dtype=torch.float64), [0, 0])) == {
        "groups/zero_variance_frac": 0.0
    }


def test_sums_run_in_float64():
    """Two hundred float32 rewards near 1,000: the float32 mean is off by more than the rewards differ."""
    reward_B = 1000 + torch.arange(200, dtype=torch.float32) / 1024
    exact = reward_B.double()
    exact = (exact - exact.mean()) / (exact.std() + 1e-6)
    torch.testing.assert_close(grpo(Signals(reward_B, [0] * 200)).double(), exact, rtol=1e-6, atol=1e-6)


@SMALL_GROUPS
def test_inputs_with_a_gradient_give_advantages_without_one():
    reward_B, entropy_B = (torch.rand(4, requires_grad=True) for _ in range(2))
    signals = Signals(reward_B, [0] * 4, entropy_B, correct_B=[1, 0, 1, 0])
    assert not any(called(name, signals).requires_grad for name in NAMES)


def test_a_negative_measure_is_clipped_on_its_side_too():
    signals = Signals([1.0, 0.0, 1.0, 0.0], [0] * 4, entropy_B=[-9.0] * 4)
    bonus = egpo(signals) - grpo(signals)
    assert bonus.tolist() == pytest.approx([-0.4 * 0.866 / 2] * 4, abs=1e-3)


@pytest.mark.parametrize(("num_measured", "warns"), [(4, True), (5, False), (100, False)])
def test_coverage_under_a_twentieth_warns(num_measured, warns):
    entropy = [0.5] * num_measured + [NAN] * (100 - num_measured)
    signals = Signals([0.0, 1.0] * 50, [0] * 100, entropy_B=entropy)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        egpo(signals)
        egpo(signals)
    assert len(caught) == int(warns), "once, and only then"


def test_the_standard_deviation_is_the_sample_estimate():
    reward_B = torch.tensor([1.0, 0, 0, 0, 0, 0, 0, 0])
    advantage = grpo(Signals(reward_B, [0] * 8))
    population = (reward_B - reward_B.mean()) / reward_B.std(correction=0)
    assert float(population[0] / advantage[0] - 1) == pytest.approx(0.069, abs=1e-3)


def test_a_group_of_one_row_gets_its_reward_and_a_warning():
    with pytest.warns(EgpoWarning, match="1 of 2 groups have one response"):
        advantage = grpo(Signals([0.7, 1.0, 0.0], ["alone", "pair", "pair"]))
    assert float(advantage[0]) == pytest.approx(0.7)


def test_the_two_forms_of_egpo_differ_past_the_cap():
    signals = Signals([1.0, 0.0, 1.0, 0.0], [0] * 4, entropy_B=[1.0] * 4)
    assert grpo(signals).abs().tolist() == pytest.approx([0.866] * 4, abs=1e-3)
    assert egpo(signals).tolist() == pytest.approx([1.039, -0.693, 1.039, -0.693], abs=1e-3)
    assert egpo(signals, form="clip_bonus").tolist() == pytest.approx([1.266, -0.466, 1.266, -0.466], abs=1e-3)


def test_the_two_forms_of_egpo_agree_below_the_cap():
    signals = Signals([1.0, 0.0, 1.0, 0.0], [0] * 4, entropy_B=[0.1, 0.2, 0.3, 0.4])
    torch.testing.assert_close(egpo(signals), egpo(signals, form="clip_bonus"))


def test_egpo_cannot_revive_a_group_that_agrees():
    assert torch.equal(egpo(Signals([1.0] * 4, [0] * 4, entropy_B=[0.1, 1.0, 2.0, 3.0])), torch.zeros(4))


def test_egpo_without_any_thinking_was_grpo_and_nobody_noticed():
    signals = Signals([1.0, 0.0], [0, 0], entropy_B=[NAN, NAN])
    with pytest.warns(EgpoWarning, match="0% of 2 responses"):
        advantage = egpo(signals)
    assert torch.equal(advantage, grpo(signals))
    assert explain("egpo", signals)["egpo/segment/coverage"] == 0.0, "and the second batch does not warn again"


@pytest.mark.parametrize("missing", [NAN, float("inf"), -float("inf")])
def test_an_empty_segment_got_the_highest_weight_and_dragged_the_mean_down(missing):
    whole = Signals([1.0, 0.0, 1.0], [0] * 3, entropy_B=[0.5, 1.0, missing])
    weight = egpo_calibrated(whole) / grpo(whole)
    assert weight.tolist() == pytest.approx([0.75 / 0.5, 0.75 / 1.0, 1.0], abs=1e-5)


def test_a_confident_row_is_not_doubted_for_a_rounding_error():
    signals = Signals([1.0, 0.0], [0, 0], entropy_B=[-2e-6, 1.0])
    assert float((egpo_calibrated(signals) / grpo(signals))[0]) == pytest.approx(2.0)


def test_sides():
    signals = Signals(
        [1.0, 0.0, 1.0, 0.0], [0] * 4, entropy_B=[0.1, 0.1, 1.9, 1.9], correct_B=[True, False, True, False]
    )
    weights = {s: (egpo_calibrated(signals, sides=s) / grpo(signals)).tolist() for s in
               ("both", "asymmetric", "positive_only")}  # fmt: skip
    assert weights["both"] == pytest.approx([2.0, 2.0, 1 / 1.9, 1 / 1.9], abs=1e-4)
    assert weights["asymmetric"] == pytest.approx([2.0, 1.0, 1.0, 1 / 1.9], abs=1e-4)
    assert weights["positive_only"] == pytest.approx([2.0, 1.0, 1 / 1.9, 1.0], abs=1e-4)


def test_nll_is_read_from_its_own_place_and_named_so():
    signals = Signals([1.0, 0.0], [0, 0], entropy_B=[0.5, 0.5], nll_B=[0.2, 0.4])
    assert (egpo_calibrated(signals, measure="nll") / grpo(signals)).tolist() == pytest.approx([1.5, 0.75], abs=1e-4)
    metrics = explain("egpo_calibrated", signals, measure="nll")
    assert metrics["egpo/nll/seq_mean"] == pytest.approx(0.3)
    assert not any("entropy" in name for name in metrics)


@pytest.mark.parametrize(
    "group",
    [
        [7, 7, 3, 3],
        torch.tensor([7, 7, 3, 3]),
        torch.tensor([7, 7, 3, 3], dtype=torch.int32),
        np.array([7, 7, 3, 3]),
        np.array([7, 7, 3, 3], dtype=np.uint8),
        np.array(["b", "b", "a", "a"]),
        np.array(["b", "b", "a", "a"], dtype=object),
        ["b", "b", "a", "a"],
        ("b", "b", "a", "a"),
        np.array([3, 3, 7, 7])[::-1],
        [(1, "x"), (1, "x"), (2, "x"), (2, "x")],
        [torch.tensor(7), torch.tensor(7), torch.tensor(3), torch.tensor(3)],
        [np.int64(7), 7, 3, np.int64(3)],
    ],
    ids=lambda g: f"{type(g).__name__}-{getattr(g, 'dtype', type(g[0]).__name__)}",
)
@SMALL_GROUPS
@pytest.mark.parametrize("name", NAMES)
def test_groups_may_be_given_in_any_form(group, name):
    others = {"entropy_B": [0.5] * 4, "correct_B": [1, 0, 0, 1]}
    expected = called(name, Signals([1.0, 0.0, 0.0, 1.0], [0, 0, 1, 1], **others))
    assert torch.equal(called(name, Signals([1.0, 0.0, 0.0, 1.0], group, **others)), expected)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_stays_empty(name):
    signals, metrics = Signals([], [], entropy_B=[], correct_B=[]), {}
    assert len(called(name, signals, metrics=metrics)) == 0
    assert metrics == {}
