"""Rewards. In: the text of a response and the ground truth of its row. Out: a `Verdict` (reward, correct, reason).

score("gsm8k", "… #### 18", "18")        one response
score_many(rows)                         many responses, on every core
trl_reward("countdown")                  the same for TRL; `egpo.verl.reward` is the interface for verl

scoring.py      the tables of rewards and data sources (add a reward there), and `score`
named.py        samples from the rows of any host; rewards by name, users' functions included
user_functions.py  a user's reward function over the columns of a dataset, in TRL's form or for one response
batch.py        many rows; worker_pool.py, the processes that share them; trl.py, TRL's interface
plain_values.py numpy, torch and JSON values to plain Python; verdict.py, the result
answers.py      thinking, final answer and number in a text
tool_calls/, countdown.py, gsm8k.py, math/, code.py   the rewards; sandbox/ runs the programs for code.py
"""

from egpo.rewards.batch import score_many
from egpo.rewards.named import Sample
from egpo.rewards.scoring import DATA_SOURCES, REWARDS, reasons_of, score
from egpo.rewards.trl import trl_reward
from egpo.rewards.verdict import Verdict

__all__ = ["DATA_SOURCES", "REWARDS", "Sample", "Verdict", "reasons_of", "score", "score_many", "trl_reward"]
