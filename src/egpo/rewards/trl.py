"""Reward functions for TRL: columns of a batch in, a list of floats out."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from egpo.errors import InputError
from egpo.rewards.named import Sample, score_sample
from egpo.rewards.plain_values import fields_of, first_present, is_missing, plain, with_defaults
from egpo.rewards.scoring import REWARDS, check_settings, kind_of, reasons_of
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS

TrlReward = Callable[..., list[float | None]]
TRUTH_COLUMNS = ("ground_truth", "reward_model", "solution", "answer")
"""Columns that may have the ground truth (names of egpo, verl, TRL and GSM8K). The first that is present is used."""
COLUMNS = (*TRUTH_COLUMNS, "data_source", "ability", "tools", "extra_info")


def trl_reward(data_source: str | None = None, **settings: Any) -> TrlReward:
    """Return a reward function for `GRPOTrainer(reward_funcs=...)`.

    `data_source` applies to every row (None: the column of that name); `settings` are `mode`, `tags` or `tools`, for
    rows whose `extra_info` sets none. They are checked here, before the first batch: against the reward of
    `data_source`, or without one against all rewards; then each setting applies to the rows whose reward takes it. A
    response on which the checker failed gets None, which TRL leaves out. The reasons are added to TRL's table of
    completions and, if `data_source` is given, their fractions to its metrics.
    """
    kinds = list(REWARDS.values()) if data_source is None else [kind_of(data_source)]
    made = {name: value for name, value in settings.items() if not is_missing(plain(value))}
    check_settings(made, kinds, "TRL reward")

    def reward(
        prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Any = None, **columns: Any
    ) -> list[float | None]:
        texts = [completion_text(completion) for completion in completions]
        rows = _rows(columns, len(texts))
        samples = [_sample(text, row, data_source, made) for text, row in zip(texts, rows, strict=True)]
        verdicts = [score_sample(sample) for sample in samples]
        _log(verdicts, data_source, columns)
        return [None if verdict.failed else verdict.reward for verdict in verdicts]

    # TRL names its metrics after the function.
    reward.__name__ = f"egpo_{(data_source or 'reward').replace('/', '_')}"
    return reward


def completion_text(completion: Any) -> str:
    """Return the model's text of a completion: a string, or chat messages, of which the last assistant's counts.

    A server may have removed the thinking and the calls from the content: they are put back with their tags.
    """
    value = plain(completion)
    if isinstance(value, str):
        return value
    messages = [value] if isinstance(value, dict) else value if isinstance(value, list) else []
    said = [message for message in messages if isinstance(message, dict) and message.get("role") == "assistant"]
    if not said:
        fix = "give text, or a list of messages with at least one of the role `assistant`"
        raise InputError(f"{value!r:.80} is not a completion", where="TRL reward", fix=fix)
    message = said[-1]
    calls = "\n".join(_call_text(call) for call in message.get("tool_calls") or [])
    spoken = "\n".join(part for part in (_content_text(message.get("content")), calls) if part)
    thought = message.get("reasoning_content") or message.get("thinking") or ""
    return f"{THINK_TAGS[0]}{thought}{THINK_TAGS[1]}\n\n{spoken}" if thought else spoken


def _content_text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(part.get("text") or "" for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _call_text(call: Any) -> str:
    function = call.get("function", call) if isinstance(call, dict) else call
    return f"<tool_call>\n{json.dumps(function)}\n</tool_call>"


def _rows(columns: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """Return the values of each row from the columns. Other keyword arguments of TRL are ignored."""
    lists = {name: _column(name, columns[name], size) for name in COLUMNS if not is_missing(columns.get(name))}
    return [{name: values[index] for name, values in lists.items()} for index in range(size)]


def _column(name: str, values: Any, size: int) -> Sequence[Any]:
    """Return the values of a list, array, tensor or series; InputError unless there is one per completion."""
    column = values.tolist() if hasattr(values, "tolist") else values
    if not isinstance(column, Sequence) or isinstance(column, str | bytes):
        raise InputError(
            f"the column `{name}` is not a list: {values!r:.80}",
            where="TRL reward",
            fix="give a list, with one value per completion",
        )
    if len(column) != size:
        what = f"the column `{name}` has {len(column)} values for {size} completions"
        raise InputError(what, where="TRL reward", fix="give one value per completion")
    return column


def _sample(text: str, row: Mapping[str, Any], data_source: str | None, settings: Mapping[str, Any]) -> Sample:
    source = data_source or row.get("data_source")
    if source is None:
        fix = "call trl_reward(data_source=...), or add that column to the dataset"
        raise InputError("there is no column `data_source`", where="TRL reward", fix=fix)
    kind = kind_of(source)
    defaults = {name: value for name, value in settings.items() if kind.takes(name, value)}
    tools = {"tools": row["tools"]} if row.get("tools") else {}
    extra = with_defaults(fields_of(row.get("extra_info"), "extra_info"), {**defaults, **tools})
    return Sample(source, text, _ground_truth(row), first_present(row, ["ability"]) or "", extra)


def _ground_truth(row: Mapping[str, Any]) -> Any:
    for name in TRUTH_COLUMNS:
        truth = plain(row.get(name))
        if name == "reward_model":
            truth = plain(fields_of(truth, "reward_model").get("ground_truth"))
        if not is_missing(truth):
            return truth
    fix = f"add one of the columns {', '.join(TRUTH_COLUMNS)} to the dataset"
    raise InputError("the row has no ground truth", where="TRL reward", fix=fix)


def _log(verdicts: Sequence[Verdict], data_source: str | None, columns: Mapping[str, Any]) -> None:
    """Log reasons, accuracy and failures to TRL, under the same names in every batch: TRL gathers metrics by name, and
    each process must have all of them."""
    if callable(log_extra := columns.get("log_extra")):
        log_extra("reason", [verdict.reason for verdict in verdicts])
    if not callable(log_metric := columns.get("log_metric")) or not verdicts:
        return
    counts = Counter(verdict.reason for verdict in verdicts)
    shares = {f"reason/{reason}": counts[reason] for reason in (reasons_of(data_source) if data_source else ())}
    shares |= {"accuracy": sum(v.correct for v in verdicts), "failed": sum(v.failed for v in verdicts)}
    for name, count in shares.items():
        log_metric(name, count / len(verdicts))
