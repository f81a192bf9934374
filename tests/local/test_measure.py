"""Entropy and surprise are those of each segment's own tokens, and the estimator is given the segment that it asks
for."""

import pytest
import torch

from egpo.config.schema import Algorithm
from egpo.local.collect import Batch
from egpo.local.measure import estimate, measure
from egpo.local.rollouts import Rollouts
from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem

TAGS = ("<think>", "</think>")


def recorded(policy, prompts, texts):
    """Two rows a prompt. Token t of row b has entropy 10 b + t and log-probability -(100 b + t)."""
    encode = lambda text: policy.tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    responses = [torch.tensor(encode(text)) for text in texts]
    response_BT = torch.nn.utils.rnn.pad_sequence(responses, batch_first=True, padding_value=policy.pad_id)
    step_T = torch.arange(response_BT.shape[1])
    mask_BT = step_T < torch.tensor([len(response) for response in responses])[:, None]
    row_B1 = torch.arange(len(texts))[:, None]
    return Rollouts(
        problems=tuple(Problem(prompt, (), "") for prompt in prompts),
        prompts=tuple(tuple(encode(prompt)) for prompt in prompts),
        problem_B=torch.arange(len(prompts)).repeat_interleave(2),
        response_BT=response_BT,
        mask_BT=mask_BT,
        logp_BT=-(100.0 * row_B1 + step_T) * mask_BT,
        entropy_BT=(10.0 * row_B1 + step_T) * mask_BT,
        finished_B=torch.ones(len(texts), dtype=torch.bool),
        texts=tuple(texts),
    )


@pytest.fixture
def policy(load):
    return load()


def test_a_segment_is_measured_over_its_own_tokens(policy):
    rollouts = recorded(policy, ["q"], ["<think>ab</think>xy", "<think>c</think>z"])
    measures = measure(policy, rollouts, TAGS)
    # Tokens of row 0: <think> a b </think> x y, so that thinking is 1 to 3 (the tag too), the answer 4 and 5.
    assert measures.entropy["thinking"].tolist() == [2.0, 11.5]
    assert measures.entropy["answer"].tolist() == [4.5, 13.0]
    assert measures.entropy["response"].tolist() == [2.5, 11.5]
    assert measures.nll["thinking"].tolist() == [2.0, 101.5]
    assert measures.nll["answer"].tolist() == [4.5, 103.0]
    assert measures.nll["response"].tolist() == [2.5, 101.5]


@pytest.mark.filterwarnings("ignore:.*neither.*:egpo.errors.EgpoWarning")
def test_a_thought_that_the_prompt_opens_counts_from_the_start(policy):
    """Without a tag in the response, what the prompt ends with decides, for its own rows."""
    measures = measure(policy, recorded(policy, ["q<think>", "a longer prompt without"], ["ab", "cde"] * 2), TAGS)
    assert measures.entropy["thinking"][:2].tolist() == [0.5, 11.0]
    assert measures.entropy["answer"][2:].tolist() == [20.5, 31.0]
    assert measures.entropy["answer"][:2].isnan().all()
    assert measures.entropy["thinking"][2:].isnan().all()


@pytest.mark.parametrize("segment", ["thinking", "answer", "response"])
@pytest.mark.parametrize("estimator", ["egpo", "egpo_calibrated"])
def test_the_estimator_sees_the_segment_of_its_mode(policy, estimator, segment):
    """Its advantages depend on that segment's entropy, and on no other's."""
    rollouts = recorded(policy, ["q"], ["<think>ab</think>xy", "<think>c</think>z"])
    rewards = (1.0, 0.0)
    batch = Batch(
        rollouts=rollouts,
        verdicts=tuple(Verdict(reward, bool(reward), "") for reward in rewards),
        reward_B=torch.tensor(rewards),
        kl_B=torch.zeros(2),
        kept_B=torch.ones(2, dtype=torch.bool),
        constant_B=torch.zeros(2, dtype=torch.bool),
    )
    algorithm = Algorithm(estimator=estimator, **{estimator: {"entropy_mode": segment}})
    measures = measure(policy, rollouts, TAGS)
    for name in measures.entropy:
        measures.entropy[name].copy_(torch.tensor([0.2, 0.1]))
    before = estimate(batch, measures, algorithm).advantage_B
    changed = []
    for name, entropy_B in measures.entropy.items():
        entropy_B.copy_(torch.tensor([0.1, 0.3]))
        if not torch.equal(estimate(batch, measures, algorithm).advantage_B, before):
            changed.append(name)
        entropy_B.copy_(torch.tensor([0.2, 0.1]))
    assert changed == [segment]
