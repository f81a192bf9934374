"""BFCL's own multi-turn checker over JSON lines: runs under the interpreter of .env-bfcl, not ours.

A line in: {"case", "attempts"}; an attempt has, for each turn, its steps, each a list of [name, arguments]. A line out:
for each attempt the checker's error type, "" if it is valid. The steps before the checker are those of BFCL's runner.
"""

import json
import sys
from pathlib import Path

import bfcl_eval
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker
from bfcl_eval.model_handler.utils import convert_to_function_call

DATA = Path(bfcl_eval.__file__).parent / "data"


def rows(path):
    return {row["id"]: row for row in map(json.loads, (DATA / path).read_text(encoding="utf-8").splitlines())}


def verdict(case, truth, attempt, model):
    if len(attempt) != len(truth):
        return "multi_turn:force_terminated"
    decoded = [
        [calls for step in turn if (calls := convert_to_function_call([{name: given} for name, given in step]))]
        for turn in attempt
    ]
    before = set(vars(multi_turn_utils))
    checked = multi_turn_checker(decoded, truth, case, case["id"].rpartition("_")[0], model)
    for name in set(vars(multi_turn_utils)) - before:  # the instances that it keeps in its globals
        delattr(multi_turn_utils, name)
    return "" if checked["valid"] else checked["error_type"]


# It evaluates what the model wrote, which may print.
replies, sys.stdout = sys.stdout, sys.stderr
loaded = {}
number = 0
for line in sys.stdin:
    row = json.loads(line)
    category = row["case"].rpartition("_")[0]
    if category not in loaded:
        loaded[category] = (rows(f"BFCL_v4_{category}.json"), rows(f"possible_answer/BFCL_v4_{category}.json"))
    cases, truths = loaded[category]
    found = []
    for attempt in row["attempts"]:
        number += 1
        truth = truths[row["case"]]["ground_truth"]
        found.append(verdict(cases[row["case"]], truth, attempt, f"m{number}"))
    replies.write(json.dumps(found) + "\n")
