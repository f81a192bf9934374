"""Audits: stored rollouts through a reward once more. Knows config, tasks, rewards and data."""

from egpo.audits.replay import Audit, Difference, Tally, audit_rewards
from egpo.audits.rollouts import Rollout, read_rollouts

__all__ = ["Audit", "Difference", "Rollout", "Tally", "audit_rewards", "read_rollouts"]
