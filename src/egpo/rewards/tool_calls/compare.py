"""The calls of an answer against the expected ones: order free, multiplicity kept."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from egpo.rewards.tool_calls.calls import Call, canonical, same_call
from egpo.rewards.tool_calls.ground_truth import Expected
from egpo.rewards.tool_calls.pairing import Pairing
from egpo.rewards.tool_calls.possible_answers import PossibleCall, possible_call_fault
from egpo.rewards.tool_calls.tools import Toolbox, schema_fault


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An expected call that nothing answers, and the calls that answer nothing."""

    wanted: Call | PossibleCall
    left: Sequence[Call]


def calls_fault(calls: tuple[Call, ...], expected: Expected, tools: Toolbox | None) -> str:
    """Why the calls are not the expected ones, as a reason; "" if they are."""
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
    """Two multisets compared by counting, so that many calls cost no more than each by itself."""
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
    """The reason to give for an expected call that nothing answers: a slip in its arguments before a wrong name."""
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
