"""Rewards: text in, verdict out.

score("gsm8k", "… #### 18", "18")        one response
score_many(rows)                         many of them, on every core
trl_reward("countdown")                  the same for TRL; `egpo.verl.reward` has it for verl
"""

from egpo.rewards.batch import score_many
from egpo.rewards.named import Sample
from egpo.rewards.scoring import DATA_SOURCES, REWARDS, reasons_of, score
from egpo.rewards.trl import trl_reward
from egpo.rewards.verdict import Verdict

__all__ = ["DATA_SOURCES", "REWARDS", "Sample", "Verdict", "reasons_of", "score", "score_many", "trl_reward"]
