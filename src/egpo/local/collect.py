"""Sample responses and judge them, in one round, or in several if unwanted groups are replaced.

By default those are groups whose rewards are all equal, which have no gradient under most estimators. The exceptions:
`gtpo` and `grpo_s`, which compare right responses with right ones; and `egpo_calibrated` with `recover`, which the
config refuses to combine with leaving such groups out. Tensor suffixes: P problems, B rows.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from egpo.environments.records import episode_verdicts
from egpo.filters import filter_named, is_constant
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

    `reward_B`: the input of the estimator, which is the verdict's reward (or one drawn at random), minus the overlong
    penalty and the KL penalty if they are part of the reward. `kl_B`: the KL divergence of each response from the
    reference if it was subtracted, else 0. `constant_B`: marks rows of groups whose rewards are all equal. A row on
    which the judge failed is neither kept nor constant. `unwanted_B`: marks rows of groups that the recipe's filter
    finds; None: the constant ones. `overlong_B`: the overlong penalty that was subtracted; None: there is none.
    `random_B`: the rewards that were drawn in place of the verdicts'; None: they were not.
    """

    rollouts: Rollouts
    verdicts: tuple[Verdict, ...]
    reward_B: Tensor
    kl_B: Tensor
    kept_B: Tensor
    constant_B: Tensor
    num_refills: int = 0
    unwanted_B: Tensor | None = None
    overlong_B: Tensor | None = None
    random_B: Tensor | None = None

    @property
    def known_B(self) -> Tensor:
        """The rows that can be compared with their group."""
        return self.kept_B | (self.constant_B if self.unwanted_B is None else self.unwanted_B | self.constant_B)

    @property
    def correct_B(self) -> Tensor:
        """Which rows the estimator takes for correct: by their verdicts, or by the rewards that were drawn.

        A control run in which the estimator saw the real verdicts beside the drawn rewards would be no control.
        """
        if self.random_B is not None:
            return self.random_B > 0
        return torch.tensor([verdict.correct for verdict in self.verdicts], dtype=torch.bool)

    @property
    def num_kept_problems(self) -> int:
        return len(set(self.rollouts.problem_B[self.kept_B].tolist()))


def collect(run: Run, step: int) -> Batch:
    """Sample P problems with G responses each, and judge them.

    With `constant_groups: replace`, further problems replace the groups that the filter finds, in at most
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


def overlong_penalty(length_B: Tensor, longest: int, tokens: int, penalty: float) -> Tensor:
    """Return DAPO's soft penalty (Yu et al. 2025, arXiv:2503.14476) of each response: 0 up to `longest - tokens`
    tokens, then rising in a straight line to `penalty` at `longest` tokens."""
    return penalty * ((length_B.float() - (longest - tokens)) / tokens).clamp(0.0, 1.0)


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
    algorithm, kl_B = run.config.algorithm, _kl(run, rollouts)
    random_B = None if algorithm.random_rewards is None else _random_rewards(run, rollouts, step, number)
    reward_B = torch.tensor([verdict.reward for verdict in verdicts]) if random_B is None else random_B
    overlong_B = _overlong(run, rollouts)
    reward_B = less_kl(reward_B if overlong_B is None else reward_B - overlong_B, kl_B, run.config.update.kl)
    known_B = _known(rollouts, verdicts)
    blank_B = torch.zeros_like(known_B)
    batch = Batch(rollouts, verdicts, reward_B, kl_B, known_B, blank_B, overlong_B=overlong_B, random_B=random_B)
    return _filtered(batch, algorithm.filter, drops=algorithm.constant_groups != "keep")


def _filtered(batch: Batch, name: str, drops: bool) -> Batch:
    """Return the batch with its constant groups and those that the filter finds. Its kept rows are all that can be
    compared; if `drops`, without those that the filter finds."""
    known_B, group_B = batch.kept_B, batch.rollouts.problem_B[batch.kept_B]
    constant_B, unwanted_B = torch.zeros_like(known_B), torch.zeros_like(known_B)
    if bool(known_B.any()):
        reward_B = batch.reward_B[known_B]
        constant_B[known_B] = is_constant(reward_B, group_B)
        unwanted_B[known_B] = filter_named(name)(reward_B, group_B, batch.correct_B[known_B])
    kept_B = known_B & ~unwanted_B if drops else known_B
    return replace(batch, kept_B=kept_B, constant_B=constant_B, unwanted_B=unwanted_B)


def _random_rewards(run: Run, rollouts: Rollouts, step: int, number: int) -> Tensor:
    """Return a reward of 1 or 0 for each row, drawn by problem and sample: the same whatever was written."""
    keys = [rollouts.problems[index].key for index in rollouts.problem_B.tolist()]
    uniform_B = Draws(run.config.seed, step, f"random rewards {number}").uniforms(keys, 1, 1)[:, 0]
    return (uniform_B < (run.config.algorithm.random_rewards or 0.0)).float()


def _overlong(run: Run, rollouts: Rollouts) -> Tensor | None:
    """Return the overlong penalty of each row; None if the recipe has none. The tokens of an episode's environment
    count, as they do for `rollout.max_response_tokens`."""
    settings = run.config.algorithm.overlong
    if settings is None:
        return None
    longest = run.config.rollout.max_response_tokens
    return overlong_penalty(rollouts.end_B.cpu(), longest, settings.range_below(longest), settings.penalty)


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
        unwanted_B=_cat([part.unwanted_B for part in rounds]),
        overlong_B=_cat([part.overlong_B for part in rounds]),
        random_B=_cat([part.random_B for part in rounds]),
    )


def _cat(parts: list[Tensor | None]) -> Tensor | None:
    """Return the parts as one, if all rounds have them."""
    known = [part for part in parts if part is not None]
    return torch.cat(known) if len(known) == len(parts) else None
