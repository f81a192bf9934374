"""The tool-call reward. In: a response and the expected calls of its row. Out: a verdict.

ground_truth.py      the expected calls, and the calls of the response after its thinking (read by `egpo.tool_calls`)
tools.py             the tools of a row: JSON-schema specs, and which rule the arguments of a call break
possible_answers.py  BFCL's ground truths, `[{function: {parameter: [allowed values]}}]`
judge.py             the comparison of calls, the modes of the reward, and the reasons of its verdicts
"""

from egpo.rewards.tool_calls.ground_truth import read_ground_truth
from egpo.rewards.tool_calls.judge import MODES, REASONS, judge_tool_calls
from egpo.tool_calls.answers import AnswerReading, read_answer
from egpo.tool_calls.calls import Call

__all__ = ["MODES", "REASONS", "AnswerReading", "Call", "judge_tool_calls", "read_answer", "read_ground_truth"]
