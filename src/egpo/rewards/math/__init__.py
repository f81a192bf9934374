"""Math answers: by spelling first, by math-verify in killable worker processes otherwise."""

from egpo.rewards.math.judge import REASONS, TIMEOUT_S, judge_math
from egpo.rewards.math.pool import MathPool
from egpo.rewards.math.shared import shared_pool, use_pool

__all__ = ["REASONS", "TIMEOUT_S", "MathPool", "judge_math", "shared_pool", "use_pool"]
