"""The tool-call reward. It compares the calls of a response with the expected calls as multisets: order is ignored.

In BFCL's ground truths a call may match several expected calls. The pairs are then found as a maximum matching of a
bipartite graph.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from egpo.errors import InputError, nearest
from egpo.rewards.tool_calls.ground_truth import (
    Expected,
    read_after_thinking,
    read_ground_truth,
    read_unthinking,
    stray_tag,
    thinking_fault,
)
from egpo.rewards.tool_calls.possible_answers import PossibleCall, possible_call_fault
from egpo.rewards.tool_calls.tools import Toolbox, schema_fault, toolbox
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS
from egpo.tool_calls.answers import AnswerReading
from egpo.tool_calls.calls import Call, canonical, same_call

REASONS: dict[str, str] = {
    "correct": "the format and every call are right",
    "no_thinking": "a thinking block is required and the response closes none",
    "thinking_not_closed": "the thinking was opened and never closed, so there is no answer",
    "empty_thinking": "the thinking block has only white space and invisible characters",
    "text_before_thinking": "there is text before the opening thinking tag",
    "nested_thinking": "there is a second opening tag inside the thinking",
    "thinking_tag_in_answer": "there is a thinking tag in the answer, outside of any call",
    "no_call": "calls were expected and the answer has none",
    "unexpected_call": "no call was expected and the answer has one",
    "malformed_call": "a call that cannot be read: broken syntax, duplicate keys, NaN, a value that is not a literal",
    "unclosed_call": "a call that starts and never ends, as in a truncated answer",
    "text_after_list": "a Python list of calls has to be the whole answer, and text follows it",
    "bare_call": "a call without the list or the tags that it needs",
    "mixed_syntax": "a Python list of calls and tagged calls in one answer",
    "over_limit": "a call or an answer that is nested deeper, has longer numbers, or is longer than the reader allows",
    "too_few_calls": "fewer calls than expected",
    "too_many_calls": "more calls than expected",
    "unknown_tool": "a function that is not among the tools",
    "wrong_name": "a function other than the expected one",
    "unknown_argument": "an argument that the function does not take",
    "missing_argument": "an argument that the function requires is missing",
    "wrong_type": "an argument of a type that the function does not take",
    "wrong_arguments": "the names of the arguments differ from those of the expected call",
    "wrong_value": "the names of the arguments are right, and a value is not the expected one",
}

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
    """Return the verdict on whether a response makes the expected calls.

    strict_think  1.0 if a well-formed thinking block comes first and every call is right, else 0.0
    plain         1.0 if every call is right, else 0.0; a thinking block is ignored, and not required
    shaped        0.1 for the form plus 1.0 for the calls; `correct` needs both

    Only calls after the thinking block count. Where no call is expected, an answer without calls is right.
    `tools` (JSON-schema function specs) make the reasons more precise, and give the types for BFCL's answers.
    """
    if mode not in _JUDGES:
        raise InputError(f"unknown mode `{mode}`", where="judge_tool_calls", fix=nearest(mode, _JUDGES))
    expected = read_ground_truth(ground_truth)
    return _JUDGES[mode](text, expected, None if tools is None else toolbox(tools), tags)


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
    # The format cannot be right where calls were expected and none was made.
    well_formed = not form_fault and fault != "no_call"
    parts = {"format": FORMAT_REWARD * well_formed, "calls": CALLS_REWARD * (not fault)}
    reason = form_fault or fault or "correct"
    return Verdict(sum(parts.values()), reason == "correct", reason, parts=parts)


_JUDGES = {"strict_think": _judge_strict, "plain": _judge_plain, "shaped": _judge_shaped}
MODES = tuple(_JUDGES)


def _calls_fault(reading: AnswerReading, expected: Expected, tools: Toolbox | None) -> str:
    return reading.fault or calls_fault(reading.calls, expected, tools)


def _verdict(fault: str) -> Verdict:
    return Verdict(0.0, False, fault) if fault else Verdict(1.0, True, "correct")


class Pairing:
    """A one-to-one pairing of `num_calls` calls with answers, both given by index. `fits(call, answer)` returns whether
    the two may be paired."""

    def __init__(self, num_calls: int, fits: Callable[[int, int], bool]) -> None:
        self._calls = range(num_calls)
        self._fits = fits
        self._answer_of: dict[int, int] = {}
        self._call_of: dict[int, int] = {}

    def free_calls(self) -> list[int]:
        return [call for call in self._calls if call not in self._answer_of]

    def add(self, answer: int) -> bool:
        """Find a call for one more answer, changing earlier pairs if needed (an augmenting path, breadth first).

        Return False if there is no such call: then no pairing covers all the answers so far.
        """
        reached_from: dict[int, int] = {}
        queue = [answer]
        for seeker in queue:
            for call in self._calls:
                if call in reached_from or not self._fits(call, seeker):
                    continue
                reached_from[call] = seeker
                if call not in self._answer_of:
                    self._move(call, reached_from)
                    return True
                queue.append(self._answer_of[call])
        return False

    def _move(self, free: int | None, reached_from: dict[int, int]) -> None:
        """Pair each answer on the augmenting path with the call that it reached, from the call `free` back to the
        start of the path."""
        while free is not None:
            taker = reached_from[free]
            former = self._call_of.get(taker)
            self._call_of[taker], self._answer_of[free] = free, taker
            free = former


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An expected call that no call of the response matches, and the unmatched calls of the response (`left`)."""

    wanted: Call | PossibleCall
    left: Sequence[Call]


def calls_fault(calls: tuple[Call, ...], expected: Expected, tools: Toolbox | None) -> str:
    """Return the reason why the calls are not the expected ones; "" if they are."""
    if not expected or not calls:
        return "no_call" if expected else "unexpected_call" if calls else ""
    if len(calls) != len(expected):
        return "too_few_calls" if len(calls) < len(expected) else "too_many_calls"
    if isinstance(expected[0], PossibleCall):
        unanswered = _find_unpaired(calls, expected, tools)
    else:
        unanswered = _find_uncounted(calls, expected)
    return _nearest_fault(unanswered, tools) if unanswered else ""


def _find_uncounted(calls: Sequence[Call], expected: Sequence[Call]) -> Unanswered | None:
    """Return an expected call that the response makes too few times, or None. Calls are counted, in linear time."""
    if all(map(same_call, calls, expected)):
        return None
    if len(calls) == 1:
        return Unanswered(expected[0], calls)
    wanted, made = _by_form(expected), _by_form(calls)
    for form, alike in wanted.items():
        if len(alike) > len(made.get(form, ())):
            left = [call for other, ones in made.items() for call in ones[len(wanted.get(other, ())) :]]
            return Unanswered(alike[0], left)
    return None


def _by_form(calls: Sequence[Call]) -> dict[Hashable, list[Call]]:
    alike: dict[Hashable, list[Call]] = {}
    for call in calls:
        alike.setdefault((call.name, canonical(call.arguments)), []).append(call)
    return alike


def _find_unpaired(calls: Sequence[Call], answers: Sequence[PossibleCall], tools: Toolbox | None) -> Unanswered | None:
    def fits(call: int, answer: int) -> bool:
        return not possible_call_fault(calls[call], answers[answer], tools)

    pairing = Pairing(len(calls), fits)
    for index, answer in enumerate(answers):
        if not pairing.add(index):
            return Unanswered(answer, [calls[free] for free in pairing.free_calls()])
    return None


def _nearest_fault(unanswered: Unanswered, tools: Toolbox | None) -> str:
    """Return the reason why an expected call has no match: a fault of the arguments if an unmatched call has the right
    name, else a wrong name."""
    wanted, left = unanswered.wanted, unanswered.left
    namesake = next((call for call in left if call.name == wanted.name), None)
    if namesake is not None:
        return _fault(namesake, wanted, tools)
    return "unknown_tool" if tools is not None and any(call.name not in tools for call in left) else "wrong_name"


def _fault(call: Call, wanted: Call | PossibleCall, tools: Toolbox | None) -> str:
    if isinstance(wanted, PossibleCall):
        return possible_call_fault(call, wanted, tools)
    tool = tools.tool(call.name) if tools else None
    broken_rule = schema_fault(call.arguments, tool) if tool else ""
    same_keys = call.arguments.keys() == wanted.arguments.keys()
    return broken_rule or ("wrong_value" if same_keys else "wrong_arguments")
