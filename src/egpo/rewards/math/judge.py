r"""The math reward: whether the stated answer equals the known one.

The answer is searched for after the thinking: the last `\boxed{…}`, else the line after the last `####`, else the last
`<answer>…</answer>`. An answer that is written like the ground truth is right; rational numbers are compared exactly,
words letter by letter; math-verify decides anything else. No part of one side is searched for in the other.

`is_explosive` recognises, by their text, answers that a computer algebra system would compute for ever. math-verify
evaluates what it reads: `9^{9^{9^9}}`, `9999999!` or a sum of a billion terms would keep a worker busy until it is
killed. The verdict would be that the checker failed, so that a response could choose not to be judged. The rules
overestimate sizes from the numerals, without computing anything large.
"""

import re
from functools import lru_cache
from math import comb, inf, prod
from numbers import Number

from egpo.errors import InputError
from egpo.rewards.answers import last_boxed, last_marked, last_tagged, plain_number, split_thinking
from egpo.rewards.math.notation import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    as_value,
    as_word,
    bare_unit_as_text,
    bare_word,
    differs_in_notation,
    has_number_in_text,
    has_numbers_side_by_side,
    is_too_complex,
    normal_form,
    spell_out,
)
from egpo.rewards.math.pool import EXHAUSTED, FAILURES, MathPool, shared_pool
from egpo.rewards.math.worker import agree
from egpo.rewards.verdict import Verdict
from egpo.tags import THINK_TAGS

MAX_POWER_DIGITS = 100_000
"""Limit on the estimated size of a power of numbers: the digits of the base times the exponent."""
MAX_FACTORIAL = 10_000
"""The largest number whose factorial or binomial coefficient is computed."""
MAX_TERMS = 1500
"""Limit on the estimated number of terms of an expanded power or product of brackets with letters or roots in them."""
MAX_DEGREE = 500
"""Limit on the power of brackets with letters or roots in them, and of a letter in a quotient that would be divided."""
MAX_STACKED = 3

_NUMERAL = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_BINOMIAL = re.compile(r"\\[dt]?binom\{([^{}]*)\}\{([^{}]*)\}")
_WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\{[^{}]*\}|\\[A-Za-z]+")
_NAME = re.compile(r"(?:^|[^\W\d_]|_\{[^{}]*\}|_.)\Z")
_DIVIDED_SUM = re.compile(r"(?:\\frac|/).*[+-]|[+-].*(?:\\frac|/)")
_OPEN_ENDED = re.compile(r"\\(?:sum|prod|coprod|int|iint|iiint|oint|lim|limsup|liminf)(?![A-Za-z])")


def is_explosive(form: str, gold: str = "") -> bool:
    """Return whether an answer needs an endless computation: a huge power, factorial, binomial coefficient or product;
    or a sum, product, integral or limit sign, if the ground truth has none of these signs."""
    if _OPEN_ENDED.search(form) and not _OPEN_ENDED.search(gold):
        return True
    return _has_huge_factorial(form) or _has_huge_binomial(form) or _has_huge_power(form) or _has_huge_product(form)


def _product(text: str) -> float:
    """Return the product of the numerals in a text, a rough upper estimate of its value. Those below 1 count as 1."""
    numerals = _NUMERAL.findall(text)
    return prod(max(1.0, float(numeral)) if len(numeral) < 40 else inf for numeral in numerals)


def _has_huge_factorial(form: str) -> bool:
    if r"\Gamma" in form and ("^" in form or "!" in form or _product(form) > MAX_FACTORIAL):
        return True
    for found in re.finditer("!", form):
        before = form[: found.start()]
        if before.endswith("!"):  # `3!!` is read as the factorial of a factorial
            return True
        numeral = re.search(r"[0-9.]+$", before)
        if numeral and _product(numeral[0]) > MAX_FACTORIAL:
            return True
        if before.endswith((")", "}", "]")) and ("^" in before or "!" in before or _product(before) > MAX_FACTORIAL):
            return True
    return False


def _has_huge_binomial(form: str) -> bool:
    arguments = [argument for found in _BINOMIAL.finditer(form) for argument in found.groups()]
    # A binomial that the pattern does not match has nested braces.
    if 2 * form.count("binom") != len(arguments):
        return True
    return any("^" in text or "!" in text or _product(text) > MAX_FACTORIAL for text in arguments)


def _has_huge_power(form: str) -> bool:
    """Return whether the form has a power that is too large to compute.

    A power of a number is computed. A power of brackets may be computed or expanded, and the exponents of several such
    powers are multiplied. A power of a letter is computed only in a quotient with a sum, as a division of polynomials.
    """
    if "^" not in form and "**" not in form:
        return False
    of_brackets, of_numbers, of_letters = 1.0, 1.0, 1.0
    for found in re.finditer(r"\^|\*\*", form):
        base = form[: found.start()].rstrip()
        exponent = _exponent_size(_group(form, found.end()))
        if _NAME.search(base):
            of_letters = max(of_letters, exponent if exponent < inf else 1.0)
        elif base[-1] in ")}]":
            of_brackets *= exponent
        else:
            of_numbers = max(of_numbers, exponent)
    if of_brackets == inf:
        return True
    longest = max((len(numeral) for numeral in _NUMERAL.findall(form)), default=1)
    num_names = len(set(filter(str.isalpha, _WORDS.sub(" ", form)))) + form.count(r"\sqrt")
    return (
        longest * of_brackets * of_numbers > MAX_POWER_DIGITS
        or (num_names > 0 and of_brackets > MAX_DEGREE)
        or comb(int(of_brackets) + num_names, num_names) > MAX_TERMS
        or (of_letters > MAX_DEGREE and _DIVIDED_SUM.search(form) is not None)
    )


def _has_huge_product(form: str) -> bool:
    """Return whether `(a+b+c)(d+e+f)…` has too many terms: their number is the product of those in each bracket."""
    groups = [group for group in re.findall(r"\(([^()]*)\)", form) if re.search("[A-Za-z]", group)]
    return prod(1.0 + len(re.findall(r"[+-]", group)) for group in groups) > MAX_TERMS


def _exponent_size(exponent: str) -> float:
    """Return an upper estimate of an exponent's value; infinity for a power of brackets and for a tower of powers."""
    if exponent.count("^") > MAX_STACKED or re.search(r"[)}\]]\s*\^|!|\*\*", exponent):
        return inf
    size = _product(exponent)
    for found in re.finditer(r"([0-9.]+)\^", exponent):
        power = _exponent_size(_group(exponent, found.end()))
        # Only below the largest float: above it, Python raises OverflowError instead of returning infinity.
        size *= _product(found[1]) ** power if power * len(found[1]) < 300 else inf
    return size


def _group(form: str, start: int) -> str:
    """Return the exponent after a `^`: the braces that follow, or the text up to the next operator. A further power, as
    in `9^{9}^{9}` and `9^9^9`, is part of it."""
    if not form.startswith("{", start):
        return re.split(r"[ +*=,)}\]]", form[start:], maxsplit=1)[0]
    depth = 0
    for at in range(start, len(form)):
        depth += (form[at] == "{") - (form[at] == "}")
        if depth == 0:
            stacked = form[at + 1 :] if form.startswith("^", at + 1) else ""
            return form[start + 1 : at + bool(stacked)] + stacked
    return form[start:]


MODES = ("binary",)
TIMEOUT_S = 5.0

_UNDECIDED = {
    **FAILURES,
    "gold_unparsable": "the ground truth cannot be parsed or is too complex, and the answer is written differently",
}
REASONS = {
    "correct": "the answer equals the ground truth",
    "wrong_answer": "the answer does not equal the ground truth",
    "not_one_answer": "a second number beside the answer, as in `5 15` or `5\\text{ or 6}`, or words that change it",
    "unparsable": "the answer is not written like the ground truth, and is not LaTeX that can be parsed",
    "too_complex": (
        f"the answer is longer than {MAX_CHARACTERS} characters, has brackets deeper than {MAX_DEPTH}, or has a power, "
        "factorial, binomial, sum, integral or limit too large to compute"
    ),
    "exhausts_checker": (
        "math-verify ran out of processor time or memory, or crashed, twice on this answer, and not on the ground truth"
    ),
    "no_answer": "no text is marked as the answer, or the marked text is empty",
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
    """Return the verdict: 1.0 if the answer equals the ground truth, else 0.0; `failed` if the checker cannot decide.

    `timeout_s` limits the processor time of one comparison by math-verify; a worker that exceeds it is killed.
    `pool` defaults to the one that all callers in this process share.
    """
    # A missing value is None or a NaN, whose text would be taken for a word.
    if not isinstance(ground_truth, str | Number) or isinstance(ground_truth, bool) or ground_truth != ground_truth:
        raise _no_answer(repr(ground_truth))
    gold = gold_form(str(ground_truth))
    answer, reason = settle_by_spelling(text, gold, tags)
    if not reason:
        reply = _compare_in_worker(pool or shared_pool(), _spelled_gold(gold), answer, timeout_s)
        reason = _REASON_OF_REPLY.get(reply, reply)
    return Verdict(float(reason == "correct"), reason == "correct", reason, failed=reason in _UNDECIDED)


def _compare_in_worker(pool: MathPool, gold: str, answer: str, timeout_s: float) -> str:
    """Return the pool's reply on an answer, or `exhausts_checker` if the answer makes math-verify fail twice.

    Without that reason, a response could avoid being judged. As a control, the ground truth is compared with itself and
    with another answer: if that fails too, the response is not the cause, and the checker's failure is returned.
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
    r"""Return the normal form of a ground truth, which may be in a `\boxed{…}` or after `####`. Cached: all samples of
    a group have the same ground truth."""
    marked = _last_marked(ground_truth)
    form = normal_form(ground_truth if marked is None else marked)
    if not form or len(form) > MAX_CHARACTERS:
        raise _no_answer(repr(ground_truth))
    return form


@lru_cache(maxsize=65536)
def _spelled_gold(gold: str) -> str:
    return bare_unit_as_text(spell_out(gold))


def _no_answer(shown: str) -> InputError:
    what = f"{shown:.80} ({len(shown)} characters) is not an answer"
    return InputError(
        what, where="math ground truth", fix=f"give a number or LaTeX of 1 to {MAX_CHARACTERS} characters"
    )


def settle_by_spelling(text: str, gold: str, tags: tuple[str, str] = THINK_TAGS) -> tuple[str, str]:
    """Return the stated answer in the form for math-verify, and the reason, which is "" if math-verify must decide."""
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
    # Letters without \text may be a product, `a \cdot b`: they are compared letter by letter only with another word.
    if word is not None and (gold.startswith("\\") or as_word(answer) is not None):
        return answer, "correct" if word == (as_word(answer) or bare_word(answer)) else "wrong_answer"
    if reason := _compare_values(answer, gold):
        return answer, reason
    answer, gold = bare_unit_as_text(spell_out(answer, gold)), _spelled_gold(gold)
    return answer, _compare_values(answer, gold) or _fault(answer, gold)


def _compare_values(answer: str, gold: str) -> str:
    """Compare two rational numbers and return the reason; "" if one of the sides is not a rational number."""
    value = as_value(answer)
    wanted = None if value is None else as_value(gold)
    if value is None or wanted is None:
        return ""
    is_rounded = value.decimal or wanted.decimal
    is_same = agree(value.exact, wanted.exact) if is_rounded else value.exact == wanted.exact
    return "correct" if is_same else "wrong_answer"


def _fault(answer: str, gold: str) -> str:
    """Return the reason if math-verify is not needed or must not be used; "" if math-verify has to decide."""
    if answer == gold:
        return "correct"
    if differs_in_notation(answer, gold):
        return "wrong_answer"
    if is_too_complex(gold) or is_explosive(gold, gold):
        return "gold_unparsable"
    if is_too_complex(answer) or is_explosive(answer, gold):
        return "too_complex"
    return "not_one_answer" if has_numbers_side_by_side(answer) or has_number_in_text(answer, gold) else ""
