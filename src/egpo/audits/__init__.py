"""Audits: stored rollouts through a reward once more. Knows config, tasks, rewards and data."""

from egpo.audits.replay import Audit, Difference, Rollout, Tally, audit_rewards, read_rollouts

__all__ = ["Audit", "Difference", "Rollout", "Tally", "audit_rewards", "read_rollouts"]
