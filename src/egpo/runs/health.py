"""Health rules, which detect known training failures from the metrics, and the file `health.jsonl` of their notes.

Each rule is a small function of the metrics so far that returns a message with its numbers, or None. A rule on a metric
that the run does not have (KL without a KL term, entropy of a segment with grpo) never fires. A rule fires at most once
per run.

To add a rule: write its function, and add one row to `RULES`. docs/metrics.md lists the rows (`make pages`).
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

from egpo.errors import InputError
from egpo.runs.json_lines import Line, LineStream, lines_file, read_lines
from egpo.runs.metric_table import (
    CHECKER_FAILED,
    COVERAGE,
    ENTROPY,
    ENVIRONMENT_FAULTS,
    GRAD_NORM,
    KL,
    NO_SIGNAL,
    REWARD,
    SAMPLER_CLIPPED,
    SAMPLER_DIFF,
    TRUNCATED,
)
from egpo.runs.metrics import History, trend

NEARLY_ALL = 0.95
"""Share of responses cut off at the length limit from which on the end token is suspected, and not the limit."""

Severity = Literal["warning", "danger"]
"""How serious a health note is. `danger`: the model gets worse if the run continues. `warning`: the run learns little.
Neither stops the run."""


@dataclass(frozen=True)
class Rule:
    """One health rule. `check` returns the message if the rule fires, else None. `advice` names the settings to try.

    `fires_when` is the condition in words and `cause` its usual cause; both are for the documentation.
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
    return f"entropy is {entropy:.2g} nats: all samples of a group are nearly equal, so they cannot be compared"


def entropy_falling(history: History) -> str | None:
    """Fire if the mean entropy of the last 3 steps is below a third of the mean of the first 5 of the last 25 steps."""
    values = history.last(ENTROPY, 25)
    if len(values) < 8:
        return None
    before, now = fmean(values[:5]), fmean(values[-3:])
    if now >= before / 3:
        return None
    return f"entropy fell from {before:.3g} to {now:.3g} nats within {len(values) - 5} steps"


def grad_norm_exploded(history: History) -> str | None:
    """Fire if the gradient norm is not finite, or above 10 and above 5 times its median over up to 20 earlier steps.

    With fewer than 5 earlier steps the limit is 1,000, because the first gradients of a supervised run are often above
    10 and soon become smaller.
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
    """Fire if the mean gradient norm of 5 steps is below 0.001 or above 3, in runs with a reward.

    0.05 to 0.2 is usual for models with billions of parameters. Above 3, every gradient is clipped to
    update.max_grad_norm; below 0.001 hardly any token has an advantage. A supervised loss has larger gradients, so the
    rule does not fire in supervised runs.
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
    """Fire if the mean KL of the last 5 steps is above 10 times the mean of the first 5 of the last 25 steps.

    An earlier mean below 0.01 counts as 0.01, because KL starts at 0 and any value is more than ten times 0.
    """
    values = history.last(KL, 25)
    if len(values) < 10:
        return None
    before, now = fmean(values[:5]), fmean(values[-5:])
    if now <= 10 * max(before, 0.01):
        return None
    return f"KL from the starting policy rose from {before:.2g} to {now:.2g} within {len(values) - 5} steps"


def equal_rewards(history: History) -> str | None:
    share = history.mean_of_last(NO_SIGNAL, 5)
    if share is None or share <= 0.8:
        return None
    return f"in {share:.0%} of the groups of the last 5 steps all rewards are equal, so these groups have no gradient"


def no_response_ends(history: History) -> str | None:
    share = history.mean_of_last(TRUNCATED, 2)
    if share is None or share < NEARLY_ALL:
        return None
    ends = f"; a response ends at {history.ends_at}" if history.ends_at else ""
    return f"{share:.0%} of the responses of the last 2 steps were cut off at the maximum length{ends}"


def responses_truncated(history: History) -> str | None:
    """Fire if more than 30 % were truncated in the last 3 steps, but not nearly all: that is `no_response_ends`."""
    share = history.mean_of_last(TRUNCATED, 3)
    if share is None or not 0.3 < share < NEARLY_ALL:
        return None
    return f"{share:.0%} of the responses of the last 3 steps were truncated at the maximum length"


def segment_missing(history: History) -> str | None:
    coverage = history.present(COVERAGE)
    if coverage is None or coverage >= 0.1:
        return None
    return f"{coverage:.0%} of the responses have the segment that EGPO measures; for the others EGPO equals GRPO"


def _environment_failed(history: History) -> float:
    """Return the share of episodes that ended with a fault of their environment."""
    return sum(history.present(name) or 0.0 for name in history.now if name.startswith(ENVIRONMENT_FAULTS))


def environment_failing(history: History) -> str | None:
    share = _environment_failed(history)
    return None if share <= 0.05 else f"the environment failed in {share:.0%} of the episodes"


def reward_failing(history: History) -> str | None:
    """Fire if the checker failed on more than 5 %. Failed environments do not count: that is `environment_failing`."""
    share = (history.present(CHECKER_FAILED) or 0.0) - _environment_failed(history)
    return None if share <= 0.05 else f"the checker failed on {share:.0%} of the responses"


def reward_flat(history: History) -> str | None:
    """Fire if over 50 steps the reward did not change and at least half of the groups have equal rewards.

    The reward counts as unchanged if the 95 % interval of its trend contains 0 and the means of the five blocks of ten
    steps differ by at most 0.05.
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
        f"and in {no_signal:.0%} of the groups all rewards are equal"
    )


def loss_not_finite(history: History) -> str | None:
    for name, value in history.now.items():
        if "loss" in name.rsplit("/", 1)[-1] and not math.isfinite(value):
            return f"{name} is {value}"
    return None


def sampler_differs(history: History) -> str | None:
    """Fire if sampler and trainer differ by more than rounding explains, in the mean of the last 3 steps."""
    differences, clipped = history.last(SAMPLER_DIFF, 3), history.last(SAMPLER_CLIPPED, 3) or [0.0]
    if len(differences) < 3 or (fmean(differences) <= 0.05 and fmean(clipped) <= 0.01):
        return None
    what = "the sampler's and the trainer's log-probabilities of the same tokens differ"
    return f"{what} by {fmean(differences):.2g} nats on average, and {fmean(clipped):.2%} of the ratios are clipped"


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
        "sampler_differs", "warning", sampler_differs,
        "the mean of `sampler/logp_diff_mean` over 3 steps is above 0.05, or that of `sampler/clipped_frac` above 0.01",
        "sampling and training compute different policies: low precision, or two engines that load a model differently",
        "compute in `model.dtype=float32`; with verl: compare the versions of vLLM and transformers, or correct the "
        "difference with verl's own rollout correction",
    ),
    Rule(
        "entropy_collapsed", "danger", entropy_collapsed,
        "`actor/entropy` is below 0.01",
        "the model gives one answer to every problem: the learning rate is too high, or one phrase earns the reward",
        "return to a checkpoint before the fall and read `rollouts/`; lower `update.lr`, raise "
        "`rollout.temperature`, or limit the change of the policy with `update.kl=0.001`",
    ),
    Rule(
        "entropy_falling", "warning", entropy_falling,
        "`actor/entropy` fell to less than a third within 20 steps (mean of 3 steps against mean of 5)",
        "an early stage of `entropy_collapsed`, with the same causes",
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
        "equal_rewards", "warning", equal_rewards,
        "the mean of `groups/zero_variance_frac` over 5 steps is above 0.8",
        "the problems are too easy or too hard: see the [probe](probing.md)",
        "`algorithm.constant_groups=drop` or `replace`; larger `rollout.n`, higher `rollout.temperature`, or problems "
        "of medium difficulty for this model (`task.settings`)",
    ),
    Rule(
        "no_response_ends", "warning", no_response_ends,
        "the mean of `response_length/clip_ratio` over 2 steps is at least 0.95",
        "the model never writes a token that ends a response: a base model, a chat template of another model, or a "
        "wrong end token; or the limit is far too low",
        "read in `rollouts/` how a response goes on after its answer; add what the model writes there to "
        "`rollout.stop` or `rollout.stop_tokens`, teach it to end with `egpo sft`, or raise "
        "`rollout.max_response_tokens`",
    ),
    Rule(
        "responses_truncated", "warning", responses_truncated,
        "the mean of `response_length/clip_ratio` over 3 steps is above 0.3 and below 0.95",
        "the thinking does not end, or the limit is too low",
        "raise `rollout.max_response_tokens`, or set `rollout.stop` to the string that ends an answer",
    ),
    Rule(
        "segment_missing", "warning", segment_missing,
        "`egpo/segment/coverage` is below 0.1",
        "the model writes other tags than `segments.tags`, or the chat template closes the thinking in the prompt",
        "read in `rollouts/` what the model writes; set `segments.tags` or `model.template` to its own tags, or "
        "measure the whole response with `algorithm.egpo.entropy_mode=response`",
    ),
    Rule(
        "environment_failing", "danger", environment_failing,
        "the sum of `reward/reason/environment_<name>` is above 0.05",
        "the environment's own code raises, its process ends, or a call takes longer than its limit",
        "read `fault` in the `episode` of such a row of `rollouts/`; repair the environment, or raise "
        "`rollout.episodes.call_timeout_s`; `egpo audit episodes` tells whether stored episodes play the same again",
    ),
    Rule(
        "reward_failing", "danger", reward_failing,
        "`reward/error_frac`, without failed environments, is above 0.05",
        "there is no sandbox, or checking takes longer than its time limit",
        "read the metrics `reward/reason/<name>`; run `egpo doctor` and `egpo audit sandbox` to find what is missing",
    ),
    Rule(
        "reward_flat", "warning", reward_flat,
        "over 50 steps the 95 % interval of the slope of `critic/score/mean` contains 0, the means of the five blocks "
        "of ten steps differ by at most 0.05, and in at least half of the groups all rewards are equal",
        "the task is learnt, or there is no signal: see the [probe](probing.md)",
        "near the maximum: the task is learnt, stop; otherwise raise `update.lr`, `rollout.n` or "
        "`rollout.temperature`, or change the problems (`task.settings`)",
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Note:
    """A health note: a rule that fired, its step, its message, and the settings to try."""

    step: int
    rule: str
    severity: Severity
    message: str
    advice: str

    def __str__(self) -> str:
        return f"{self.severity} at step {self.step} ({self.rule}): {self.message}; {self.advice}"


class Health:
    """The health rules of one run, checked after each step. A rule fires at most once per run.

    For a resumed run, pass the lines of `metrics.jsonl` as `history` and those of `health.jsonl` as `notes`: the same
    rules then fire at the same steps as in an uninterrupted run. `ends_at`: see `History`.
    """

    def __init__(
        self,
        rules: Sequence[Rule] = RULES,
        history: Iterable[Mapping[str, Any]] = (),
        notes: Iterable[Note] = (),
        ends_at: str = "",
    ) -> None:
        self._pending = list(rules)
        self._history = History(ends_at)
        for line in history:
            self._history.add(line["step"], {name: value for name, value in line.items() if name != "step"})
        self._remove({note.rule for note in notes})

    def observe(self, step: int, metrics: Mapping[str, float]) -> list[Note]:
        """Check the rules on the metrics of a step and return the new notes. Raise ValueError unless steps increase."""
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
        """Remove from the file the notes of steps after `step`, and an incomplete last line."""
        self._lines.cut(self.size_after(step))

    def size_after(self, step: int) -> int:
        """Return the size in bytes of the notes of steps up to `step`."""
        lines = list(read_lines(self.path)) if self.path.exists() else []
        kept = [line.end for line in lines if _as_note(line, self.path).step <= step]
        return kept[-1] if kept else 0


def read_notes(path: Path) -> list[Note]:
    """Return all notes of a `health.jsonl`; an empty list if the file does not exist, because no rule has fired."""
    return [_as_note(line, path) for line in read_lines(path)] if lines_file(path) else []


def _as_note(line: Line, path: Path) -> Note:
    where = f"{path}, line {line.number}"
    try:
        note = Note(**line.value)
    except TypeError as error:
        what = f"the line is not a health note ({error})"
        raise InputError(what, where=where, fix="the file is damaged: fix or remove the line") from error
    if not isinstance(note.step, int):
        what = f"the line is not a health note (its step is {note.step!r:.40})"
        raise InputError(what, where=where, fix="the file is damaged: fix or remove the line")
    return note
