"""Where the thought ends and the answer starts, in text. (`egpo.segments` says the same in tokens.)"""

import re
import unicodedata
from dataclasses import dataclass

from egpo.tags import THINK_TAGS

# Letters and marks by their category, and yet nothing is seen of them: fillers, joiners, variation selectors.
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {
    chr(code) for code in (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}
# Control, format (zero-width space, soft hyphen, byte order mark), private, surrogate, unassigned; separators.
_UNSEEN_CATEGORIES = frozenset(("Cc", "Cf", "Co", "Cs", "Cn", "Zs", "Zl", "Zp"))

_PRINTABLE_ASCII = re.compile("[!-~]")


def is_blank(text: str) -> bool:
    """Whether nothing in the text can be seen: white space and invisible characters alone, or no character at all."""
    # Nearly every text has a printable ASCII character at its beginning.
    if _PRINTABLE_ASCII.search(text):
        return False
    return all(mark in _UNSEEN or unicodedata.category(mark) in _UNSEEN_CATEGORIES for mark in text)


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
