"""BFCL's multi-turn cases: their declared split, their gold trajectories, and the record of cases used in training.

BFCL is a test set, and it has 200 scenarios in four variants each: `multi_turn_miss_func_7` is `multi_turn_base_7` with
a function held back. So the split is by the scenario's number: 150 scenarios, in all variants, may be trained on; the
other 50 are for evaluation. It depends on nothing but the numbers.
"""

import ast
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from egpo.errors import EgpoError, InputError
from egpo.files import write_atomically
from egpo.tool_calls.calls import Call

VARIANTS = ("base", "miss_func", "miss_param", "long_context")
NUM_SCENARIOS, NUM_TRAINED = 200, 150
TRAINED_FILE = "bfcl_trained_cases.json"
"""Name of the file, in a run's or a model's folder, that lists the cases that were trained on."""
_CALLS_AT_ONCE = 8


@dataclass(frozen=True)
class BfclCase:
    """A case: what the user says in each turn, and the ground truth's calls of each turn."""

    id: str
    questions: tuple[tuple[dict[str, str], ...], ...]
    truth: tuple[tuple[Call, ...], ...]

    def gold_turns(self) -> list[str]:
        """Return the assistant's texts that make exactly the calls of the ground truth."""
        texts = []
        for calls in self.truth:
            groups = [calls[at : at + _CALLS_AT_ONCE] for at in range(0, len(calls), _CALLS_AT_ONCE)]
            texts += ["\n".join(call.hermes() for call in group) for group in groups]
            texts.append("Done.")
        return texts


def scenario_of(case: str) -> int:
    """Return the number of a case's scenario. InputError if it is not the id of a multi-turn case."""
    variant, _, number = case.removeprefix("multi_turn_").rpartition("_")
    if not case.startswith("multi_turn_") or variant not in VARIANTS or not number.isdecimal():
        fix = "give ids such as `multi_turn_base_0`"
        raise InputError(f"`{case[:60]}` is not a multi-turn case of BFCL", where="bfcl_multi_turn", fix=fix)
    return int(number)


@cache
def trained_scenarios() -> frozenset[int]:
    """Return the numbers of the scenarios that belong to training: the 150 with the lowest digests."""
    ranked = sorted(
        range(NUM_SCENARIOS), key=lambda n: hashlib.sha256(f"bfcl multi-turn scenario {n}".encode()).digest()
    )
    return frozenset(ranked[:NUM_TRAINED])


def split_of(case: str) -> str:
    return "train" if scenario_of(case) in trained_scenarios() else "test"


def read_cases(data: Path, variants: Sequence[str] = VARIANTS) -> list[BfclCase]:
    """Read the cases of these variants from BFCL's data folder, in BFCL's order."""
    parameters = {
        doc["name"]: tuple(doc["parameters"]["properties"])
        for path in sorted((data / "multi_turn_func_doc").glob("*.json"))
        for doc in _lines(path)
    }
    return [case for variant in variants for case in _read_variant(data, variant, parameters)]


def _read_variant(data: Path, variant: str, parameters: dict[str, tuple[str, ...]]) -> list[BfclCase]:
    name = f"BFCL_v4_multi_turn_{variant}.json"
    truths = {row["id"]: row["ground_truth"] for row in _lines(data / "possible_answer" / name)}
    return [
        BfclCase(
            row["id"],
            tuple(tuple(turn) for turn in row["question"]),
            tuple(tuple(_call(text, parameters) for text in turn) for turn in truths[row["id"]]),
        )
        for row in _lines(data / name)
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise EgpoError(f"BFCL's data cannot be read ({error})", where=str(path)) from error


def _call(text: str, parameters: dict[str, tuple[str, ...]]) -> Call:
    """Return a call of the ground truth with all arguments named; 160 of 4,625 calls give some by position."""
    node = ast.parse(text.strip(), mode="eval").body
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    names = parameters[node.func.id]
    by_position = {names[at]: ast.literal_eval(one) for at, one in enumerate(node.args)}
    by_name = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
    return Call(node.func.id, {**by_position, **by_name})


def write_trained_cases(folder: Path, cases: Iterable[str]) -> None:
    """Record in a run's or a model's folder which cases were trained on. Earlier records are kept."""
    known = {*read_trained_cases(folder), *cases}
    write_atomically(folder / TRAINED_FILE, json.dumps(sorted(known), indent=1) + "\n")


def read_trained_cases(folder: Path) -> list[str]:
    """Return the cases that the model in this folder was trained on; none without a record."""
    path = folder / TRAINED_FILE
    if not path.is_file():
        return []
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        value = None
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InputError(
            "this is not a list of cases", where=str(path), fix="restore it from the run that trained the model"
        )
    return value


def require_untrained(cases: Iterable[str], folder: Path, where: str = "bfcl_multi_turn") -> None:
    """Raise InputError if a case, or another variant of its scenario, was trained on by the model in this folder.

    A result on such cases is not an evaluation.
    """
    trained = {scenario_of(case) for case in read_trained_cases(folder)}
    seen = [case for case in cases if case.startswith("multi_turn_") and scenario_of(case) in trained]
    if seen:
        what = f"the model was trained on {len(seen)} of these cases, or on variants of them (`{seen[0]}`, ...)"
        fix = "evaluate on the test split of `bfcl_multi_turn` only"
        raise InputError(what, where=where, fix=fix)
