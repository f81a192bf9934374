"""The math reward. In: a response and the known answer. Out: a verdict.

judge.py     finds the stated answer, decides by its text where it can, and refuses endless computations
notation.py  the normal form of a short LaTeX answer: numbers, words, units
pool.py      worker processes that compare two answers with math-verify and can be killed
worker.py    what such a process runs: math-verify, with exact comparison of decimals
"""

from egpo.rewards.math.judge import MODES, REASONS, TIMEOUT_S, judge_math
from egpo.rewards.math.pool import MathPool, shared_pool, use_pool

__all__ = ["MODES", "REASONS", "TIMEOUT_S", "MathPool", "judge_math", "shared_pool", "use_pool"]
