r"""The GSM8K reward, which compares the number after `####` with the right one.

The answer is searched for after the thinking: the line after the last `####`; if that states no number, the last
`\boxed{…}`; if that states none, the last `**…**`. `egpo.rewards.answers.read_number` defines what a number is.
"""

from functools import lru_cache

from egpo.errors import InputError, nearest
from egpo.rewards.answers import last_bold, last_boxed, last_marked, read_number, split_thinking
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS

MODES = ("binary", "shaped")

REASONS = {
    "correct": "the number is the right one",
    "wrong_number": "the answer is a number, and not the right one",
    "not_a_number": "a text is marked as the answer (####, box or bold), and it states no number or several",
    "no_answer": "no text is marked as the answer",
    "unclosed_thinking": "the thinking was opened and never closed: there is no answer",
}

# Shaped rewards: 1.1 for the right number, 0.1 for another number, 0.05 for a marker alone. Every row has all parts:
# verl and TRL need the same keys in every row.
_NOTHING = {"answer": 0.0, "number": 0.0, "marker": 0.0}
_SHAPED = {
    "correct": {"answer": 1.0, "number": 0.1, "marker": 0.0},
    "wrong_number": {"answer": 0.0, "number": 0.1, "marker": 0.0},
    "not_a_number": {"answer": 0.0, "number": 0.0, "marker": 0.05},
}


def judge_gsm8k(
    text: str, ground_truth: str | int | float, *, mode: str = "binary", tags: tuple[str, str] = THINK_TAGS
) -> Verdict:
    """Return the verdict on a response. Reward in `binary` mode: 1.0 for the right number, 0.0 for anything else.

    In `shaped` mode: 1.1 for the right number, 0.1 for another number, 0.05 for a marked text that states no number,
    else 0.0. The ground truth is a whole solution, of which the text after the last `####` counts, or the number alone.
    """
    if mode not in MODES:
        raise InputError(f"unknown mode `{mode}`", where="gsm8k", fix=nearest(mode, MODES))
    reason = _compare(text, gold_number(str(ground_truth)), tags)
    correct = reason == "correct"
    if mode == "binary":
        return Verdict(float(correct), correct, reason)
    parts = dict(_SHAPED.get(reason, _NOTHING))
    return Verdict(sum(parts.values()), correct, reason, parts=parts)


@lru_cache(maxsize=65536)
def gold_number(ground_truth: str) -> str:
    """Return the number in a ground truth as a canonical numeral. Cached: samples of a group share a ground truth."""
    marked = last_marked(ground_truth)
    number = read_number(ground_truth if marked is None else marked)
    if number is None:
        raise InputError(
            f"there is no number in {ground_truth[-80:]!r}",
            where="gsm8k ground truth",
            fix="give the number, or the solution text with `#### number` at its end",
        )
    return number


def _compare(text: str, gold: str, tags: tuple[str, str]) -> str:
    thought = split_thinking(text, tags)
    if thought.opened and not thought.closed:
        return "unclosed_thinking"
    marked = False
    for find in (last_marked, last_boxed, last_bold):
        found = find(thought.answer)
        marked = marked or found is not None
        number = None if found is None else read_number(found)
        if number is not None:
            return "correct" if number == gold else "wrong_number"
    return "not_a_number" if marked else "no_answer"
