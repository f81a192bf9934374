"""Credit in episodes of several turns, on an environment whose gradient is known.

Turn 1: a reward of 1; the policy goes on with probability p, or stops. Turn 2: a reward of 1 with probability q. The
expected gradient of every estimator is computed exactly, over all groups of three episodes.
"""

from itertools import product

import pytest

from egpo.advantages import Signals, grpo
from egpo.config import load_config
from egpo.errors import ConfigError

P, Q = 0.6, 0.3
SIZE = 3
STOP, FAIL, WIN = (1.0,), (1.0, 0.0), (1.0, 1.0)  # rewards of the turns of an episode
PROBABILITY = {STOP: 1 - P, FAIL: P * (1 - Q), WIN: P * Q}


def scores(episode):
    """Derivatives of the log-probability of each turn's choice, by the logits of p and of q."""
    first = (-P, 0.0) if episode == STOP else (1 - P, 0.0)
    return [first] if episode == STOP else [first, (0.0, 1 - Q if episode == WIN else -Q)]


def expected_gradient(advantages):
    """The mean over all groups of sum over turns of advantage times score; `advantages(group)` has one per turn."""
    total = [0.0, 0.0]
    for group in product(PROBABILITY, repeat=SIZE):
        weight = 1.0
        for episode in group:
            weight *= PROBABILITY[episode]
        for episode, advantage_of_turns in zip(group, advantages(group), strict=True):
            for advantage, score in zip(advantage_of_turns, scores(episode), strict=True):
                for k in range(2):
                    total[k] += weight * advantage * score[k] / SIZE
    return total


def whole_episodes(group):
    """What egpo does: one advantage for the episode, at every turn."""
    advantage_B = grpo(Signals([sum(episode) for episode in group], ["p"] * SIZE), normalize=False).tolist()
    return [[advantage] * len(episode) for advantage, episode in zip(advantage_B, group, strict=True)]


def each_turn_within_the_group(group):
    """The refused form (MT-GRPO): each turn's reward minus the mean of that turn, summed from the turn on."""
    means = [
        sum(episode[t] for episode in group if len(episode) > t) / max(1, sum(len(episode) > t for episode in group))
        for t in range(2)
    ]
    return [
        [sum(episode[t] - means[t] for t in range(start, len(episode))) for start in range(len(episode))]
        for episode in group
    ]


TRUE = [P * (1 - P) * Q, P * Q * (1 - Q)]  # of the expected reward 1 + p q, by the two logits


def test_one_advantage_for_the_whole_episode_is_unbiased():
    own_share = (SIZE - 1) / SIZE  # the baseline contains the episode itself
    assert expected_gradient(whole_episodes) == pytest.approx([own_share * slope for slope in TRUE], rel=1e-6)


def test_rewards_compared_turn_by_turn_lose_the_value_of_going_on():
    """Going on is worth q here. The mean of turn 2 is subtracted only from episodes that have one."""
    by_going_on, by_winning = expected_gradient(each_turn_within_the_group)
    assert by_going_on == pytest.approx(0.0, abs=1e-12)
    assert by_winning > 0


@pytest.mark.parametrize("name", ["mt_grpo", "turn_grpo", "per_turn"])
def test_the_biased_form_is_refused_by_name(name):
    with pytest.raises(ConfigError, match="is biased where the policy decides when an episode ends; use grpo") as error:
        load_config("countdown_tiny", overrides=[f"algorithm.estimator={name}"])
    assert "algorithm.estimator" in str(error.value)
