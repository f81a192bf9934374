"""Audits of rewards: stored rollouts in, new verdicts and their differences from another reward out.

    replay.py   reads rollout files of egpo or verl, judges them again, and counts the verdicts (`egpo audit rewards`)

The audit of the sandbox is in `rewards/sandbox`.
"""

from egpo.audits.replay import Audit, Difference, Rollout, Tally, audit_rewards, read_rollouts

__all__ = ["Audit", "Difference", "Rollout", "Tally", "audit_rewards", "read_rollouts"]
