"""A batch recorded in verl, through the embedded engine's own stages. B responses, T tokens."""

import numpy as np
import torch

from egpo.assets import resolve_model
from egpo.config.schema import Algorithm, Model
from egpo.local.collect import Batch, _known
from egpo.local.measure import Estimate, estimate, measure
from egpo.local.models.loading import load_policy
from egpo.local.rollouts import Rollouts
from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem
from egpo.verl.dumps import Recorded


def replay(recorded: Recorded) -> Estimate:
    """What `egpo train` on the embedded engine makes of it."""
    policy = load_policy(Model(path=resolve_model("egpo-tiny")), seed=0)
    rollouts, verdicts = rollouts_of(recorded), verdicts_of(recorded)
    known_B = _known(rollouts, verdicts)
    reward_B = torch.from_numpy(recorded.reward_B)
    batch = Batch(rollouts, verdicts, reward_B, torch.zeros(len(rollouts)), known_B, torch.zeros_like(known_B))
    return estimate(batch, measure(policy, rollouts, tuple(recorded.about["tags"])), algorithm_of(recorded))


def algorithm_of(recorded: Recorded) -> Algorithm:
    name, arguments = recorded.about["estimator"], dict(recorded.about["arguments"])
    sections = {"normalize": arguments.pop("normalize"), "estimator": name}
    if name != "grpo":
        sections[name] = {**arguments, "entropy_mode": recorded.about["segment"]}
    return Algorithm.model_validate(sections)


def rollouts_of(recorded: Recorded) -> Rollouts:
    groups, first_P, problem_B = np.unique(recorded.groups, return_index=True, return_inverse=True)
    prompts = [tuple(recorded.prompt_BS[row][recorded.prompt_mask_BS[row]].tolist()) for row in first_P]
    return Rollouts(
        problems=tuple(Problem(str(group), (), "") for group in groups),
        prompts=tuple(prompts),
        problem_B=torch.from_numpy(problem_B),
        response_BT=torch.from_numpy(recorded.response_BT),
        mask_BT=torch.from_numpy(recorded.mask_BT),
        logp_BT=torch.from_numpy(recorded.logp_BT),
        entropy_BT=torch.from_numpy(recorded.entropy_BT),
        finished_B=torch.ones(len(problem_B), dtype=torch.bool),
        texts=("",) * len(problem_B),
    )


def verdicts_of(recorded: Recorded) -> tuple[Verdict, ...]:
    rows = zip(recorded.reward_B.tolist(), recorded.correct_B.tolist(), recorded.failed_B.tolist(), strict=True)
    return tuple(Verdict(reward, correct, "recorded", failed) for reward, correct, failed in rows)
