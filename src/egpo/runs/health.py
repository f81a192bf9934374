"""What can go wrong in a run and shows in its metrics: one small function a rule.

Each gives the message, with its numbers, or None. The thresholds are for the metrics of `docs/runs.md`; a metric that
a run does not have (no KL, no segment under grpo) makes its rules silent.

Rules that watch a run and speak once each; what they said stands in `health.jsonl`.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from egpo.errors import InputError
from egpo.runs.json_lines import Line, LineStream, read_lines
from egpo.runs.metrics import History, trend

Severity = Literal["warning", "danger"]

ENTROPY, GRAD_NORM, KL = "actor/entropy", "actor/grad_norm", "actor/kl"
SCORE, AGREEING = "critic/score/mean", "groups/zero_variance_frac"
TRUNCATED, COVERAGE, ERRORS = "response_length/clip_ratio", "egpo/segment/coverage", "reward/error_frac"


@dataclass(frozen=True)
class Rule:
    """`check` gives the message when the rule has something to say; `advice` names the settings to try."""

    name: str
    severity: Severity
    check: Callable[[History], str | None]
    advice: str


def entropy_collapsed(history: History) -> str | None:
    entropy = history.present(ENTROPY)
    if entropy is None or entropy >= 0.01:
        return None
    return f"entropy is {entropy:.2g} nats: the policy hardly varies any more, so a group has nothing to compare"


def entropy_falling(history: History) -> str | None:
    """The last three steps against the five before the last twenty (at the start of a run: its first five)."""
    values = history.last(ENTROPY, 25)
    if len(values) < 8:
        return None
    before, now = fmean(values[:5]), fmean(values[-3:])
    if now >= before / 3:
        return None
    return f"entropy fell from {before:.3g} to {now:.3g} nats within {len(values) - 5} steps"


def grad_norm_exploded(history: History) -> str | None:
    """Five times the run's own median of up to 20 steps before, and above 10. The first gradients of a supervised run
    are often above 10 and fall at once: before there are five steps to compare with, only above 1,000."""
    norm = history.now.get(GRAD_NORM)
    if norm is None:
        return None
    if not math.isfinite(norm):
        return "the gradient is not finite"
    before = history.last(GRAD_NORM, 21)[:-1]
    if len(before) < 5:
        return f"the gradient's norm is {norm:.3g} in the run's first steps" if norm > 1000 else None
    usual = median(before)
    if norm <= max(10, 5 * usual):
        return None
    return f"the gradient's norm is {norm:.3g}; its median over the {len(before)} steps before is {usual:.3g}"


def grad_norm_unusual(history: History) -> str | None:
    """0.05 to 0.2 is usual for models of billions, and small ones run some times higher: hence the wide range. Above
    3 the clip at update.max_grad_norm decides every step's length; below 0.001 hardly a token has an advantage.
    Silent without a reward: a supervised loss has longer gradients."""
    norm = history.mean_of_last(GRAD_NORM, 5)
    if norm is None or 1e-3 <= norm <= 3 or history.present(SCORE) is None:
        return None
    usual = "0.05 to 0.2 is usual for LLMs of billions; small models run higher"
    return f"the gradient's norm was {norm:.2g} on average over 5 steps ({usual})"


def kl_high(history: History) -> str | None:
    kl = history.present(KL)
    return None if kl is None or kl <= 0.5 else f"KL from the starting policy is {kl:.3g} nats a token"


def kl_rising(history: History) -> str | None:
    """Five steps against the five that lie twenty before. It starts at 0, where tenfold means nothing: under 0.01 the
    base counts as 0.01."""
    values = history.last(KL, 25)
    if len(values) < 10:
        return None
    before, now = fmean(values[:5]), fmean(values[-5:])
    if now <= 10 * max(before, 0.01):
        return None
    return f"KL from the starting policy rose from {before:.2g} to {now:.2g} within {len(values) - 5} steps"


def groups_agree(history: History) -> str | None:
    share = history.mean_of_last(AGREEING, 5)
    if share is None or share <= 0.8:
        return None
    return f"in {share:.0%} of the groups of the last 5 steps all rewards are equal: they teach nothing"


def responses_truncated(history: History) -> str | None:
    share = history.mean_of_last(TRUNCATED, 3)
    if share is None or share <= 0.3:
        return None
    return f"{share:.0%} of the responses of the last 3 steps were cut off before they ended"


def segment_missing(history: History) -> str | None:
    coverage = history.present(COVERAGE)
    if coverage is None or coverage >= 0.1:
        return None
    return f"{coverage:.0%} of the responses have the segment that EGPO measures: on the others it is GRPO"


def reward_failing(history: History) -> str | None:
    share = history.present(ERRORS)
    return None if share is None or share <= 0.05 else f"the reward could not judge {share:.0%} of the responses"


def reward_flat(history: History) -> str | None:
    """Over 50 steps the change's 95 % interval holds 0, the means of each ten lie within 0.05 of each other, and on
    average half of the groups agree: there is little left to learn from."""
    scores, agreeing = history.last(SCORE, 50), history.mean_of_last(AGREEING, 50)
    if len(scores) < 50 or agreeing is None or agreeing < 0.5:
        return None
    line = trend(scores)
    tens = [fmean(scores[start : start + 10]) for start in range(0, 50, 10)]
    if not line.low <= 0 <= line.high or max(tens) - min(tens) > 0.05:
        return None
    interval = f"change {line.change:+.3f}, 95 % interval {line.low:+.3f} to {line.high:+.3f}"
    return f"the reward stands at {fmean(scores):.3g} for 50 steps ({interval}), and {agreeing:.0%} of the groups agree"


def loss_not_finite(history: History) -> str | None:
    for name, value in history.now.items():
        if "loss" in name.rsplit("/", 1)[-1] and not math.isfinite(value):
            return f"{name} is {value}"
    return None


RULES = (
    Rule("loss_not_finite", "danger", loss_not_finite,
         "go back to the checkpoint before; lower `update.lr`, or compute in `model.dtype=float32`"),
    Rule("grad_norm_exploded", "danger", grad_norm_exploded,
         "lower `update.lr`, add `update.warmup_steps`, or clip harder with `update.max_grad_norm`"),
    Rule("grad_norm_unusual", "warning", grad_norm_unusual,
         "too high: lower `update.lr` or enlarge the batch with `rollout.prompts`; too low: see whether groups agree "
         "(`algorithm.constant_groups=replace`, larger `rollout.n`)"),
    Rule("entropy_collapsed", "danger", entropy_collapsed,
         "go back to a checkpoint before the fall; lower `update.lr`, raise `rollout.temperature`, or hold the policy "
         "with `update.kl=0.001`"),
    Rule("entropy_falling", "warning", entropy_falling,
         "lower `update.lr`, raise `rollout.temperature` or `update.clip_high` (0.28), or try "
         "`algorithm.estimator=egpo`"),
    Rule("kl_high", "danger", kl_high, "lower `update.lr`, or raise `update.kl`"),
    Rule("kl_rising", "warning", kl_rising, "lower `update.lr` or `update.epochs`, or raise `update.kl`"),
    Rule("groups_agree", "warning", groups_agree,
         "`algorithm.constant_groups=drop` or `replace`; larger `rollout.n`, higher `rollout.temperature`, or problems "
         "that suit the model (`task.settings`)"),
    Rule("responses_truncated", "warning", responses_truncated,
         "raise `rollout.max_response_tokens`, or give `rollout.stop` the string that ends an answer"),
    Rule("segment_missing", "warning", segment_missing,
         "see `rollouts/` for what the model writes; set `segments.tags` or `model.template` to its own tags, or "
         "measure everything with `algorithm.egpo.entropy_mode=response`"),
    Rule("reward_failing", "danger", reward_failing,
         "see the reasons under `reward/reason/`; `egpo doctor` and `egpo audit sandbox` say what is missing"),
    Rule("reward_flat", "warning", reward_flat,
         "near its maximum: the task is learnt, stop; else raise `update.lr`, `rollout.n` or `rollout.temperature`, or "
         "change the problems (`task.settings`)"),
)  # fmt: skip


@dataclass(frozen=True)
class Note:
    """What a rule said, when, and what to try."""

    step: int
    rule: str
    severity: Severity
    message: str
    advice: str

    def __str__(self) -> str:
        return f"{self.severity} at step {self.step} ({self.rule}): {self.message}; {self.advice}"


class Health:
    """Judges each step by all steps so far. A rule speaks once a run.

    `history` are the lines of `metrics.jsonl` and `notes` those of `health.jsonl`, of a run that is resumed: it then
    says what it would have said without the interruption.
    """

    def __init__(
        self, rules: Sequence[Rule] = RULES, history: Iterable[Mapping[str, Any]] = (), notes: Iterable[Note] = ()
    ) -> None:
        self._silent = list(rules)
        self._history = History()
        for line in history:
            self._history.add(line["step"], {name: value for name, value in line.items() if name != "step"})
        self._hush({note.rule for note in notes})

    def observe(self, step: int, metrics: Mapping[str, float]) -> list[Note]:
        """The new notes, in the order of the rules. Steps must come in order: ValueError."""
        self._history.add(step, metrics)
        found = [(rule, rule.check(self._history)) for rule in self._silent]
        notes = [Note(step, rule.name, rule.severity, message, rule.advice) for rule, message in found if message]
        self._hush({note.rule for note in notes})
        return notes

    def _hush(self, names: set[str]) -> None:
        self._silent = [rule for rule in self._silent if rule.name not in names]


class NoteStream:
    """`health.jsonl`: one note a line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LineStream(path)

    def append(self, note: Note) -> None:
        self._lines.append(asdict(note))

    def sync(self) -> None:
        self._lines.sync()

    def forget_after(self, step: int) -> None:
        """Keep the notes of steps up to `step`, and not what was cut off in the middle."""
        self._lines.cut(self.size_after(step))

    def size_after(self, step: int) -> int:
        """The bytes that hold the notes of steps up to `step`."""
        lines = list(read_lines(self.path)) if self.path.exists() else []
        kept = [line.end for line in lines if _as_note(line, self.path).step <= step]
        return kept[-1] if kept else 0


def read_notes(path: Path) -> list[Note]:
    """None where nothing was ever said: the file is then not there."""
    return [_as_note(line, path) for line in read_lines(path)] if path.exists() else []


def _as_note(line: Line, path: Path) -> Note:
    where = f"{path}, line {line.number}"
    try:
        note = Note(**line.value)
    except TypeError as error:
        raise InputError(f"no health note ({error})", where=where, fix="the file is damaged") from error
    if not isinstance(note.step, int):
        raise InputError(f"no health note (its step is {note.step!r:.40})", where=where, fix="the file is damaged")
    return note
