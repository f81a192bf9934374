"""The metrics of a step, with verl's names for those that verl also has. A metric without data is left out.

Tensor suffixes: B rows.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from egpo.advantages.signals import Metrics
from egpo.local.collect import Batch
from egpo.local.measure import Estimate, Measures
from egpo.local.rollouts import Rollouts
from egpo.local.run import Run
from egpo.local.updates.update import UpdateStats
from egpo.rewards.verdict import Verdict, shares_of
from egpo.segments import mean_over

MOST_TURNS = 4
"""The number of turns of an episode whose entropies are metrics of their own."""


def measured(batch: Batch, measures: Measures, estimated: Estimate) -> Metrics:
    """Return the metrics of a step that are known before its update: a controller reads them.

    They cover all sampled rows, but for the advantages, which cover the rows trained on.
    """
    return {
        **_of_verdicts(batch.verdicts),
        **_of_shaping(batch),
        **_spread("critic/rewards", batch.reward_B),
        **_spread("critic/advantages", estimated.advantage_B[batch.kept_B]),
        **_of_lengths(batch.rollouts),
        **entropies(batch.rollouts, measures),
        **_of_episodes(batch.rollouts, measures),
        **estimated.metrics,
        **_of_groups(batch),
    }


def summarise(run: Run, batch: Batch, before: Metrics, stats: UpdateStats) -> Metrics:
    """Return all metrics of a step: those from before its update, and those of the update."""
    return {
        **before,
        **stats.metrics(),
        **_of_kl(run, batch),
        "training/epoch": run.stream.epoch,
        "data/left_out": float(run.stream.num_left_out),
    }


def _of_shaping(batch: Batch) -> Metrics:
    """Return what made the estimator's rewards differ from the verdicts': the overlong penalty and random rewards."""
    metrics = {} if batch.overlong_B is None else _spread("reward/overlong_penalty", batch.overlong_B)
    return metrics if batch.random_B is None else metrics | {"reward/random_frac": 1.0}


def _of_verdicts(verdicts: Sequence[Verdict]) -> Metrics:
    """Return score and accuracy over the responses that could be judged: a failed judge is not a wrong answer."""
    judged = [verdict for verdict in verdicts if not verdict.failed]
    metrics = _spread("critic/score", torch.tensor([verdict.reward for verdict in judged]))
    if judged:
        metrics["critic/acc/mean"] = sum(verdict.correct for verdict in judged) / len(judged)
    metrics["reward/error_frac"] = 1 - len(judged) / len(verdicts)
    return metrics | {f"reward/reason/{name}": share for name, share in reason_shares(verdicts).items()}


def reason_shares(verdicts: Sequence[Verdict]) -> dict[str, float]:
    """Return the fraction of the verdicts that have each reason."""
    return shares_of([verdict.reason for verdict in verdicts])


def _of_lengths(rollouts: Rollouts) -> Metrics:
    length_B = rollouts.length_B.float().cpu()
    prompt_lengths = torch.tensor([len(prompt) for prompt in rollouts.prompts], dtype=torch.float32)
    return {
        **_spread("response_length", length_B),
        "response_length/clip_ratio": 1 - float(rollouts.finished_B.float().mean()),
        "prompt_length/mean": float(prompt_lengths.mean()),
        "perf/total_num_tokens": float(length_B.sum()) + float(prompt_lengths[rollouts.problem_B].sum()),
    }


def entropies(rollouts: Rollouts, measures: Measures) -> Metrics:
    """Return the mean entropy over all tokens (`actor/entropy`), and per segment (`entropy/<segment>`).

    That of a segment is the mean over the responses that have it.
    """
    metrics = {"actor/entropy": float(rollouts.entropy_BT[rollouts.mask_BT].mean())}
    for name, entropy_B in measures.entropy.items():
        if bool((~entropy_B.isnan()).any()):
            metrics[f"entropy/{name}"] = float(entropy_B.nanmean())
    return metrics


def _of_episodes(rollouts: Rollouts, measures: Measures) -> Metrics:
    """Return turns, calls, endings and faults of episodes, and the entropy of the first turns; empty for single
    responses. Failed episodes count too."""
    if not rollouts.episodes:
        return {}
    records = [episode.record for episode in rollouts.episodes]
    turns, calls = ([len(one.turns) for one in records], [sum(len(t.calls) for t in one.turns) for one in records])
    faults: Counter[str] = Counter()
    for record in records:
        faults.update(record.reasons)
    return {
        "episode/num_turns/mean": sum(turns) / len(records),
        "episode/num_turns/max": float(max(turns)),
        "episode/num_calls/mean": sum(calls) / len(records),
        **{f"episode/ending/{name}": share for name, share in shares_of([one.ending for one in records]).items()},
        **{f"episode/fault/{reason}": count / len(records) for reason, count in sorted(faults.items())},
        **_by_turn(rollouts, measures),
    }


def _by_turn(rollouts: Rollouts, measures: Measures) -> Metrics:
    """Return the mean entropy of thinking and answer in each of the first turns, over the episodes that have them."""
    metrics: Metrics = {}
    for turn in range(MOST_TURNS):
        name = f"turn_{turn + 1}"
        mask_BT = torch.zeros_like(rollouts.mask_BT)
        for row, episode in enumerate(rollouts.episodes or ()):
            for start, end in episode.turns[turn : turn + 1]:
                mask_BT[row, start:end] = True
        for segment in ("thinking", "answer"):
            entropy_B = mean_over(rollouts.entropy_BT, mask_BT & measures.segments.named(segment))
            if bool((~entropy_B.isnan()).any()):
                metrics[f"episode/{name}/entropy/{segment}"] = float(entropy_B.nanmean())
    return metrics


def _of_kl(run: Run, batch: Batch) -> Metrics:
    """Return the KL divergence per token if it is part of the reward.

    If it is part of the loss, the update reports it.
    """
    if run.reward_reference is None:
        return {}
    return {"actor/kl": float(batch.kl_B.sum()) / int(batch.rollouts.mask_BT.sum())}


def _of_groups(batch: Batch) -> Metrics:
    """Return the fractions of groups with equal rewards, with all responses right, and with none right.

    Groups whose rows could not be compared are left out. Also return how many groups were dropped, and in how many
    rounds groups were replaced.
    """
    problem_B, correct_B = batch.rollouts.problem_B, torch.tensor([verdict.correct for verdict in batch.verdicts])
    known = sorted(set(problem_B[batch.known_B].tolist()))
    constant = set(problem_B[batch.constant_B].tolist())
    right = [bool(correct_B[problem_B == problem].all()) for problem in known]
    wrong = [not bool(correct_B[problem_B == problem].any()) for problem in known]
    count = max(1, len(known))
    return {
        "groups/zero_variance_frac": len(constant) / count,
        "groups/all_right_frac": sum(right) / count,
        "groups/none_right_frac": sum(wrong) / count,
        "groups/dropped": float(len(known) - batch.num_kept_problems),
        "groups/refills": float(batch.num_refills),
    }


def _spread(name: str, values: Tensor) -> Metrics:
    if not values.numel():
        return {}
    values = values.float()
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }
