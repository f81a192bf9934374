"""Audits of rewards: stored rollouts in, new verdicts and their differences from another reward out.

    replay.py           reads rollout files of egpo or verl, judges them again, and counts the verdicts
                        (`egpo audit rewards`)
    stored_episodes.py  plays stored episodes again in new instances of their environments (`egpo audit episodes`)

The audit of the sandbox is in `rewards/sandbox`.
"""

from egpo.audits.replay import Audit, Difference, Rollout, Tally, audit_rewards, read_rollouts
from egpo.audits.stored_episodes import EpisodeAudit, audit_episodes

__all__ = [
    "Audit",
    "Difference",
    "EpisodeAudit",
    "Rollout",
    "Tally",
    "audit_episodes",
    "audit_rewards",
    "read_rollouts",
]
