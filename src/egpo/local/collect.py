"""Sample responses and judge them, in one round, or in several if groups with equal rewards are replaced.

A group whose rewards are all equal has no gradient under most estimators. The exceptions: `gtpo` and `grpo_s`, which
compare right responses with right ones; and `egpo_calibrated` with `recover`, which the config refuses to combine with
leaving such groups out. Tensor suffixes: P problems, B rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from egpo.advantages import Signals, grpo
from egpo.advantages.signals import Groups
from egpo.environments.records import episode_verdicts
from egpo.local.draws import Draws
from egpo.local.rollouts import Rollouts, joined
from egpo.local.run import Run
from egpo.local.sampling.sample import sample
from egpo.local.updates.losses import kl_per_response, less_kl
from egpo.local.updates.reference import packed_logp, reference_logp
from egpo.rewards.verdict import Verdict
from egpo.tasks import Task
from egpo.tasks.protocol import judge_texts


@dataclass(frozen=True, eq=False)
class Batch:
    """All responses sampled in a step, with their rewards. Only the rows marked in `kept_B` are trained on.

    `reward_B`: the input of the estimator, which is the verdict's reward, minus the KL penalty if that is part of the
    reward. `kl_B`: the KL divergence of each response from the reference if it was subtracted, else 0.
    `constant_B`: marks rows of groups whose rewards are all equal. A row on which the judge failed is neither kept nor
    constant.
    """

    rollouts: Rollouts
    verdicts: tuple[Verdict, ...]
    reward_B: Tensor
    kl_B: Tensor
    kept_B: Tensor
    constant_B: Tensor
    num_refills: int = 0

    @property
    def num_kept_problems(self) -> int:
        return len(set(self.rollouts.problem_B[self.kept_B].tolist()))


def collect(run: Run, step: int) -> Batch:
    """Sample P problems with G responses each, and judge them.

    With `constant_groups: replace`, further problems replace the groups whose rewards are all equal, in at most
    `max_refills` rounds. If groups are still missing after that, the step has fewer groups.
    """
    settings, wanted = run.config.algorithm, run.config.rollout.prompts
    rounds = [_round(run, step, 0, wanted)]
    while settings.constant_groups == "replace" and len(rounds) <= settings.max_refills:
        missing = wanted - sum(part.num_kept_problems for part in rounds)
        if not missing:
            break
        rounds.append(_round(run, step, len(rounds), missing))
    return _joined(rounds, run.policy.pad_id)


def judge(task: Task, rollouts: Rollouts, timeout_s: float | None = None) -> tuple[Verdict, ...]:
    """Judge every response with the task's judge. Return one verdict per row, in order.

    If the judge raises an exception or takes longer than `timeout_s`, the row is marked as failed and is not trained
    on. A judge that fails on every row ends the run. Episodes were judged by their environments.
    """
    if rollouts.episodes is not None:
        return episode_verdicts([episode.record for episode in rollouts.episodes])
    problems = [rollouts.problems[index] for index in rollouts.problem_B.tolist()]
    return judge_texts(task, problems, rollouts.texts, timeout_s=timeout_s)


def is_constant(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """Return a mask of the rows in groups whose advantages under GRPO are all 0.

    Rewards count as equal within the same rounding tolerance as in GRPO. A group of one row is constant if its reward
    is 0.
    """
    groups = Groups.of(group_B.to(reward_B.device))
    advantage_B = grpo(Signals(reward_B, group_B), normalize=False)
    return groups.rows(groups.max(advantage_B.abs()) == 0)


def _round(run: Run, step: int, number: int, num_problems: int) -> Batch:
    draws = Draws(run.config.seed, step, f"train {number}")
    with run.stages.enter("sample"):
        alternatives = run.config.rollout.alternatives if run.config.writes_rollouts(step + 1) else 0
        problems = run.stream.take(num_problems)
        rollouts = sample(
            run.policy,
            run.task,
            problems,
            run.config.rollout,
            draws,
            alternatives=alternatives,
            tags=run.config.segments.tags,
        )
    with run.stages.enter("judge"):
        verdicts = judge(run.task, rollouts, run.config.task.judge_timeout_s)
    kl_B = _kl(run, rollouts)
    reward_B = less_kl(torch.tensor([verdict.reward for verdict in verdicts]), kl_B, run.config.update.kl)
    known_B = _known(rollouts, verdicts)
    constant_B = torch.zeros_like(known_B)
    constant_B[known_B] = is_constant(reward_B[known_B], rollouts.problem_B[known_B])
    drops = run.config.algorithm.constant_groups != "keep"
    return Batch(rollouts, verdicts, reward_B, kl_B, known_B & ~constant_B if drops else known_B, constant_B)


def _kl(run: Run, rollouts: Rollouts) -> Tensor:
    """Return the KL divergence of each response from the reference, or zeros if it is not part of the reward.

    The log-probabilities of policy and reference come from the same kind of forward pass. Those recorded while
    sampling have other rounding errors, which GRPO would scale up to advantages in groups of equal rewards.
    """
    if run.reward_reference is None:
        return torch.zeros(len(rollouts))
    temperature, budget = run.config.rollout.temperature, run.budget
    with run.stages.enter("reference"):
        reference_BT = reference_logp(run.reward_reference, rollouts, temperature, budget)
        logp_BT = packed_logp(run.policy, rollouts, temperature, budget)
        return kl_per_response(logp_BT, reference_BT, rollouts.mask_BT, run.config.update.kl_estimator).cpu()


def _known(rollouts: Rollouts, verdicts: tuple[Verdict, ...]) -> Tensor:
    """Return a mask of the rows that can be compared with their group.

    These are the judged rows of groups that have at least two judged rows, or that consist of one row.
    """
    judged_B = torch.tensor([not verdict.failed for verdict in verdicts])
    size_P, num_judged_P = (
        torch.bincount(problem_B, minlength=len(rollouts.problems))
        for problem_B in (rollouts.problem_B, rollouts.problem_B[judged_B])
    )
    comparable_P = (num_judged_P > 1) | (size_P == 1)
    return judged_B & comparable_P[rollouts.problem_B]


def _joined(rounds: list[Batch], pad_id: int) -> Batch:
    if len(rounds) == 1:
        return rounds[0]
    return Batch(
        rollouts=joined([part.rollouts for part in rounds], pad_id),
        verdicts=tuple(verdict for part in rounds for verdict in part.verdicts),
        reward_B=torch.cat([part.reward_B for part in rounds]),
        kl_B=torch.cat([part.kl_B for part in rounds]),
        kept_B=torch.cat([part.kept_B for part in rounds]),
        constant_B=torch.cat([part.constant_B for part in rounds]),
        num_refills=len(rounds) - 1,
    )
