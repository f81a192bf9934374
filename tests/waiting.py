"""Waiting for what another process does. The limit is for what never comes: a busy machine takes seconds for all."""

import re
import time
from pathlib import Path

LIMIT_S = 120.0
"""What is to be ended by others must go on for longer by itself: 600 s."""


def becomes_true(condition, within_s=LIMIT_S):
    """What `condition` gives as soon as that is true; at the end of the time, what it gives then."""
    deadline = time.monotonic() + within_s
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return value


def without_heartbeats(stderr):
    """The lines of stderr without those that a verb prints on a busy machine because it takes long."""
    return [line for line in stderr.splitlines() if not re.search(r", \d+ s$", line)]


def is_running(pid):
    """Neither gone nor a zombie that nobody has collected yet. It may end between the opening and the reading."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def all_end(pids):
    return becomes_true(lambda: not any(map(is_running, pids)))
