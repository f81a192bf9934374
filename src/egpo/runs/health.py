"""Health rules: known failures of a run that show in its metrics, and the file `health.jsonl` of their notes.

Each rule is a small function of the metrics so far that returns a message with its numbers, or None. A rule whose
metric the run does not have (no KL, no segment under grpo) never fires. A rule fires once per run.

To add a rule: write its function, and add one row to `RULES`. docs/metrics.md lists the rows (`make docs`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from egpo.errors import InputError
from egpo.runs.json_lines import Line, LineStream, read_lines
from egpo.runs.metric_table import CHECKER_FAILED, COVERAGE, ENTROPY, GRAD_NORM, KL, NO_SIGNAL, REWARD, TRUNCATED
from egpo.runs.metrics import History, trend

Severity = Literal["warning", "danger"]
"""A danger spoils the run if it continues; a warning wastes it. Neither stops the run."""


@dataclass(frozen=True)
class Rule:
    """`check` returns the message if the rule fires, else None. `advice` names the settings to try.

    `fires_when` is the condition in words and `cause` what usually lies behind it, for the documentation.
    """

    name: str
    severity: Severity
    check: Callable[[History], str | None]
    fires_when: str
    cause: str
    advice: str


def entropy_collapsed(history: History) -> str | None:
    entropy = history.present(ENTROPY)
    if entropy is None or entropy >= 0.01:
        return None
    return f"entropy is {entropy:.2g} nats: all samples of a group are nearly equal, so there is nothing to compare"


def entropy_falling(history: History) -> str | None:
    """Compare the mean of the last 3 steps with the first 5 of the last 25 (early in a run: its first 5)."""
    values = history.last(ENTROPY, 25)
    if len(values) < 8:
        return None
    before, now = fmean(values[:5]), fmean(values[-3:])
    if now >= before / 3:
        return None
    return f"entropy fell from {before:.3g} to {now:.3g} nats within {len(values) - 5} steps"


def grad_norm_exploded(history: History) -> str | None:
    """Compare the norm with 5 times the median of up to 20 earlier steps, and with 10.

    The first gradients of a supervised run are often above 10 and fall at once: with fewer than 5 earlier steps the
    limit is 1,000.
    """
    norm = history.now.get(GRAD_NORM)
    if norm is None:
        return None
    if not math.isfinite(norm):
        return "the gradient is not finite"
    before = history.last(GRAD_NORM, 21)[:-1]
    if len(before) < 5:
        return f"the gradient norm is {norm:.3g} in the first steps of the run" if norm > 1000 else None
    usual = median(before)
    if norm <= max(10, 5 * usual):
        return None
    return f"the gradient norm is {norm:.3g}; its median over the {len(before)} earlier steps is {usual:.3g}"


def grad_norm_unusual(history: History) -> str | None:
    """Compare the mean norm of 5 steps with a wide range: 0.05 to 0.2 is usual for models with billions of parameters.

    Above 3 the clip at update.max_grad_norm determines the length of every step; below 0.001 hardly any token has an
    advantage. Never fires without a reward: a supervised loss has larger gradients.
    """
    norm = history.mean_of_last(GRAD_NORM, 5)
    if norm is None or 1e-3 <= norm <= 3 or history.present(REWARD) is None:
        return None
    usual = "0.05 to 0.2 is usual for models with billions of parameters, more for small ones"
    return f"the gradient norm was {norm:.2g} on average over 5 steps ({usual})"


def kl_high(history: History) -> str | None:
    kl = history.present(KL)
    return None if kl is None or kl <= 0.5 else f"KL from the starting policy is {kl:.3g} nats per token"


def kl_rising(history: History) -> str | None:
    """Compare the mean of the last 5 steps with the first 5 of the last 25.

    KL starts at 0, where tenfold means nothing: an earlier mean below 0.01 counts as 0.01.
    """
    values = history.last(KL, 25)
    if len(values) < 10:
        return None
    before, now = fmean(values[:5]), fmean(values[-5:])
    if now <= 10 * max(before, 0.01):
        return None
    return f"KL from the starting policy rose from {before:.2g} to {now:.2g} within {len(values) - 5} steps"


def groups_agree(history: History) -> str | None:
    share = history.mean_of_last(NO_SIGNAL, 5)
    if share is None or share <= 0.8:
        return None
    return f"in {share:.0%} of the groups of the last 5 steps all rewards are equal, so they have no gradient"


def responses_truncated(history: History) -> str | None:
    share = history.mean_of_last(TRUNCATED, 3)
    if share is None or share <= 0.3:
        return None
    return f"{share:.0%} of the responses of the last 3 steps were truncated at the maximum length"


def segment_missing(history: History) -> str | None:
    coverage = history.present(COVERAGE)
    if coverage is None or coverage >= 0.1:
        return None
    return f"{coverage:.0%} of the responses have the segment that EGPO measures; for the others EGPO equals GRPO"


def reward_failing(history: History) -> str | None:
    share = history.present(CHECKER_FAILED)
    return None if share is None or share <= 0.05 else f"the checker failed on {share:.0%} of the responses"


def reward_flat(history: History) -> str | None:
    """Fire if over 50 steps the reward did not change and half of the groups have no signal.

    No change: the 95 % interval of the trend contains 0, and the means of each ten steps lie within 0.05.
    """
    rewards, no_signal = history.last(REWARD, 50), history.mean_of_last(NO_SIGNAL, 50)
    if len(rewards) < 50 or no_signal is None or no_signal < 0.5:
        return None
    line = trend(rewards)
    tens = [fmean(rewards[start : start + 10]) for start in range(0, 50, 10)]
    if not line.low <= 0 <= line.high or max(tens) - min(tens) > 0.05:
        return None
    interval = f"change {line.change:+.3f}, 95 % interval {line.low:+.3f} to {line.high:+.3f}"
    return (
        f"the reward has stayed at {fmean(rewards):.3g} for 50 steps ({interval}), "
        f"and {no_signal:.0%} of the groups have no signal"
    )


def loss_not_finite(history: History) -> str | None:
    for name, value in history.now.items():
        if "loss" in name.rsplit("/", 1)[-1] and not math.isfinite(value):
            return f"{name} is {value}"
    return None


RULES = (
    Rule(
        "loss_not_finite", "danger", loss_not_finite,
        "a loss is NaN or infinite",
        "the learning rate is too high, or the precision too low",
        "return to an earlier checkpoint; lower `update.lr`, or compute in `model.dtype=float32`",
    ),
    Rule(
        "grad_norm_exploded", "danger", grad_norm_exploded,
        "`actor/grad_norm` is not finite; or above 10 and above 5 times its median over the 20 earlier steps; in the "
        "first 5 steps, above 1,000",
        "the learning rate is too high, or a response has a single token",
        "lower `update.lr`, add `update.warmup_steps`, or clip at a lower `update.max_grad_norm`",
    ),
    Rule(
        "grad_norm_unusual", "warning", grad_norm_unusual,
        "the mean of `actor/grad_norm` over 5 steps is below 0.001 or above 3, in runs with a reward",
        "too low: nearly all groups have equal rewards. Too high: a tiny model with a high learning rate",
        "too high: lower `update.lr` or enlarge the batch with `rollout.prompts`; too low: look at "
        "`groups/zero_variance_frac` (`algorithm.constant_groups=replace`, larger `rollout.n`)",
    ),
    Rule(
        "entropy_collapsed", "danger", entropy_collapsed,
        "`actor/entropy` is below 0.01",
        "the model gives the same answer to everything: the learning rate, or a reward that one phrase satisfies",
        "return to a checkpoint before the fall and read `rollouts/`; lower `update.lr`, raise "
        "`rollout.temperature`, or limit the change of the policy with `update.kl=0.001`",
    ),
    Rule(
        "entropy_falling", "warning", entropy_falling,
        "`actor/entropy` fell to less than a third within 20 steps (mean of 3 steps against mean of 5)",
        "as for `entropy_collapsed`, earlier",
        "lower `update.lr`, raise `rollout.temperature` or `update.clip_high` (0.28), or try "
        "`algorithm.estimator=egpo`",
    ),
    Rule(
        "kl_high", "danger", kl_high,
        "`actor/kl` is above 0.5",
        "the policy has moved far from the base model",
        "lower `update.lr`, or raise `update.kl`",
    ),
    Rule(
        "kl_rising", "warning", kl_rising,
        "`actor/kl` rose tenfold within 20 steps, to more than 0.1",
        "the policy moves away from the base model quickly",
        "lower `update.lr` or `update.epochs`, or raise `update.kl`",
    ),
    Rule(
        "groups_agree", "warning", groups_agree,
        "the mean of `groups/zero_variance_frac` over 5 steps is above 0.8",
        "the problems are too easy or too hard: see the [probe](probing.md)",
        "`algorithm.constant_groups=drop` or `replace`; larger `rollout.n`, higher `rollout.temperature`, or problems "
        "of medium difficulty for this model (`task.settings`)",
    ),
    Rule(
        "responses_truncated", "warning", responses_truncated,
        "the mean of `response_length/clip_ratio` over 3 steps is above 0.3",
        "the thinking does not end, or the limit is too low",
        "raise `rollout.max_response_tokens`, or set `rollout.stop` to the string that ends an answer",
    ),
    Rule(
        "segment_missing", "warning", segment_missing,
        "`egpo/segment/coverage` is below 0.1",
        "the model writes other tags, or the chat template closes the thinking in the prompt",
        "read in `rollouts/` what the model writes; set `segments.tags` or `model.template` to its own tags, or "
        "measure the whole response with `algorithm.egpo.entropy_mode=response`",
    ),
    Rule(
        "reward_failing", "danger", reward_failing,
        "`reward/error_frac` is above 0.05",
        "no sandbox, or the checker's time limits",
        "read the metrics `reward/reason/<name>`; run `egpo doctor` and `egpo audit sandbox` to find what is missing",
    ),
    Rule(
        "reward_flat", "warning", reward_flat,
        "over 50 steps the 95 % interval of the slope of `critic/score/mean` contains 0, the means of each ten steps "
        "lie within 0.05, and half of the groups have no signal",
        "the task is learnt, or there is no signal: see the [probe](probing.md)",
        "near the maximum: the task is learnt, stop; otherwise raise `update.lr`, `rollout.n` or "
        "`rollout.temperature`, or change the problems (`task.settings`)",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Note:
    """A rule that fired: when, with what message, and what to try."""

    step: int
    rule: str
    severity: Severity
    message: str
    advice: str

    def __str__(self) -> str:
        return f"{self.severity} at step {self.step} ({self.rule}): {self.message}; {self.advice}"


class Health:
    """Checks the rules after each step. A rule fires at most once per run.

    For a resumed run, `history` are the lines of `metrics.jsonl` and `notes` those of `health.jsonl`: the same rules
    then fire at the same steps as in a run without the interruption.
    """

    def __init__(
        self, rules: Sequence[Rule] = RULES, history: Iterable[Mapping[str, Any]] = (), notes: Iterable[Note] = ()
    ) -> None:
        self._pending = list(rules)
        self._history = History()
        for line in history:
            self._history.add(line["step"], {name: value for name, value in line.items() if name != "step"})
        self._remove({note.rule for note in notes})

    def observe(self, step: int, metrics: Mapping[str, float]) -> list[Note]:
        """Return the new notes, in the order of the rules. Raises ValueError unless steps increase."""
        self._history.add(step, metrics)
        found = [(rule, rule.check(self._history)) for rule in self._pending]
        notes = [Note(step, rule.name, rule.severity, message, rule.advice) for rule, message in found if message]
        self._remove({note.rule for note in notes})
        return notes

    def _remove(self, names: set[str]) -> None:
        self._pending = [rule for rule in self._pending if rule.name not in names]


class NoteStream:
    """The file `health.jsonl`, one note per line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines = LineStream(path)

    def append(self, note: Note) -> None:
        self._lines.append(asdict(note))

    def sync(self) -> None:
        self._lines.sync()

    def forget_after(self, step: int) -> None:
        """Remove the notes of steps after `step`, and an incomplete last line."""
        self._lines.cut(self.size_after(step))

    def size_after(self, step: int) -> int:
        """Return the size in bytes of the notes of steps up to `step`."""
        lines = list(read_lines(self.path)) if self.path.exists() else []
        kept = [line.end for line in lines if _as_note(line, self.path).step <= step]
        return kept[-1] if kept else 0


def read_notes(path: Path) -> list[Note]:
    """Return all notes; an empty list if no rule has fired and the file does not exist."""
    return [_as_note(line, path) for line in read_lines(path)] if path.exists() else []


def _as_note(line: Line, path: Path) -> Note:
    where = f"{path}, line {line.number}"
    try:
        note = Note(**line.value)
    except TypeError as error:
        raise InputError(f"not a health note ({error})", where=where, fix="the file is damaged") from error
    if not isinstance(note.step, int):
        raise InputError(f"not a health note (its step is {note.step!r:.40})", where=where, fix="the file is damaged")
    return note
