"""The table of metrics: name, unit, meaning, direction of improvement, and where each is displayed. Imports no torch.

Both engines write these names to `metrics.jsonl` and `timings.jsonl`. The health rules, the log line, the live panel,
the charts of `egpo report` and docs/metrics.md read this table.

To add a metric: add one `Metric` row to the tuple of its section below and compute it in the engine. Then write the
page again with `make pages`. The order of the rows is the order in the log line, in the panel and in the report.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean
from typing import Literal

REWARD, ACCURACY = "critic/score/mean", "critic/acc/mean"
ENTROPY, KL, GRAD_NORM = "actor/entropy", "actor/kl", "actor/grad_norm"
ENTROPIES = {segment: f"entropy/{segment}" for segment in ("thinking", "answer", "response")}
COVERAGE = "egpo/segment/coverage"
NO_SIGNAL = "groups/zero_variance_frac"
INFORMATIVE = "groups/informative_frac"
"""The share of groups whose rewards differ: 1 - NO_SIGNAL. `egpo report` computes it; no engine writes it."""
LENGTH, TRUNCATED = "response_length/mean", "response_length/clip_ratio"
CHECKER_FAILED = "reward/error_frac"
ENVIRONMENT_FAULTS = "reward/reason/environment_"
"""The beginning of the names of metrics of episodes that ended with a fault of their environment."""
VALIDATION_ACCURACY = "val-core/<source>/acc/mean@<N>"
LOSS, VALIDATION_LOSS = "train/loss", "val/loss"
SAMPLER_DIFF, SAMPLER_DIFF_MAX = "sampler/logp_diff_mean", "sampler/logp_diff_max"
SAMPLER_CLIPPED = "sampler/clipped_frac"
ENTROPY_WEIGHT, ENTROPY_COEFFICIENT = "actor/entropy_weight", "controller/entropy_coefficient"
STEP_S, TOKENS_PER_S, NUM_TOKENS = "timing_s/step", "perf/throughput", "perf/total_num_tokens"

Better = Literal["higher", "lower", "neither"]
NATS = "nats"
FRACTION = "fraction"


@dataclass(frozen=True)
class Chart:
    """The chart of a metric in the report. `percent`: the metric is between 0 and 1 and is shown in percent."""

    title: str
    note: str
    percent: bool = False


@dataclass(frozen=True)
class PanelCell:
    """One number in the live panel: the title of its row, its label and its format.

    If the run does not have the metric, a dash is shown; an `optional` number is left out instead.
    """

    row: str
    label: str
    format: str = ".3f"
    optional: bool = False


@dataclass(frozen=True)
class LogField:
    """One `label value` pair of the log line."""

    label: str
    format: str = ".3f"


@dataclass(frozen=True)
class Metric:
    """One row of the table. In `name`, `<source>` stands for any text and `{mean,max}` for each of the words."""

    name: str
    unit: str
    meaning: str
    reading: str = ""
    """How to interpret the values of the metric."""
    better: Better = "neither"
    chart: Chart | None = None
    panel: PanelCell | None = None
    log: LogField | None = None

    def matches(self, name: str) -> bool:
        return bool(re.fullmatch(_pattern(self.name), name))


def find_metric(name: str) -> Metric | None:
    """Return the row of the table for a metric that a run has written; None if there is none."""
    return next((metric for metric in METRICS if metric.matches(name)), None)


def is_validation_accuracy(name: str) -> bool:
    """Return whether a metric is `val-core/<source>/acc/mean@N`."""
    return bool(re.fullmatch(_pattern(VALIDATION_ACCURACY), name))


def validation_accuracy(metrics: Mapping[str, float]) -> float | None:
    """Return the mean over sources of `val-core/<source>/acc/mean@N`; None if the step was not validated."""
    found = [value for name, value in metrics.items() if is_validation_accuracy(name)]
    return fmean(found) if found else None


@cache
def _pattern(name: str) -> str:
    parts = re.split(r"(<\w+>|\{[\w,/-]+\})", name)
    return "".join(_part_pattern(part) for part in parts)


def _part_pattern(part: str) -> str:
    if part.startswith("<"):
        return "[^@]+"
    if part.startswith("{"):
        return "(" + "|".join(map(re.escape, part.strip("{}").split(","))) + ")"
    return re.escape(part)


SUPERVISED = (
    Metric(
        LOSS, NATS, "mean negative log-likelihood per learned token", better="lower",
        chart=Chart("Loss", "per learned token, nats"),
        panel=PanelCell("loss", "train"), log=LogField("loss"),
    ),
    Metric(
        VALIDATION_LOSS, NATS, "mean negative log-likelihood per learned token on held-out examples",
        "if it rises while `train/loss` falls, the model memorises the examples", "lower",
        chart=Chart("Validation loss", "per learned token, nats"),
        panel=PanelCell("loss", "validation"), log=LogField("validation loss"),
    ),
    Metric("{train,val}/perplexity", "", "exp(loss)", better="lower"),
    Metric("train/epoch", "epochs", "passes over the data that have begun"),
    Metric("train/num_examples", "examples", "examples in the batch"),
    Metric("train/num_learned_tokens", "tokens", "tokens of the batch that are included in the loss"),
)  # fmt: skip

REWARDS = (
    Metric(
        REWARD, "", "mean reward of the responses that could be judged",
        "a shaped reward can rise although no answer is correct: compare it with `critic/acc/mean`", "higher",
        chart=Chart("Reward", "mean score of the step's responses"),
        panel=PanelCell("reward", ""), log=LogField("reward"),
    ),
    Metric("critic/score/{max,min}", "", "largest and smallest reward of the step"),
    Metric(
        ACCURACY, FRACTION, "fraction of fully correct responses: 0 or 1 for each response, never a shaped score",
        "noisy: with 128 responses the standard error is up to 4.4 points, and responses to one problem are not "
        "independent", "higher",
        chart=Chart("Training accuracy", "responses that are fully correct", percent=True),
        panel=PanelCell("accuracy", "train"), log=LogField("acc"),
    ),
    Metric(
        VALIDATION_ACCURACY, FRACTION, "accuracy on held-out problems, N responses each",
        "the curve to trust. With 64 problems its 95 % interval still spans 12 points in each direction: take "
        "numbers for a paper from `egpo eval`", "higher",
        chart=Chart("Validation accuracy", "held-out problems", percent=True),
        panel=PanelCell("accuracy", "validation"), log=LogField("validation"),
    ),
    Metric("val-aux/<source>/reward/mean@<N>", "", "mean reward on held-out problems, N responses each",
           better="higher"),
    Metric("val-aux/<source>/response_length/mean", "tokens", "mean response length in the validation"),
    Metric("val-aux/<source>/response_length/clip_ratio", FRACTION, "truncated responses in the validation",
           better="lower"),
    Metric("val-aux/<source>/error_frac", FRACTION, "responses of the validation that the checker failed on",
           better="lower"),
    Metric("val-aux/<source>/entropy/<segment>", NATS, "entropy by segment in the validation"),
    Metric("critic/rewards/{mean,max,min}", "",
           "the reward that the estimator received: after the KL term (`update.kl_in: reward`) and the overlong "
           "penalty were subtracted; under `algorithm.random_rewards` the drawn reward, which says nothing about the "
           "responses",
           better="higher"),
    Metric("reward/overlong_penalty/{mean,max,min}", "",
           "what `algorithm.overlong` subtracted from the reward of a response",
           "a mean that grows: responses come near `rollout.max_response_tokens`", "lower"),
    Metric("reward/random_frac", FRACTION,
           "responses whose reward was drawn at random (`algorithm.random_rewards`)",
           "1 in a control run; absent in all others. Score and accuracy are still those of the checker"),
    Metric("critic/advantages/{mean,max,min}", "", "the advantage that the estimator returned",
           "a maximum far above the others: one correct answer in a group of wrong ones"),
    Metric(
        "reward/reason/<name>", FRACTION,
        "responses by the checker's [reason](rewards/README.md#reasons)",
        "format errors (`malformed_call`, `no_answer`) should fall first, then `wrong_value` should turn into "
        "`correct`. A reason other than `correct` that grows together with the reward points to reward hacking: read "
        "such responses in `rollouts/`",
    ),
    Metric(
        CHECKER_FAILED, FRACTION, "responses on which the checker itself failed",
        "above 0: checking ran out of time, there is no sandbox, or an environment failed. These responses have no "
        "advantage", "lower",
    ),
)  # fmt: skip

POLICY = (
    Metric(
        ENTROPY, NATS,
        "Shannon entropy over the full vocabulary at the sampling temperature, mean over all response tokens",
        "falls as the model becomes certain. Below 0.01 the policy has collapsed: all samples of a group are equal",
        log=LogField("entropy"),
    ),
    Metric(
        ENTROPIES["thinking"], NATS, "entropy of the thinking segment, mean over the responses that have one",
        "higher than `entropy/answer` in a healthy run. If it is missing, no response has a thinking segment, or the "
        "tags differ from `segments.tags`",
        chart=Chart("Entropy, thinking", "mean entropy per token, thinking segment, nats"),
        panel=PanelCell("entropy", "thinking"), log=LogField("thinking"),
    ),
    Metric(
        ENTROPIES["answer"], NATS, "entropy of the answer segment, mean over the responses that have one",
        "lower than `entropy/thinking` in a healthy run",
        chart=Chart("Entropy, answer", "mean entropy per token, answer segment, nats"),
        panel=PanelCell("entropy", "answer"), log=LogField("answer"),
    ),
    Metric(
        ENTROPIES["response"], NATS, "entropy of the whole response, mean over responses",
        "every response has the same weight here; in `actor/entropy` every token has the same weight",
        chart=Chart("Entropy, response", "mean entropy per token, whole response, nats"),
        panel=PanelCell("entropy", "response"),
    ),
    Metric(
        KL, "nats per token", "KL divergence from the starting policy; measured only if `update.kl` is above 0",
        "a slow rise is learning; a tenfold rise within twenty steps precedes divergence",
        chart=Chart("KL from the reference", "per token, nats"),
        panel=PanelCell("policy", "KL", ".4f", optional=True), log=LogField("kl"),
    ),
    Metric(
        GRAD_NORM, "", "norm of the gradient before clipping",
        "0.05 to 0.2 is usual for large models, more for tiny ones. 0: in every group all rewards were equal",
        chart=Chart("Gradient norm", "before clipping"),
        panel=PanelCell("policy", "gradient"), log=LogField("grad"),
    ),
    Metric("actor/pg_loss", "", "the policy-gradient surrogate loss",
           "does not measure progress: with one update per batch it is near 0 by construction"),
    Metric(
        "actor/ppo_kl", "nats per token", "KL divergence of the policy during the update from the policy that sampled",
        "0 with one mini-batch and one epoch: the two policies are then the same",
    ),
    Metric("actor/{pg_clipfrac,pg_clipfrac_lower}", FRACTION, "tokens whose probability ratio was clipped",
           "0 with one mini-batch and one epoch, otherwise a few per cent"),
    Metric(
        SAMPLER_DIFF, "nats per token",
        "mean absolute difference between the log-probabilities that the sampler recorded and those that the trainer "
        "computes with the same weights, before the first mini-batch",
        "rounding: below 0.0001 in float32, 0.004 to 0.03 in bfloat16 ([measured](models.md#sampler-and-trainer)). "
        "More: the two do not compute the same policy. Absent if all groups have equal rewards: nothing is updated",
        "lower",
    ),
    Metric(SAMPLER_DIFF_MAX, "nats", "the largest such difference of a token",
           "in bfloat16 single tokens may differ by some tenths", "lower"),
    Metric(SAMPLER_CLIPPED, FRACTION, "tokens whose probability ratio is clipped although the weights are the same",
           "0; each such token has no gradient", "lower"),
    Metric("sampler/weight_mean", "", "mean importance weight of a token under `update.importance_cap`",
           "near 1. Far from it: sampler and trainer do not compute the same policy"),
    Metric("sampler/weight_capped_frac", FRACTION, "tokens whose importance weight is at `update.importance_cap`",
           "near 0; each such token differs by a factor of the cap or more between sampler and trainer", "lower"),
    Metric("actor/marked_frac", FRACTION,
           "tokens that the loss form chose: without a gradient under `clip_cov`, with a KL term under `kl_cov`",
           "its setting `ratio`. Lower under `clip_cov`: too few tokens are between `lower` and `upper`"),
    Metric(
        ENTROPY_WEIGHT, "", "weight of the entropy term of the loss in this step (`update.entropy_weight`)",
        "under `adaptive_entropy` 0 while the entropy is above the target",
        chart=Chart("Entropy weight", "of the entropy term of the loss"),
    ),
    Metric(
        ENTROPY_COEFFICIENT, "",
        "the coefficient that the controller `adaptive_entropy` moves; it is the weight while the entropy is at or "
        "below the target",
        "at its upper bound for many steps: the target cannot be reached this way",
    ),
    Metric("actor/lr", "", "learning rate"),
    Metric("actor/skipped_updates", "updates", "updates skipped because the gradient was not finite",
           "a single one is harmless, several in a row are not", "lower"),
)  # fmt: skip

GROUPS = (
    Metric(
        NO_SIGNAL, FRACTION, "groups whose rewards are all equal: their advantage is exactly 0",
        "above 0.8 most of the step is wasted; `groups/all_right_frac` and `groups/none_right_frac` show whether the "
        "problems are too easy or too hard", "lower",
        panel=PanelCell("groups", "zero variance", ".0%"), log=LogField("zero_variance", ".0%"),
    ),
    Metric(
        INFORMATIVE, FRACTION, "1 - `groups/zero_variance_frac`, computed by `egpo report`", better="higher",
        chart=Chart("Informative groups", "groups whose rewards differ", percent=True),
    ),
    Metric(
        "groups/{all_right_frac,none_right_frac}", FRACTION, "groups in which every response, or none, is correct",
        "all correct: the problems are too easy. None correct: use larger groups, easier problems or a cold start",
        "lower",
    ),
    Metric("groups/{dropped,refills}", "groups; refills",
           "groups left out, and further rounds of sampling, under `constant_groups: drop` or `replace`",
           "if `refills` is at its limit in every step, too few problems of medium difficulty are left"),
)  # fmt: skip

LENGTHS = (
    Metric(
        LENGTH, "tokens", "mean response length",
        "if it grows together with the reward, the model searches longer; if it grows alone, the extra text is useless",
        chart=Chart("Response length", "tokens"), panel=PanelCell("length", "mean", ".0f"),
    ),
    Metric("response_length/{max,min}", "tokens", "longest and shortest response of the step"),
    Metric(
        TRUNCATED, FRACTION, "responses truncated at `max_response_tokens`",
        "above 0.3: raise the limit before anything else", "lower",
        chart=Chart("Truncated responses", "responses that reached the maximum length", percent=True),
        panel=PanelCell("length", "truncated", ".0%"),
    ),
    Metric("prompt_length/mean", "tokens", "mean prompt length"),
    Metric("data/left_out", "problems", "problems whose prompts are longer than `max_prompt_tokens`",
           "they are not trained on", "lower"),
    Metric("training/epoch", "epochs", "passes over the data that have begun"),
    Metric(NUM_TOKENS, "tokens", "prompt and response tokens of the step"),
)  # fmt: skip

EPISODES = (
    Metric(
        "episode/num_turns/mean", "turns", "turns of the assistant per episode",
        "falls to 1 if the model stops calling tools",
        chart=Chart("Turns", "turns of the assistant per episode"),
    ),
    Metric("episode/num_turns/max", "turns", "turns of the longest episode"),
    Metric("episode/num_calls/mean", "calls", "calls that could be read, per episode",
           "near 0: the model does not call tools, or writes calls that cannot be read",
           chart=Chart("Calls", "calls of tools per episode")),
    Metric(
        "episode/ending/<name>", FRACTION,
        "episodes by their [ending](environments.md#episodes): `finished`, `done`, `turn_limit`, `token_limit`, "
        "`failed`",
        "many `turn_limit` or `token_limit`: raise the limit, or the model repeats itself. Above 0 for `failed`: the "
        "environment is broken; such episodes have no advantage",
    ),
    Metric(
        "episode/fault/<reason>", "faults",
        "[faults](environments.md#whose-fault-it-is) per episode, by their reason: an unknown tool, a call that cannot "
        "be read, an error of a tool",
        "should fall. `tool_error` alone may stay: some tasks need an error to recover from", "lower",
    ),
    Metric("episode/turn_<k>/entropy/{thinking,answer}", NATS,
           "entropy of thinking and answer in turn k, mean over the episodes that have it; the first four turns",
           "a turn whose entropy is near 0 while the others' is not: it is learnt by heart"),
)  # fmt: skip

ESTIMATOR = (
    Metric(
        COVERAGE, FRACTION, "responses that have the measured segment (both EGPO estimators)",
        "check this first. Near 0: wrong tags, or a model that does not think; EGPO then equals GRPO without a warning",
        "higher",
    ),
    Metric(
        "egpo/{entropy,nll}/{seq_mean,group_mean}", NATS,
        "the measured entropy, mean over responses and over groups (estimators of a segment's entropy; `nll` where "
        "`measure` is `nll`)",
        "far apart: the groups have very different numbers of measured responses",
    ),
    Metric(
        "egpo/bonus/{mean,max}", "", "the bonus added to advantages (`egpo`, `token_entropy`)",
        "at most 0.2 \\|A\\| under `clip_entropy` and 0.5 \\|A\\| under `clip_bonus`, with the default settings",
    ),
    Metric(
        "egpo/bonus/capped_frac", FRACTION,
        "rows whose bonus was limited by the cap, among rows with an advantage and an entropy (`egpo`), or tokens "
        "(`token_entropy`)",
        "near 1: the bonus does not depend on the size of the entropy and is a fixed fraction of \\|A\\|. Near 0: the "
        "bonus is proportional to the entropy",
    ),
    Metric(
        "egpo/weight/{mean,std,min,max}", "", "the factor on advantages (`egpo_calibrated`, `edge`)",
        "a mean far from 1 acts as a change of the learning rate; `std` 0: the estimator equals GRPO",
    ),
    Metric(
        "egpo/ratio/max", "",
        "largest ratio of the group's mean entropy to a response's own, before the clip (`egpo_calibrated`)",
        "far above `lambda_max`: single responses have almost no entropy, and the clip limits their weight",
    ),
    Metric(
        "egpo/recovered_frac", FRACTION, "groups, all wrong, that were given a gradient (`egpo_calibrated.recover`)",
        "near 1: most of the gradient pushes away from wrong answers, and towards nothing; the problems are too hard",
    ),
    Metric(
        "egpo/share/max", "", "largest ratio of a token's weight to the mean at its position (`gtpo`)",
        "at most the number of right, or wrong, responses of a group",
    ),
    Metric(
        "egpo/tokens/kept_frac", FRACTION, "tokens with a gradient (`high_entropy`)",
        "far above `rho`: many tokens have the same entropy, mostly 0",
    ),
    Metric("egpo/tokens/threshold", NATS, "lowest entropy of a token with a gradient (`high_entropy`)"),
    Metric(
        "egpo/halves/difference", "reward",
        "mean reward of the half of high entropy minus that of the half of low entropy (`canon`)",
        "its sign says which half is favoured",
    ),
    Metric(
        "egpo/at_baseline_frac", FRACTION, "responses with advantage 0, because their reward is the quantile (`qae`)",
        "near 1: hardly any response has a gradient",
    ),
    Metric(
        "egpo/best_of_k/saturated_frac", FRACTION,
        "groups of different rewards without a gradient, because every subset of k responses has the same best one "
        "(`pass_at_k`)",
        "near 1: `k` is too large for these problems",
    ),
)  # fmt: skip

TIMES = (
    Metric(
        TOKENS_PER_S, "tokens/s", "tokens of the step per second (verl: per second and GPU)", better="higher",
        panel=PanelCell("speed", "tokens/s", ",.0f"), log=LogField("tok/s", ".0f"),
    ),
    Metric(
        STEP_S, "s", "time of the whole step", better="lower",
        panel=PanelCell("speed", "seconds per step", ".2f"), log=LogField("s/step", ".2f"),
    ),
    Metric("timing_s/<stage>", "s", "time of one stage of the step", better="lower"),
)  # fmt: skip

VERL = (
    Metric("actor/loss", "", "the whole loss: surrogate, KL and entropy terms"),
    Metric("actor/{kl_coef,reward_kl_penalty_coeff}", "", "coefficient of the KL term"),
    Metric("actor/entropy_loss", NATS, "entropy as verl's loss aggregates it"),
    Metric("critic/returns/{mean,max,min}", "", "returns; equal to the advantages for these estimators"),
    Metric("prompt_length/{max,min,clip_ratio}", "tokens; fraction", "prompt lengths, and prompts at the maximum"),
    Metric("response_length_non_aborted/{mean,max,min,clip_ratio}", "tokens; fraction",
           "response lengths without aborted responses"),
    Metric("response/aborted_ratio", FRACTION, "responses that vLLM aborted", better="lower"),
    Metric("{num_turns,training/num_turns,val-aux/num_turns}/{mean,max,min}", "turns", "turns per conversation"),
    Metric("tool_call_counts/{mean,max,min}", "calls", "tool calls per conversation"),
    Metric("global_seqlen/<statistic>", "tokens", "tokens per rank, before and after balancing"),
    Metric("rollout_corr/<statistic>", "nats or ratios",
           "difference between the log-probabilities of the sampler (vLLM) and of the trainer",
           "`rollout_corr/kl` far from 0: the two engines do not compute the same policy"),
    Metric("training/{rollout_actor_probs_pearson_corr,rollout_probs_diff_valid}", "",
           "correlation of the sampler's and the trainer's token probabilities, and whether it could be computed"),
    Metric("training/rollout_probs_diff_{mean,max,std}", "",
           "absolute difference of the sampler's and the trainer's token probabilities", better="lower"),
    Metric("training/off_policy/<statistic>", "steps or samples", "age of the responses, in policy updates",
           better="lower"),
    Metric("{training,validation}/{filter_groups,rollout_failure,off_policy}/<statistic>", "samples",
           "samples that verl has left out"),
    Metric("training/global_step", "steps", "number of the step"),
    Metric("val-{core,aux}/<source>/<value>/<statistic>@<N>", "",
           "further statistics of the validation: mean, standard deviation, best, worst and majority of N responses"),
    Metric("{actor,critic}/perf/<name>", "GB", "memory used", better="lower"),
    Metric("perf/mfu/<stage>", FRACTION, "model FLOPs utilisation", better="higher"),
    Metric("perf/time_per_step", "s", "time of the whole step", better="lower"),
    Metric("timing_per_token_ms/<stage>", "ms", "time of a stage per token", better="lower"),
)  # fmt: skip

SECTIONS: Mapping[str, tuple[Metric, ...]] = {
    "Supervised training": SUPERVISED,
    "Reward and accuracy": REWARDS,
    "Policy": POLICY,
    "Groups": GROUPS,
    "Lengths and data": LENGTHS,
    "Episodes": EPISODES,
    "EGPO": ESTIMATOR,
    "Time": TIMES,
    "Written by verl only": VERL,
}
METRICS = tuple(metric for section in SECTIONS.values() for metric in section)
