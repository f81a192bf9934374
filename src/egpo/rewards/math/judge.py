r"""Math: is the stated answer equal to the known one?

The answer is looked for after the thinking: the last `\boxed{…}`, else the line after the last `####`, else the last
`<answer>…</answer>`. It is right where it is spelled like the ground truth; rational numbers and words are compared as
such; anything else is math-verify's to decide. A part of the one is never looked for in the other.
"""

from functools import lru_cache
from numbers import Number

from egpo.errors import InputError
from egpo.rewards.answers import last_boxed, last_marked, last_tagged, plain_number
from egpo.rewards.math.explosive import is_explosive
from egpo.rewards.math.latex import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    as_value,
    as_word,
    bare_word,
    has_number_in_text,
    has_numbers_side_by_side,
    is_too_complex,
    normal_form,
    spell_out,
)
from egpo.rewards.math.notation import bare_unit_as_text, differs_in_notation
from egpo.rewards.math.pool import EXHAUSTED, FAILURES, MathPool
from egpo.rewards.math.shared import shared_pool
from egpo.rewards.math.worker import agree
from egpo.rewards.thinking import split_thinking
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS

MODES = ("binary",)
TIMEOUT_S = 5.0

_UNDECIDED = {
    **FAILURES,
    "gold_unparsable": "the ground truth cannot be parsed or is too complex, and the answer is spelled differently",
}
REASONS = {
    "correct": "equal to the ground truth",
    "wrong_answer": "not equal to the ground truth",
    "not_one_answer": "a second number beside the answer, as in `5 15` or `5\\text{ or 6}`, or words that change it",
    "unparsable": "not spelled like the ground truth, and no LaTeX that can be parsed",
    "too_complex": (
        f"longer than {MAX_CHARACTERS} characters, brackets deeper than {MAX_DEPTH}, or a power, factorial, binomial, "
        "sum, integral or limit too large to compute"
    ),
    "exhausts_checker": (
        "math-verify ran out of processor time or memory, or crashed, twice on this answer, and not on the ground truth"
    ),
    "no_answer": "nothing is marked as the answer, or what is marked is empty",
    "unclosed_thinking": "the thinking was opened and never closed: there is no answer",
    **_UNDECIDED,
}

_OTHER_ANSWER = "1"
_REASON_OF_REPLY = {"same": "correct", "different": "wrong_answer"}


def judge_math(
    text: str,
    ground_truth: str | float,
    *,
    tags: tuple[str, str] = THINK_TAGS,
    timeout_s: float = TIMEOUT_S,
    pool: MathPool | None = None,
) -> Verdict:
    """1.0 for an equal answer, 0.0 for any other; `failed` where the checker could not tell.

    `timeout_s` bounds the processor time of one comparison by math-verify, whose worker is killed when it is over.
    `pool` is the one that all callers in this process share, unless another is given.
    """
    # A missing value arrives as None or as a NaN, whose spelling would be taken for a word.
    if not isinstance(ground_truth, str | Number) or isinstance(ground_truth, bool) or ground_truth != ground_truth:
        raise _no_answer(repr(ground_truth))
    gold = gold_form(str(ground_truth))
    answer, reason = settle_by_spelling(text, gold, tags)
    if not reason:
        reply = _compare_in_worker(pool or shared_pool(), _spelled_gold(gold), answer, timeout_s)
        reason = _REASON_OF_REPLY.get(reply, reply)
    return Verdict(float(reason == "correct"), reason == "correct", reason, failed=reason in _UNDECIDED)


def _compare_in_worker(pool: MathPool, gold: str, answer: str, timeout_s: float) -> str:
    """The pool's reply, or `exhausts_checker`: an answer must not be able to choose that it is not judged.

    The control is the ground truth, compared with itself and with another answer: where that exhausts the worker as
    well, the response is not to blame, and the reply is the checker's failure.
    """
    reply = pool.compare(gold, answer, timeout_s)
    if reply not in EXHAUSTED:
        return reply
    reply = pool.compare(gold, answer, timeout_s)
    if reply not in EXHAUSTED:
        return reply
    controls = (pool.compare(gold, control, timeout_s) for control in (gold, _OTHER_ANSWER))
    return reply if any(control in FAILURES for control in controls) else "exhausts_checker"


@lru_cache(maxsize=65536)
def gold_form(ground_truth: str) -> str:
    r"""The normal form of a ground truth, bare, in a `\boxed{…}` or behind `####`; cached, for groups ask it again."""
    marked = _last_marked(ground_truth)
    form = normal_form(ground_truth if marked is None else marked)
    if not form or len(form) > MAX_CHARACTERS:
        raise _no_answer(repr(ground_truth))
    return form


@lru_cache(maxsize=65536)
def _spelled_gold(gold: str) -> str:
    return bare_unit_as_text(spell_out(gold))


def _no_answer(shown: str) -> InputError:
    what = f"{shown:.80} ({len(shown)} characters) is no answer"
    return InputError(
        what, where="math ground truth", fix=f"give a number or LaTeX of 1 to {MAX_CHARACTERS} characters"
    )


def settle_by_spelling(text: str, gold: str, tags: tuple[str, str] = THINK_TAGS) -> tuple[str, str]:
    """The stated answer as math-verify should read it, and the reason; no reason where math-verify has to decide."""
    thought = split_thinking(text, tags)
    if thought.opened and not thought.closed:
        return "", "unclosed_thinking"
    stated = _last_marked(thought.answer)
    if stated is None:
        stated = last_tagged(thought.answer) or ""
    if len(stated) > 2 * MAX_CHARACTERS:
        return "", "too_complex"
    answer = normal_form(stated)
    return _compare_spelling(answer, gold) if answer else ("", "no_answer")


def _last_marked(text: str) -> str | None:
    boxed = last_boxed(text)
    return last_marked(text) if boxed is None else boxed


def _compare_spelling(answer: str, gold: str) -> tuple[str, str]:
    number, gold_number = plain_number(answer), plain_number(gold)
    if answer == gold or (number is not None and number == gold_number):
        return answer, "correct"
    if number and gold_number and "." not in number + gold_number:
        return answer, "wrong_answer"
    word = as_word(gold)
    # Bare letters may be a product, `a \cdot b`: only another word is compared letter by letter with them.
    if word is not None and (gold.startswith("\\") or as_word(answer) is not None):
        return answer, "correct" if word == (as_word(answer) or bare_word(answer)) else "wrong_answer"
    if reason := _compare_values(answer, gold):
        return answer, reason
    answer, gold = bare_unit_as_text(spell_out(answer, gold)), _spelled_gold(gold)
    return answer, _compare_values(answer, gold) or _fault(answer, gold)


def _compare_values(answer: str, gold: str) -> str:
    """The reason where both are rational numbers, else ""."""
    value = as_value(answer)
    wanted = None if value is None else as_value(gold)
    if value is None or wanted is None:
        return ""
    is_rounded = value.decimal or wanted.decimal
    is_same = agree(value.exact, wanted.exact) if is_rounded else value.exact == wanted.exact
    return "correct" if is_same else "wrong_answer"


def _fault(answer: str, gold: str) -> str:
    """Why math-verify need not or must not be asked, as a reason; "" where it is to decide."""
    if answer == gold:
        return "correct"
    if differs_in_notation(answer, gold):
        return "wrong_answer"
    if is_too_complex(gold) or is_explosive(gold, gold):
        return "gold_unparsable"
    if is_too_complex(answer) or is_explosive(answer, gold):
        return "too_complex"
    return "not_one_answer" if has_numbers_side_by_side(answer) or has_number_in_text(answer, gold) else ""
