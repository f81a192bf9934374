"""The parts of a response: its thinking, its final answer, and the number that the answer states.

(`egpo.segments` finds the same parts in tokens.) Every function takes any string in linear time and returns None where
nothing is found. Numbers are compared as canonical numerals, never as `int` or `float`: exact, for strings of any
length.
"""

import re
import unicodedata
from dataclasses import dataclass

from egpo.tags import THINK_TAGS

# Characters that are invisible although their Unicode category is a letter or a mark: fillers, joiners, variation
# selectors.
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0") | {
    chr(code) for code in (*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))
}
# Unicode categories of invisible characters: control, format (zero-width space, soft hyphen, byte order mark),
# private, surrogate, unassigned, and separators.
_UNSEEN_CATEGORIES = frozenset(("Cc", "Cf", "Co", "Cs", "Cn", "Zs", "Zl", "Zp"))

_PRINTABLE_ASCII = re.compile("[!-~]")


def is_blank(text: str) -> bool:
    """Return whether the text is empty, or only white space and invisible characters."""
    # Most texts have a printable ASCII character near the beginning, and need no slower check.
    if _PRINTABLE_ASCII.search(text):
        return False
    return all(mark in _UNSEEN or unicodedata.category(mark) in _UNSEEN_CATEGORIES for mark in text)


@dataclass(frozen=True)
class Thought:
    """A response, split at its first closing thinking tag.

    `opened`: whether the opening tag is in the response itself; templates of thinking models write it at the end of
    the prompt. `closed`: whether there is a closing tag.
    """

    thinking: str
    answer: str
    opened: bool
    closed: bool


def split_thinking(text: str, tags: tuple[str, str] = THINK_TAGS) -> Thought:
    """Split a response at its **first** closing tag. Later tags are part of the answer, for example in an argument.

    If the thinking is opened and never closed, it was truncated, and the answer is empty. Without any tag, the whole
    response is the answer.
    """
    opening, closing = tags
    before, close, after = text.partition(closing)
    lead, open_, thought = before.partition(opening)
    if close:
        return Thought(thought if open_ else lead, after, opened=bool(open_), closed=True)
    if open_:
        return Thought(thought, "", opened=True, closed=False)
    return Thought("", text, opened=False, closed=False)


# Escaped characters are matched first, because the braces of `\{1, 2\}` do not open or close a group.
_BRACES = re.compile(r"\\.|\{+|\}+", re.DOTALL)
_BOX_OPENING = re.compile(r"\\(?:boxed|fbox)[ \t]*\{")
_BOX_COMMANDS = ("\\boxed", "\\fbox")
# ASCII digits only: `\d` and `str.isdigit` also take Arabic-Indic digits and superscripts.
_NUMERAL = re.compile(
    r"([-+−]?)[ \t]*\\?[$€£]?[ \t]*((?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+)"
)
# Words that, directly after a number, change its value.
_CHANGING_WORDS = (
    r"hundreds?|thousands?|lakhs?|lacs?|crores?|[a-z]*illion(?:s|en|es)?|milliards?|tausend|mille|mil|mill|bil|tril|thou"
    r"|grand|dozens?|squared|cubed|factorial|plus|minus|divided|multiplied|raised|mod|choose|pi|permille|times\s++[b-hj-z](?![a-z])"
    r"|hal(?:f|ves)(?!\s*+-?[a-z])|thirds"
    r"|(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|[a-z]{3,5}teen|[a-z]{3,5}tie|hundred|thousand|[a-z]*illion)ths"
    r"|negative(?!\s*+-?[a-z])"
)
CHANGING_WORD = re.compile(rf"(?i)\s*+-?(?:{_CHANGING_WORDS})(?![a-z])")
# Signs and words that change the value of the number before them.
# `18-inch`, `18/hour`, `18^\circ` have units; `**18** eggs` is bold.
_CHANGES_THE_NUMBER = re.compile(
    r"[*_`$\s~]*+(?:\\[,;:! ]|\\(?:text|mathrm|textrm|mbox)\{\s*+|\\[()])*+\s*+(?:"
    r"!|\^(?!\{?\\circ)|[+−×÷=<>±√π→≈∨∧∩∪≠≤≥∓⋅|‰]|-(?![A-Za-z]{2})|/(?!\s*[A-Za-z]{2})|\((?=\s*[+*/^(-])"
    r"|\\(?:times|cdot|div|pm|mp|sqrt|pi|frac|dfrac|tfrac|over|choose|ast|le|ge|lt|gt|neq?|leq|geq|approx|lor|vee"
    r"|(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|lg|exp|lim|sum|prod|int|max|min|gcd|det|lfloor|lceil|binom|begin"
    r"|[bp]?mod|cup|cap|land|wedge|to|(?:long)?(?:right|left)arrow|(?:Long)?(?:Right|Left)arrow|implies|iff|sim|simeq"
    r"|equiv|cong|infty|alpha|beta|[gG]amma|[dD]elta|epsilon|zeta|theta|lambda|sigma|phi|omega)"
    r"(?![A-Za-z])"
    r"|(?:[kKMB]|bn|mn|mln|[xyzXYZ])(?![A-Za-z])|[십백천만억조]"
    rf"|-?(?i:{_CHANGING_WORDS}|or|not"
    r"|(?:and|&)\s+(?:a|an|one|two|three)[\s-]+(?:half|third|thirds|quarters?|fourths?))(?![A-Za-z]))"
    r"|\*{1,2}[A-Za-z(\\]|\s++\*{1,2}\s|[,;?(\s]++(?i:or|not)(?![A-Za-z])"
)
_DIGIT_WORDS = "two|three|four|five|six|seven|eight|nine"
# Number words, except in a unit (`ten-dollar bills`). `one` counts only after a connective, as in `18 or one`: in
# `each one` it is not a number.
NUMBER_WORD = re.compile(
    rf"(?i)(?<![a-z])(?:(?:zero|{_DIGIT_WORDS}|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|twenty|thirty"
    r"|fou?rty|fifty|sixty|seventy|eighty|ninety)(?!-?[a-z])|twice|thrice|doubled|tripled|quadrupled|halved"
    r"|(?:plus|minus|versus|vs)\s++[b-hj-z]"
    r"|or\s++(?:none|nothing|neither|more|less|fewer|so|else|maybe|perhaps|possibly"
    r"|(?:an?\s++)?(?:hundred|thousand|[a-z]{1,9}illion|lakh|crore|dozen))"
    rf"|(?:twen|thir|fou?r|fif|six|seven|eigh|nine)ty-(?:one|{_DIGIT_WORDS})"
    r"|(?:and|or|to|plus|minus|times|point|by)\s++one(?!-?[a-z]))(?![a-z])|[,/&+–—-]\s*+one(?!-?[a-z])",
)
_DRESSING = " \t\r\n$€£*_`\\"
_MARKER = "####"

MAX_NUMERAL = 200
"""The maximum length of a numeral, with its sign and currency, in characters. A longer one is not read."""


def last_tagged(text: str, tag: str = "answer") -> str | None:
    """Return the content of the last complete `<answer>…</answer>`; an opening tag that is never closed is ignored."""
    end = text.rfind(f"</{tag}>")
    start = text.rfind(f"<{tag}>", 0, end) if end >= 0 else -1
    return text[start + len(tag) + 2 : end] if start >= 0 else None


def last_marked(text: str) -> str | None:
    """Return the text after the last `####` on the same line or, if that is empty, the next line that is not empty."""
    _, marker, rest = text.rpartition(_MARKER)
    return rest.strip().partition("\n")[0] if marker else None


def last_bold(text: str) -> str | None:
    """Return the text between the last two `**`."""
    end = text.rfind("**")
    start = text.rfind("**", 0, end) if end >= 0 else -1
    return text[start + 2 : end] if start >= 0 else None


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last complete `\boxed{…}` or `\fbox{…}`; of nested boxes, that of the innermost.

    Takes linear time: if the last box is never closed, an earlier one can only have been closed before the last one
    began, so that each part of the text is read once.
    """
    stop = len(text)
    places = {command: text.rfind(command) for command in _BOX_COMMANDS}
    while (start := max(places.values())) >= 0:
        opening = _BOX_OPENING.match(text, start, stop)
        end = _closing_brace(text, opening.end(), stop) if opening else -1
        if opening and end >= 0:
            return text[opening.end() : end]
        stop = start
        # Only the same command is searched for again: searching for both would take n² time.
        command = next(command for command, place in places.items() if place == start)
        places[command] = text.rfind(command, 0, stop)
    return None


def _closing_brace(text: str, start: int, stop: int) -> int:
    """Return the position of the brace that closes the one opened just before `start`, or -1."""
    depth = 1
    for run in _BRACES.finditer(text, start, stop):
        length = run.end() - run.start()
        symbol = text[run.start()]
        if symbol == "{":
            depth += length
        elif symbol == "}":
            if depth <= length:
                return run.start() + depth - 1
            depth -= length
    return -1


def canonical_numeral(sign: str, digits: str) -> str:
    """Return the canonical numeral: `1,080.50` and `01080.5` are `1080.5`; `18.` and `18.00` are `18`; `-0` is `0`."""
    whole, _, decimals = digits.replace(",", "").partition(".")
    whole, decimals = whole.lstrip("0") or "0", decimals.rstrip("0")
    number = f"{whole}.{decimals}" if decimals else whole
    return f"-{number}" if sign in ("-", "−") and number != "0" else number


def plain_number(text: str) -> str | None:
    """Return the canonical numeral of a text that is one number, perhaps with a sign and a currency; else None."""
    found = _NUMERAL.fullmatch(text) if len(text) <= MAX_NUMERAL else None
    return found and canonical_numeral(found[1], found[2])


def read_number(text: str) -> str | None:
    r"""Return the one number that a short answer states, as a canonical numeral; None if there is not exactly one.

    The number comes first; only white space, a currency sign, `*`, `_`, a backtick or a backslash may precede it.
    Commas must group thousands (`1,8` is not 18). A unit or a full stop after it is ignored (`18%`, `18 apples`). The
    rest contains no further numeral in any script (`18/19`, `1e2`, `18 or 19`, `18²`, `18½`), no English number
    word (`18 and seventeen`, `18 twice`), and nothing that changes the value directly after the number: an operator,
    `!`, `k`, `million`, `lakh`, `thirds` or `or`.
    """
    body = text.strip(_DRESSING).replace("{,}", ",")
    found = _NUMERAL.match(body, 0, MAX_NUMERAL)
    if found is None or found.end() == MAX_NUMERAL or _changes_the_number(body, found.end()):
        return None
    return canonical_numeral(found[1], found[2])


def _changes_the_number(body: str, end: int) -> bool:
    rest = body[end:]
    if not rest:
        return False
    return (
        any(map(str.isnumeric, rest))
        or _CHANGES_THE_NUMBER.match(rest) is not None
        or NUMBER_WORD.search(rest) is not None
    )
