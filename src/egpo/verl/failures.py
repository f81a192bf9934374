"""A reward that raises ends the run.

verl lets a response go whose rollout or reward raised: it logs a traceback, trains on the rest of the group, and an
asynchronous trainer samples in its place for ever.
"""

import functools
from typing import Any

from egpo.errors import EgpoError


def end_on_failures(replay_buffer: Any) -> None:
    """`replay_buffer` complains as soon as it learns that a prompt's responses failed."""
    synchronise = replay_buffer._sync_metadata_from_transfer_queue

    @functools.wraps(synchronise)
    def synchronise_and_look() -> None:
        synchronise()
        num_failed = sum(len(uids) for uids in replay_buffer.failure_keys.values())
        if num_failed:
            raise EgpoError(
                f"the rollout or the reward of {num_failed} prompt{'s' * (num_failed > 1)} raised",
                where="rollouts",
                fix="the traceback stands above, after `Error in _run_prompt`: mend what it names",
            )

    replay_buffer._sync_metadata_from_transfer_queue = synchronise_and_look
