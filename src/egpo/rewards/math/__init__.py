"""Math answers: by spelling first, by math-verify in killable worker processes otherwise."""

from egpo.rewards.math.judge import MODES, REASONS, TIMEOUT_S, judge_math
from egpo.rewards.math.pool import MathPool, shared_pool, use_pool

__all__ = ["MODES", "REASONS", "TIMEOUT_S", "MathPool", "judge_math", "shared_pool", "use_pool"]
