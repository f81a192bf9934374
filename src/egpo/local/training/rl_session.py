"""An RL run in this process: what is loaded when it opens, what happens after each step, the rollouts it writes.

Tensor suffixes: B rows, T tokens.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from torch import Tensor

from egpo.advantages.signals import Metrics
from egpo.benchmark_cases import Cases, cases_of_task, joined_cases, read_cases
from egpo.config import Config
from egpo.config.machine import model_folder
from egpo.local.checkpoints.checkpoint import Snapshot
from egpo.local.checkpoints.resume import random_states, restore, restore_random_states, seed_everything, snapshot
from egpo.local.measure import Measures
from egpo.local.progress_bars import without_progress_bars
from egpo.local.rollouts import Alternatives, EpisodeRow
from egpo.local.run import Run, open_run
from egpo.local.step import StepOutcome, step
from egpo.local.training.interrupts import Interrupts
from egpo.local.training.preflight import check_before_training, data_digests, data_files, require_disk_room
from egpo.local.training.session import EngineOpening, Session, SessionContext, engine_launch
from egpo.local.validate import source_name, validate
from egpo.runs.dump import RolloutRecord, TokenAlternatives, TokenSpan, TurnSpan, token_spans, write_dump
from egpo.runs.ledger import Ledger, OnStep
from egpo.runs.live import LiveView
from egpo.runs.metric_table import REWARD, validation_accuracy
from egpo.runs.opening import LaunchProvenance, OpenedRun
from egpo.segments.tags import TokenTexts


class TrainOpening(EngineOpening[Run]):
    """The operations that start or resume an RL run.

    Task, prompts and disk space are checked before the run's folder is created.
    """

    def __init__(self, config: Config, view: LiveView, interrupts: Interrupts, on_step: OnStep | None = None) -> None:
        super().__init__(config, interrupts, on_step)
        self._config, self._view = config, view
        self._sandbox: str | None = None
        """The kind of sandbox in which programs written by the model run; None if the task runs none."""

    def load(self) -> Run:
        run = open_seeded(self._config)
        self._sandbox = check_before_training(run)
        return run

    def restore_snapshot(self, run: Run, saved: Snapshot, model_folder: Path) -> None:
        restore(run, saved, model_folder)

    def describe(self, run: Run, step: int) -> LaunchProvenance:
        launch = engine_launch(run.policy.device, step, self._sandbox)
        return LaunchProvenance(launch, data_digests(run), data_files(run), self._benchmark_cases(run))

    def _benchmark_cases(self, run: Run) -> Cases:
        return joined_cases(cases_of_task(run.task), read_cases(model_folder(self._config.model.path)))

    def require_disk_room(self, run: Run) -> None:
        require_disk_room(run, self.checkpoints)

    @contextmanager
    def session(self, opened: OpenedRun[Run]) -> Iterator["TrainSession"]:
        rollout = self._config.rollout
        ends_at = opened.loaded.policy.ends_at(rollout.stop, rollout.stop_tokens)
        ledger = Ledger(self.folder, self._view, opened.trackers, self._config.watch.samples, ends_at)
        cases = self._benchmark_cases(opened.loaded)
        context = SessionContext(
            self.folder, self.checkpoints, self._view, ledger, self.interrupts, self.on_step, cases
        )
        yield TrainSession(opened.loaded, context, opened.start, self.saved.score if self.saved else None)


def open_seeded(config: Config) -> Run:
    """Load a run after seeding the global random generators: a task may draw from them."""
    seed_everything(config.seed)
    with without_progress_bars():
        return open_run(config)


class TrainSession(Session):
    """An RL run in progress.

    The score of a checkpoint is its validation accuracy, or, without validation, the mean reward of its step.
    """

    def __init__(self, run: Run, context: SessionContext, done: int = 0, score: float | None = None) -> None:
        super().__init__(run, context, done, score)
        self.run = run

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
            # When the step is taken again, it must draw the same problems, and the task the same random numbers.
            stream.position, stream.num_left_out = position, num_left_out
            restore_random_states(random)
            raise
        self.done += 1
        self.record(outcome.metrics | self._validation(), start)
        if self.run.config.writes_rollouts(self.done):
            self._dump(outcome)
        if self.is_due(self.run.config.checkpoints.every):
            self.save()

    def snapshot(self) -> Snapshot:
        return snapshot(self.run, self.done, self.score)

    def score_of(self, metrics: Mapping[str, float]) -> float | None:
        return validation_accuracy(metrics) if self.run.config.validation.every else metrics.get(REWARD)

    def _validation(self) -> Metrics:
        # A period of 0 means never, not even after the last step: there may be nothing to validate on.
        every = self.run.config.validation.every
        return validate(self.run) if every and self.is_due(every) else {}

    def _dump(self, outcome: StepOutcome) -> None:
        records = rollout_records(self.run, outcome, self.done, self._token_texts)
        write_dump(self.context.folder.rollouts_of(self.done), records)
        self.context.ledger.send_samples(self.done)

    @cached_property
    def _token_texts(self) -> TokenTexts:
        return TokenTexts(self.run.policy.tokenizer)


def rollout_records(run: Run, outcome: StepOutcome, step: int, texts: TokenTexts) -> Iterator[RolloutRecord]:
    """Yield one record for each response of a step, in the order of sampling."""
    rollouts, source = outcome.batch.rollouts, source_name(run)
    prompts = run.policy.tokenizer.batch_decode([list(prompt) for prompt in rollouts.prompts])
    seen: Counter[int] = Counter()
    responses, advantages = rollouts.responses(), outcome.estimate.advantage_B.tolist()
    entropy_BT, finished = rollouts.entropy_BT.cpu(), rollouts.finished_B.tolist()
    for row, place in enumerate(rollouts.problem_B.tolist()):
        problem, verdict, tokens = rollouts.problems[place], outcome.batch.verdicts[row], responses[row]
        episode = None if rollouts.episodes is None else rollouts.episodes[row]
        places = list(range(len(tokens))) if episode is None else sampled_places(episode)
        own = None if episode is None else episode.prompt
        yield RolloutRecord(
            input=prompts[place] if own is None else run.policy.tokenizer.decode(list(own)),
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
            tokens=texts.parts(tokens, rollouts.texts[row]) if episode is None else _parts(texts, tokens, episode),
            token_entropy=entropy_BT[row, places].tolist(),
            token_segment=_spans(outcome.measures, row, places),
            token_alternatives=tuple(_alternatives(rollouts.alternatives, row, tokens, texts)),
            episode=None if episode is None else episode.record.stored(),
            turns=() if episode is None else _turns(outcome.measures, entropy_BT[row], row, episode),
        )
        seen[place] += 1


def _alternatives(
    found: Alternatives | None, row: int, tokens: Sequence[int], texts: TokenTexts
) -> Iterator[TokenAlternatives]:
    for position, likeliest in (found.of_row(row, len(tokens)) if found else {}).items():
        ids = [token for token, _ in likeliest]
        sampled = ids.index(tokens[position]) if tokens[position] in ids else -1
        shown = tuple((texts.text_of(token), probability) for token, probability in likeliest)
        yield TokenAlternatives(position, sampled, shown)


def _spans(measures: Measures, row: int, places: Sequence[int]) -> tuple[TokenSpan, ...]:
    masks = {name: measures.segments.named(name)[row, places].tolist() for name in ("thinking", "answer")}
    return token_spans(next((name for name, mask in masks.items() if mask[i]), None) for i in range(len(places)))


def sampled_places(episode: EpisodeRow) -> list[int]:
    """Return the columns of an episode's row that were sampled: those of its turns."""
    return [place for start, end in episode.turns for place in range(start, end)]


def _parts(texts: TokenTexts, tokens: Sequence[int], episode: EpisodeRow) -> list[str]:
    """Return the texts of the sampled tokens, turn by turn."""
    turns = zip(episode.turns, episode.record.turns, strict=True)
    return [part for (start, end), turn in turns for part in texts.parts(tokens[start:end], turn.text)]


def _turns(measures: Measures, entropy_T: Tensor, row: int, episode: EpisodeRow) -> tuple[TurnSpan, ...]:
    """Return where the turns are among the sampled tokens, and the mean entropy of their segments."""
    found, at = [], 0
    for start, end in episode.turns:
        masks = {name: measures.segments.named(name)[row, start:end].cpu() for name in ("thinking", "answer")}
        means = {name: float(entropy_T[start:end][mask].mean()) for name, mask in masks.items() if bool(mask.any())}
        found.append(TurnSpan(at, at + end - start, means))
        at += end - start
    return tuple(found)
