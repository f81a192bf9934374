"""The form of a response: its thought, and whether that is well formed."""

from egpo.rewards.thinking import is_blank, split_thinking
from egpo.rewards.tool_calls.answers import Reading, inside_a_call, read_answer


def thinking_fault(text: str, tags: tuple[str, str]) -> str:
    """What is wrong with a thinking block that was asked for, as a reason; "" for a well-formed one.

    One block, not empty, opened by the prompt or as the first thing of the response, and closed.
    """
    thought = split_thinking(text, tags)
    if not thought.closed:
        return "thinking_not_closed" if thought.opened else "no_thinking"
    if thought.opened and text[: text.find(tags[0])].strip():
        return "text_before_thinking"
    if tags[0] in thought.thinking:
        return "nested_thinking"
    return "empty_thinking" if is_blank(thought.thinking) else ""


def read_after_thinking(text: str, tags: tuple[str, str]) -> Reading:
    """The calls after the thought. A thought that was cut off has no answer, not an answer without calls."""
    thought = split_thinking(text, tags)
    if thought.opened and not thought.closed:
        return Reading(fault="thinking_not_closed")
    return read_answer(thought.answer)


def read_unthinking(text: str, tags: tuple[str, str]) -> Reading:
    """The calls of a response of which no thought was asked. A thought may still be there, and is passed over.

    But where the first thinking tag stands in an argument of a call, it is that argument's text and no thought's.
    """
    first_tag = min((at for at in map(text.find, tags) if at >= 0), default=-1)
    if first_tag >= 0 and inside_a_call(text, first_tag):
        return read_answer(text)
    return read_after_thinking(text, tags)


def stray_tag(reading: Reading, tags: tuple[str, str]) -> bool:
    """Whether a thinking tag stands in the answer, outside of any call."""
    return tags[0] in reading.around or tags[1] in reading.around
