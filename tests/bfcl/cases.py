"""The single-turn Python cases of BFCL, and calls that are right by their possible answers."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ENVIRONMENT = Path(__file__).resolve().parents[2] / ".env-bfcl"
PYTHON = ENVIRONMENT / "bin/python"

# Java and JavaScript are left out: there a value is source text of that language (`new int[]{1, 2}`), converted by
# a parser of its own before it is compared. Our rewards judge JSON values.
CATEGORIES = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
)

Calls = list[dict[str, dict[str, Any]]]


@dataclass(frozen=True, eq=False)
class Case:
    id: str
    category: str
    tools: list[dict[str, Any]]
    answers: list[dict[str, dict[str, list[Any]]]]

    @cached_property
    def tools_json(self) -> str:
        return json.dumps(self.tools)

    @cached_property
    def answers_json(self) -> str:
        return json.dumps(self.answers)


def cases() -> Iterator[Case]:
    (data,) = ENVIRONMENT.glob("lib/python3*/site-packages/bfcl_eval/data")
    for category in CATEGORIES:
        answers = {row["id"]: row["ground_truth"] for row in _rows(data / f"possible_answer/BFCL_v4_{category}.json")}
        for row in _rows(data / f"BFCL_v4_{category}.json"):
            yield Case(row["id"], category, row["function"], answers[row["id"]])


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def right_calls(case: Case, *, pick: int, leave_out: bool) -> Calls:
    """Calls by the answers: the first (0) or last (-1) allowed values, with or without what may be left out."""
    return [_right_call(case.tools, *call, pick, leave_out) for answer in case.answers for call in answer.items()]


def _right_call(tools: list[dict[str, Any]], name: str, allowed: Any, pick: int, leave_out: bool) -> dict[str, Any]:
    spec = next(tool for tool in tools if tool["name"] == name)["parameters"]
    documented = {key: values for key, values in allowed.items() if key in spec["properties"]}
    chosen = _chosen(documented, pick, leave_out, spec["required"])
    return {name: {key: _value(value, pick, leave_out) for key, value in chosen.items()}}


def _chosen(allowed: dict[str, list[Any]], pick: int, leave_out: bool, required: Sequence[str] = ()) -> dict[str, Any]:
    """One allowed value for each key, but for the keys that have none to give or may be left out."""
    chosen = {}
    for key, values in allowed.items():
        given = [value for value in values if value != ""]
        # "" says "may be left out"; alone, and for a required parameter, it is the value itself.
        if not given and key in required:
            given = values
        if given and not (leave_out and "" in values and key not in required):
            chosen[key] = given[pick]
    return chosen


def _value(allowed: Any, pick: int, leave_out: bool) -> Any:
    """A dictionary among the answers, also in a list, allows values for each key. Below that, values are values."""
    if isinstance(allowed, dict):
        return _chosen(allowed, pick, leave_out)
    return [_value(item, pick, leave_out) for item in allowed] if isinstance(allowed, list) else allowed
