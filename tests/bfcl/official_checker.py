"""BFCL's own decoder and AST checker over JSON lines: runs under the interpreter of .env-bfcl, not ours.

A line in: {"tools", "answers", "category", "attempts"}. An attempt is a text (a Python list of calls, decoded as BFCL
decodes it) or a list of calls ([{name: arguments}], as BFCL gets it from tagged calls). A line out: for each attempt
whether it is valid, or the name of the exception that the checker raised.
"""

import json
import sys
from types import ModuleType, SimpleNamespace

# The checker imports the table of all models, and with it every vendor's API client, to ask one thing of one entry:
# whether the model's API forbids dots in names. Nothing else of that table has to do with a verdict.
models = ModuleType("bfcl_eval.constants.model_config")
models.MODEL_CONFIG_MAPPING = {"any": SimpleNamespace(underscore_to_dot=False)}
sys.modules[models.__name__] = models

from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402
from bfcl_eval.model_handler.utils import ast_parse  # noqa: E402


def verdict(row: dict, attempt: str | list) -> bool | str:
    try:
        calls = ast_parse(attempt) if isinstance(attempt, str) else attempt
        return ast_checker(row["tools"], calls, row["answers"], Language.PYTHON, row["category"], "any")["valid"]
    except Exception as error:  # the boundary: what the checker raises is reported, and the test counts it
        return type(error).__name__


for line in sys.stdin:
    row = json.loads(line)
    sys.stdout.write(json.dumps([verdict(row, attempt) for attempt in row["attempts"]]) + "\n")
