"""The rollouts of a step as they are kept on disk: what was asked, written, judged and measured. B rows, T tokens."""

from collections import Counter
from collections.abc import Iterator

from egpo.local.measure import Measures
from egpo.local.run import Run
from egpo.local.step import StepOutcome
from egpo.local.validate import source_name
from egpo.runs.dump import RolloutRecord, TokenSpan, token_spans
from egpo.segments.token_texts import TokenTexts


def rollout_records(run: Run, outcome: StepOutcome, step: int, texts: TokenTexts) -> Iterator[RolloutRecord]:
    """One for each response, in the order of sampling."""
    rollouts, source = outcome.batch.rollouts, source_name(run)
    prompts = run.policy.tokenizer.batch_decode([list(prompt) for prompt in rollouts.prompts])
    seen: Counter[int] = Counter()
    responses, advantages = rollouts.responses(), outcome.estimate.advantage_B.tolist()
    entropy_BT, finished = rollouts.entropy_BT.cpu(), rollouts.finished_B.tolist()
    for row, place in enumerate(rollouts.problem_B.tolist()):
        problem, verdict, tokens = rollouts.problems[place], outcome.batch.verdicts[row], responses[row]
        yield RolloutRecord(
            input=prompts[place],
            output=rollouts.texts[row],
            gts=problem.ground_truth,
            score=verdict.reward,
            step=step,
            acc=verdict.correct,
            reason=verdict.reason,
            problem=problem.key,
            sample=seen[place],
            advantage=advantages[row],
            failed=verdict.failed,
            finished=finished[row],
            data_source=source,
            ability=problem.ability,
            extra_info=dict(problem.extra),
            segments={name: float(entropy_B[row]) for name, entropy_B in outcome.measures.entropy.items()},
            tokens=texts.parts(tokens, rollouts.texts[row]),
            token_entropy=entropy_BT[row, : len(tokens)].tolist(),
            token_segment=_spans(outcome.measures, row, len(tokens)),
        )
        seen[place] += 1


def _spans(measures: Measures, row: int, length: int) -> tuple[TokenSpan, ...]:
    masks = {name: measures.segments.named(name)[row, :length].tolist() for name in ("thinking", "answer")}
    return token_spans(next((name for name, mask in masks.items() if mask[i]), None) for i in range(length))
