"""What egpo knows of the environment `bfcl_multi_turn`. Its code is `inside/hosted_cases.py`, run by BFCL's Python."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from egpo.environments.bfcl.interpreter import bfcl_python
from egpo.environments.protocol import Environment
from egpo.environments.records import TurnRecord
from egpo.errors import notify_once
from egpo.rewards.verdict import Verdict

REASONS = {
    "correct": "BFCL's checker accepts the state and the results of every turn",
    "force_terminated": "the episode ended before the user had said everything",
    "empty_turn_model_response": "a turn that needs calls has none",
    "instance_state_mismatch": "after a turn the state is not that of the ground truth",
    "execution_response_mismatch": "a result of the ground truth is not among the results so far",
}
"""The reasons of the verdict: BFCL's own error types, without their prefix."""


class BfclMultiTurn(Environment):
    """A multi-turn case of BFCL. The row's `case` is its id.

    Calls are passed on as they are written: as in BFCL, any public method of the case's classes may be called, and an
    exception is a result that begins with "Error during execution".
    """

    checks_calls: ClassVar[bool] = False
    hosted_file: ClassVar[Path] = Path(__file__).parent / "inside" / "hosted_cases.py"

    @staticmethod
    def hosted_python() -> Path:
        return bfcl_python(say=notify_once)  # on stderr: stdout may be a table or JSON

    def reset(self, *args: Any, **row: Any) -> str | None:
        raise NotImplementedError("the environment runs in a worker process")

    def verdict(self, turns: Sequence[TurnRecord]) -> Verdict | None:
        raise NotImplementedError("the environment runs in a worker process")
