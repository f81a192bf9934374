"""A batch recorded in verl, through the embedded engine's own stages. B responses, T tokens."""

from itertools import groupby

import numpy as np
import torch

from egpo.advantages import ESTIMATORS
from egpo.assets import resolve_model
from egpo.config.schema import Algorithm, Model
from egpo.local.collect import Batch, _known
from egpo.local.measure import Estimate, estimate, measure
from egpo.local.models.loading import load_policy
from egpo.local.models.policy import Policy
from egpo.local.rollouts import EpisodeRow, Rollouts
from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem
from egpo.verl.dumps import Recorded


def replay(recorded: Recorded) -> Estimate:
    """What `egpo train` on the embedded engine makes of it."""
    return estimate_of(recorded, load_policy(Model(path=resolve_model("egpo-tiny")), seed=0))


def estimate_of(recorded: Recorded, policy: Policy) -> Estimate:
    rollouts, verdicts = rollouts_of(recorded, policy.tokenizer), verdicts_of(recorded)
    known_B = _known(rollouts, verdicts)
    reward_B = torch.from_numpy(recorded.reward_B)
    batch = Batch(rollouts, verdicts, reward_B, torch.zeros(len(rollouts)), known_B, torch.zeros_like(known_B))
    return estimate(batch, measure(policy, rollouts, tuple(recorded.about["tags"])), algorithm_of(recorded))


def algorithm_of(recorded: Recorded) -> Algorithm:
    name, arguments = recorded.about["estimator"], dict(recorded.about["arguments"])
    sections = {"normalize": arguments.pop("normalize"), "estimator": name}
    row = ESTIMATORS[name]
    if row.settings and row.settings.model_fields:
        segment = {"entropy_mode": recorded.about["segment"]} if row.segment else {}
        sections[name] = {**arguments, **segment}
    return Algorithm.model_validate(sections)


def rollouts_of(recorded: Recorded, tokenizer) -> Rollouts:
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
        episodes=episodes_of(recorded, tokenizer),
    )


def episodes_of(recorded: Recorded, tokenizer) -> tuple[EpisodeRow, ...] | None:
    """The turns of each row, if a row has tokens of others between its own: what stands before each may open it."""
    turns_B = [turns_of(mask_T.tolist()) for mask_T in recorded.mask_BT]
    if all(turns in ([], [(0, end)]) for turns in turns_B for _, end in turns[:1] or [(0, 0)]):
        return None
    opening, found = recorded.about["tags"][0], []
    for row, turns in enumerate(turns_B):
        prompt = recorded.prompt_BS[row][recorded.prompt_mask_BS[row]]
        before = [tokenizer.decode([*prompt, *recorded.response_BT[row, :start]]) for start, _ in turns]
        opened = tuple(text.rstrip().endswith(opening) for text in before)
        found.append(EpisodeRow(record=None, turns=tuple(turns), opened=opened))
    return tuple(found)


def turns_of(mask: list[bool]) -> list[tuple[int, int]]:
    runs = [(own, [at for at, _ in run]) for own, run in groupby(enumerate(mask), key=lambda one: one[1])]
    return [(places[0], places[-1] + 1) for own, places in runs if own]


def verdicts_of(recorded: Recorded) -> tuple[Verdict, ...]:
    rows = zip(recorded.reward_B.tolist(), recorded.correct_B.tolist(), recorded.failed_B.tolist(), strict=True)
    return tuple(Verdict(reward, correct, "recorded", failed) for reward, correct, failed in rows)
