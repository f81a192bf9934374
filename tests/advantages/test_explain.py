"""The metrics, checked by hand on one small batch."""

import pytest
import torch

from egpo.advantages import Signals, explain, over_tokens

NAN = float("nan")
SIGNALS = Signals(
    reward_B=[1.0, 0.0, 1.0, 1.0, 0.0, 1.0],
    group_B=["a", "a", "b", "b", "c", "c"],
    entropy_B=[0.1, 3.0, 1.0, 2.0, NAN, NAN],
)


def test_grpo_counts_groups_that_teach_nothing():
    assert explain("grpo", SIGNALS) == {"groups/zero_variance_frac": pytest.approx(1 / 3)}


def test_egpo_metrics():
    advantage, cap = 0.7071, 0.35355
    assert explain("egpo", SIGNALS) == pytest.approx(
        {
            "groups/zero_variance_frac": 1 / 3,
            "egpo/segment/coverage": 4 / 6,
            "egpo/entropy/seq_mean": 6.1 / 4,
            "egpo/entropy/group_mean": (1.55 + 1.5) / 2,
            "egpo/bonus/mean": 0.4 * (0.1 + cap) / 6,
            "egpo/bonus/max": 0.4 * cap,
            "egpo/bonus/capped_frac": 1 / 2,
        },
        abs=1e-4,
    )
    assert advantage / 2 == pytest.approx(cap, abs=1e-4)


def test_a_bonus_exactly_at_its_cap_is_not_capped():
    signals = Signals(torch.tensor([1.0, -1.0]), [0, 0], entropy_B=[0.5, 0.6])
    metrics = explain("egpo", signals, normalize=False)
    assert metrics["egpo/bonus/capped_frac"] == 0.5, "cap = |1| / 2: 0.5 is at it, 0.6 over it"


def test_egpo_calibrated_metrics():
    weights = torch.tensor([2.0, 0.5166667, 1.5, 0.75, 1.0, 1.0])
    assert explain("egpo_calibrated", SIGNALS) == pytest.approx(
        {
            "groups/zero_variance_frac": 1 / 3,
            "egpo/segment/coverage": 4 / 6,
            "egpo/entropy/seq_mean": 6.1 / 4,
            "egpo/entropy/group_mean": (1.55 + 1.5) / 2,
            "egpo/weight/mean": float(weights.mean()),
            "egpo/weight/std": float(weights.std(correction=0)),
            "egpo/weight/min": 0.5166667,
            "egpo/weight/max": 2.0,
            "egpo/ratio/max": 15.5,
        },
        abs=1e-3,
    )


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_advantages_reach_every_token_of_the_mask(dtype):
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]]).to(dtype)
    spread = over_tokens(torch.tensor([0.5, -2.0]), mask)
    assert spread.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    assert spread.dtype == torch.float32
