"""Tool calls: text in, verdict out. Hermes and Python-list syntax, ordinary ground truths and BFCL's."""

from egpo.rewards.tool_calls.answers import Reading, read_answer
from egpo.rewards.tool_calls.calls import REASONS, Call
from egpo.rewards.tool_calls.ground_truth import read_ground_truth
from egpo.rewards.tool_calls.judge import MODES, judge_tool_calls

__all__ = ["MODES", "REASONS", "Call", "Reading", "judge_tool_calls", "read_answer", "read_ground_truth"]
