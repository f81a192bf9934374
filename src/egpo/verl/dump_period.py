"""At which steps responses are dumped. No verl, no torch: the launcher says, the trainer asks."""

import os

VARIABLE = "EGPO_ROLLOUTS_EVERY"
"""Steps between dumps; the first and the last step's are always written. Unset: every step, as in verl."""


def is_due(step: int, last: int) -> bool:
    every = int(os.environ.get(VARIABLE, "1"))
    return step in (1, last) or bool(every and step % every == 0)
