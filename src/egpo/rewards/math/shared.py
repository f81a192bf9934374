"""The pool that every caller in a process shares, made when it is first asked for."""

import atexit
import os
import threading

from egpo.rewards.math.pool import MathPool

_pool: MathPool | None = None
_lock = threading.Lock()


def shared_pool() -> MathPool:
    """The pool in use; one of two workers where none was set."""
    global _pool
    with _lock:
        if _pool is None:
            _pool = MathPool()
        return _pool


def use_pool(pool: MathPool | None) -> None:
    """Share this pool from now on (None: a new one, when it is needed), and close the one before."""
    global _pool
    with _lock:
        before, _pool = _pool, pool
    if before is not None and before is not pool:
        before.close()


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


atexit.register(use_pool, None)
# A fork may happen while another thread holds the lock, and would wait for that thread for ever.
os.register_at_fork(after_in_child=_renew_lock)
