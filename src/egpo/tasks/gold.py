"""Writes the correct answer to a row of any verl parquet file, as text that the reward accepts.

Public files often have only `reward_model.ground_truth` and no answer. This module writes the assistant's turn from the
ground truth, and returns it only if the reward judges it correct.
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
"""Most numbers of a Countdown puzzle for which a solution is searched. With five, a failing search takes seconds."""
_BY_ABILITY = {"function_calling": "tool_calls", "math": "math"}
"""`ability` -> reward, for data sources that are not in the table of the rewards."""
_ACCEPTED_IN = {"tool_calls": "plain"}
"""Reward -> mode in which an answer is checked. `strict_think` requires thinking, which no ground truth contains."""


def gold_answer(row: Row) -> str | Dropped:
    """Return `extra_info.answer` if the row has it, else an answer written from the ground truth, else the reason why
    there is none."""
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
    """Return the calls as `<tool_call>` blocks. If the correct answer contains no call, its text is unknown."""
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
    """Return one valid set of arguments. Of BFCL's lists of allowed values, take the first; leave out optional
    parameters."""
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
