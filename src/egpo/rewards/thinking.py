"""Where the thought ends and the answer starts, in text. (`egpo.segments` says the same in tokens.)"""

from dataclasses import dataclass

from egpo.tags import THINK_TAGS


@dataclass(frozen=True)
class Thought:
    """A response cut at its first closing tag.

    `opened` tells whether the opening tag stood in the response itself: templates of thinking models write it at
    the end of the prompt. `closed` tells whether there was a closing tag at all.
    """

    thinking: str
    answer: str
    opened: bool
    closed: bool


def split_thinking(text: str, tags: tuple[str, str] = THINK_TAGS) -> Thought:
    """Cut at the **first** closing tag: a later one is part of the answer, say of an argument.

    Opened and never closed: all of it is a truncated thought, and there is no answer. No tag at all: all of it is
    the answer. An opening tag after the first closing one is part of the answer.
    """
    opening, closing = tags
    before, close, after = text.partition(closing)
    lead, open_, thought = before.partition(opening)
    if close:
        return Thought(thought if open_ else lead, after, opened=bool(open_), closed=True)
    if open_:
        return Thought(thought, "", opened=True, closed=False)
    return Thought("", text, opened=False, closed=False)
