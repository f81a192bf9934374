"""The rollouts of a step as they are kept on disk: what was asked, written, judged and measured. B rows, T tokens.

A run of reinforcement while it is trained.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property

from egpo.advantages.signals import Metrics
from egpo.local.checkpoints.checkpoint import Snapshot
from egpo.local.checkpoints.resume import random_states, restore_random_states, snapshot
from egpo.local.measure import Measures
from egpo.local.run import Run
from egpo.local.step import StepOutcome, step
from egpo.local.training.session import Session, Surroundings
from egpo.local.validate import source_name, validate
from egpo.runs.dump import RolloutRecord, TokenSpan, token_spans, write_dump
from egpo.runs.metric_table import REWARD, validation_accuracy
from egpo.segments.tags import TokenTexts


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


_CHANGES_NOTHING = {"sample", "judge", "measure", "reference"}
"""Stages before the update: a step that is left in one of them can be taken again."""


class TrainSession(Session):
    """The best checkpoints are those of the best validation; where there is none, of the best mean reward."""

    def __init__(self, run: Run, around: Surroundings, done: int = 0, score: float | None = None) -> None:
        super().__init__(run, around, done, score)
        self.run = run
        run.stages.on_enter = self._enter

    @property
    def num_steps(self) -> int:
        return self.run.config.steps

    def begin(self) -> None:
        if self.run.config.validation.every:
            start = time.perf_counter()
            self.record(validate(self.run), start)

    def take_step(self) -> None:
        start, stream = time.perf_counter(), self.run.stream
        position, num_left_out, random = stream.position, stream.num_left_out, random_states()
        try:
            outcome = step(self.run, self.done)
        except BaseException:
            # The problems that it drew are drawn again when it is taken again, and so is what its task drew.
            stream.position, stream.num_left_out = position, num_left_out
            restore_random_states(random)
            raise
        self.done += 1
        self.record(outcome.metrics | self._validation(), start)
        if self.done == 1 or self.is_due(self.run.config.watch.rollouts_every):
            self._dump(outcome)
        if self.is_due(self.run.config.checkpoints.every):
            self.save()

    def snapshot(self) -> Snapshot:
        return snapshot(self.run, self.done, self.score)

    def score_of(self, metrics: Mapping[str, float]) -> float | None:
        return validation_accuracy(metrics) if self.run.config.validation.every else metrics.get(REWARD)

    def _enter(self, stage: str) -> None:
        self.around.view.stage(stage)
        self.is_whole = self.is_whole and stage != "update"
        before_training = stage == "validate" and self.done == 0
        self.around.interrupts.allow_abandoning(before_training or stage in _CHANGES_NOTHING)

    def _validation(self) -> Metrics:
        """Never, where its period is 0: there may be nothing to validate on."""
        every = self.run.config.validation.every
        return validate(self.run) if every and self.is_due(every) else {}

    def _dump(self, outcome: StepOutcome) -> None:
        records = rollout_records(self.run, outcome, self.done, self._token_texts)
        write_dump(self.around.folder.rollouts_of(self.done), records)

    @cached_property
    def _token_texts(self) -> TokenTexts:
        return TokenTexts(self.run.policy.tokenizer)
