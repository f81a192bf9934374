"""Writes a correct answer to a row of any verl parquet file, as text that the reward accepts.

Public files often have only `reward_model.ground_truth` and no answer. The answer is then written from the ground
truth, and is used only if the reward judges it correct.
"""

import json
from typing import Any

from egpo.data import Dropped, Row
from egpo.data.calls import CallsError, hermes_text
from egpo.errors import InputError
from egpo.rewards.scoring import DATA_SOURCES, KINDS, ability_of
from egpo.rewards.tool_calls.ground_truth import read_ground_truth
from egpo.rewards.tool_calls.possible_answers import PossibleCall
from egpo.tasks.countdown import solution_text, solve
from egpo.tool_calls.calls import checked_call

MAX_SEARCHED = 4
"""Largest number of numbers in a Countdown problem for which a solution is searched: with five it may take seconds."""
_BY_ABILITY = {"function_calling": "tool_calls", "math": "math"}
"""The reward for each value of the column `ability`, for data sources that have no reward of their own."""
_ACCEPTED_IN = {"tool_calls": "plain"}
"""The reward mode in which an answer is checked. The default mode of tool calls requires thinking, which an answer
written from the ground truth does not have."""


def gold_answer(row: Row) -> str | Dropped:
    """Return a correct answer to the row, or the reason why there is none.

    The answer is `extra_info.answer` if the row has it, otherwise one that is written from the ground truth.
    """
    if stored := str(row.extra.get("answer") or ""):
        return stored
    try:
        kind = _kind(row)
        if kind is None:
            return Dropped("unknown_data_source")
        answer = _written(kind, row)
        if isinstance(answer, str) and not _accepted(kind, row, answer):
            return Dropped("answer_not_accepted")
        return answer
    except InputError:
        return Dropped("bad_ground_truth")


def _kind(row: Row) -> str | None:
    name = DATA_SOURCES.get(row.data_source, _BY_ABILITY.get(row.ability))
    return ability_of({"ability": row.ability or row.extra.get("ability")}) if name == "hybrid" else name


def _written(kind: str, row: Row) -> str | Dropped:
    if kind == "tool_calls":
        return _calls(row.ground_truth)
    if kind == "gsm8k":
        return f"#### {row.ground_truth.strip()}"
    if kind == "math":
        return rf"\boxed{{{row.ground_truth.strip()}}}"
    # Code has no answer: its ground truth is tests, from which no program can be written.
    return _solution(row) if kind == "countdown" else Dropped("no_answer")


def _calls(ground_truth: str) -> str | Dropped:
    """Return the calls of a ground truth as `<tool_call>` blocks.

    If there are none, the correct answer is a text, which the ground truth does not contain: return `Dropped`.
    """
    expected = read_ground_truth(ground_truth)
    if not expected:
        return Dropped("no_answer")
    if "<tool_call>" in ground_truth:
        return ground_truth
    try:
        return hermes_text(checked_call(one.name, _arguments(one)) for one in expected)
    except CallsError:
        return Dropped("bad_ground_truth")


def _arguments(expected: Any) -> dict[str, Any]:
    """Return arguments that match an expected call.

    If the ground truth lists allowed values of each parameter, as in BFCL, the first is taken, and optional parameters
    are left out.
    """
    if isinstance(expected, PossibleCall):
        return {name: values[0] for name, values in expected.allowed.items() if "" not in values}
    return dict(expected.arguments)


def _solution(row: Row) -> str | Dropped:
    try:
        truth = json.loads(row.ground_truth)
        puzzle = {"numbers": truth.get("numbers", truth.get("nums")), "target": truth["target"]}
    except (ValueError, LookupError, AttributeError):
        return Dropped("bad_ground_truth")
    if not isinstance(puzzle["numbers"], list) or not all(type(number) is int for number in puzzle["numbers"]):
        return Dropped("bad_ground_truth")
    if len(puzzle["numbers"]) > MAX_SEARCHED:
        return Dropped("search_too_long")
    term = solve(puzzle["numbers"], puzzle["target"])
    return Dropped("no_solution") if term is None else solution_text(term)


def _accepted(kind: str, row: Row, answer: str) -> bool:
    mode = {"mode": _ACCEPTED_IN[kind]} if kind in _ACCEPTED_IN else {}
    extra = {name: row.extra[name] for name in ("tools",) if name in row.extra}
    return KINDS[kind].judge(answer, row.ground_truth, {**extra, **mode}).correct
