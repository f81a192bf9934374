"""The tool-call reward."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from egpo.errors import InputError, nearest
from egpo.rewards.tool_calls.answers import Reading
from egpo.rewards.tool_calls.compare import calls_fault
from egpo.rewards.tool_calls.form import read_after_thinking, read_unthinking, stray_tag, thinking_fault
from egpo.rewards.tool_calls.ground_truth import Expected, read_ground_truth
from egpo.rewards.tool_calls.tools import Toolbox, toolbox
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS

Mode = Literal["strict_think", "plain", "shaped"]
Tools = str | Mapping[str, Any] | Sequence[Any]

FORMAT_REWARD, CALLS_REWARD = 0.1, 1.0


def judge_tool_calls(
    text: str,
    ground_truth: Any,
    *,
    mode: Mode = "strict_think",
    tools: Tools | None = None,
    tags: tuple[str, str] = THINK_TAGS,
) -> Verdict:
    """Whether a response makes the expected calls.

    strict_think  1.0 if a well-formed thinking block comes first and every call is right, else 0.0
    plain         1.0 if every call is right, else 0.0; a thought is passed over, and not asked for
    shaped        0.1 for the form plus 1.0 for the calls; `correct` needs both

    Calls count after the thought only. Where none is expected, an answer without calls is right.
    `tools` (JSON-schema function specs) refine the reasons, and give the types by which BFCL's answers are judged.
    """
    if mode not in _JUDGES:
        raise InputError(f"unknown mode `{mode}`", where="judge_tool_calls", fix=nearest(mode, _JUDGES))
    expected = read_ground_truth(ground_truth)
    return _JUDGES[mode](text, expected, toolbox(tools), tags)


def _judge_strict(text: str, expected: Expected, tools: Toolbox | None, tags: tuple[str, str]) -> Verdict:
    fault = thinking_fault(text, tags)
    if fault:
        return _verdict(fault)
    reading = read_after_thinking(text, tags)
    return _verdict("thinking_tag_in_answer" if stray_tag(reading, tags) else _calls_fault(reading, expected, tools))


def _judge_plain(text: str, expected: Expected, tools: Toolbox | None, tags: tuple[str, str]) -> Verdict:
    return _verdict(_calls_fault(read_unthinking(text, tags), expected, tools))


def _judge_shaped(text: str, expected: Expected, tools: Toolbox | None, tags: tuple[str, str]) -> Verdict:
    reading = read_after_thinking(text, tags)
    form_fault = thinking_fault(text, tags) or ("thinking_tag_in_answer" if stray_tag(reading, tags) else reading.fault)
    fault = _calls_fault(reading, expected, tools)
    # The form of calls cannot be right where calls were due and none was made.
    well_formed = not form_fault and fault != "no_call"
    parts = {"format": FORMAT_REWARD * well_formed, "calls": CALLS_REWARD * (not fault)}
    reason = form_fault or fault or "correct"
    return Verdict(sum(parts.values()), reason == "correct", reason, parts=parts)


_JUDGES = {"strict_think": _judge_strict, "plain": _judge_plain, "shaped": _judge_shaped}
MODES = tuple(_JUDGES)


def _calls_fault(reading: Reading, expected: Expected, tools: Toolbox | None) -> str:
    return reading.fault or calls_fault(reading.calls, expected, tools)


def _verdict(fault: str) -> Verdict:
    return Verdict(0.0, False, fault) if fault else Verdict(1.0, True, "correct")
