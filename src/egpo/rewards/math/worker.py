"""The process that runs math-verify, and may be killed at any moment.

It is run by its path and imports math-verify, but no other module of egpo: it starts in half a second, without torch.
An idle worker ends with its parent (`egpo.processes.workers`). A busy one ends when one of the kernel's timers expires,
which no computation can delay: the limit of processor time or, for a worker whose parent has ended, of wall-clock time.

math-verify rounds decimals to six places, so that `0.0` would equal 1.6e-19. `agree` defines what counts as equal here.
"""

import logging
import signal
import sys
from contextlib import suppress
from fractions import Fraction
from typing import Any

SPENT = "same_and_spent"
"""Reply for equal answers after which the worker must not be used again."""
WALL_FACTOR = 10.0
"""Wall-clock limit of a comparison, as a multiple of its limit of processor time."""
ALARM_GRACE_S = 2.0
"""Seconds from the wall-clock limit, at which the parent kills, to the alarm that ends a worker without a parent."""
PLACES = 6
SMALL = Fraction(1, 1000)
SMALL_TOLERANCE = Fraction(5, 10**6)
_NUMERIC, _SYMBOLIC = "sympy_numeric_eq", "sympy_symbolic_eq"
_APPROXIMATELY = r"\approx"
_ROUGHLY = Fraction(1, 100)


def agree(a: Fraction, b: Fraction) -> bool:
    """Return whether two numbers, of which at least one may be rounded, are equal: to six decimal places or, if both
    are below 0.001, to six significant digits. Zero equals only zero."""
    if a == b or not a or not b:
        return a == b
    size = max(abs(a), abs(b))
    return abs(a - b) <= SMALL_TOLERANCE * size if size < SMALL else round(a, PLACES) == round(b, PLACES)


def serve(parent: Any, memory_bytes: str) -> None:
    """Run a worker process: answer requests until the parent ends. `parent` is a `Parent` of egpo.processes.workers."""
    import resource  # not on Windows, where the pool cannot be used

    limit = int(memory_bytes)
    # If the parent ignores or blocks the signals of the timers, this process has inherited that.
    for timer in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(timer, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {timer})
    with suppress(ValueError):  # a stricter limit is in force already
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    logging.disable(logging.CRITICAL)
    try:
        import math_verify
    except ImportError as error:
        parent.send(ascii(f"cannot import math-verify: {error}")[1:-1])
        return
    grader = sys.modules["math_verify.grader"]
    for name in (_NUMERIC, _SYMBOLIC):
        if not hasattr(grader, name):
            parent.send(f"this version of math-verify has no grader.{name}")
            return
    simplified_equal = getattr(grader, _SYMBOLIC)
    setattr(grader, _NUMERIC, _numerically_equal)
    setattr(grader, _SYMBOLIC, lambda a, b: not _certainly_unequal(a, b) and simplified_equal(a, b))
    _compare(math_verify, "1/2", "0.5")  # loads modules, so that their time does not count against a request
    parent.send("ready")
    for gold, answer, timeout_s in parent.messages():
        signal.setitimer(signal.ITIMER_REAL, timeout_s * WALL_FACTOR + ALARM_GRACE_S)
        signal.setitimer(signal.ITIMER_PROF, timeout_s)
        reply = _compare(math_verify, gold, answer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        if _memory_is_spent(limit):
            # math-verify catches MemoryError like any other error: "different" may mean that the memory ran out.
            reply = SPENT if reply == "same" else "checker_memory"
        parent.send(reply)


def _memory_is_spent(memory_bytes: int) -> bool:
    """Return whether the peak memory of this process is above a quarter of its limit.

    An allocation may then have failed: a number that is squared repeatedly doubles its size at each step.

    `ru_maxrss` is not used: Linux carries it over from the process that started this one. False without /proc.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            peak_kb = next((int(line.split()[1]) for line in status if line.startswith("VmHWM:")), 0)
    except OSError:
        return False
    return peak_kb * 1024 > memory_bytes // 4


def _compare(math_verify: Any, gold: str, answer: str) -> str:
    """Compare two answers; return same, different, unparsable, gold_unparsable or checker_error.

    Only LaTeX is read, and only as a whole: math-verify's other reader passes text to sympy's `parse_expr`, which calls
    `eval`. math-verify's own time limit is off, because it uses `signal.alarm`.
    """
    try:
        expected = _parse(math_verify, gold)
        if not expected:
            return "gold_unparsable"
        stated = _parse(math_verify, answer)
        if not stated:
            return "unparsable"
        if _contradicts_itself(stated[0], expected[0]) or _is_rounded_falsely(math_verify, stated[0], answer):
            return "different"
        return "same" if math_verify.verify(expected, stated, timeout_seconds=None) else "different"
    except Exception:  # the boundary to the library: whatever it raises is a failure of the checker
        return "checker_error"


def _parse(math_verify: Any, latex: str) -> list[Any]:
    parsed: list[Any] = math_verify.parse(
        f"\\boxed{{{latex}}}",
        [math_verify.LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return [_with_imaginary_unit(value) for value in parsed]


def _with_imaginary_unit(value: Any) -> Any:
    r"""Return the value with i as the imaginary unit: math-verify reads i as a variable, also in `e^{i\pi}`."""
    from sympy import Basic, I, MatrixBase, Symbol  # type: ignore[import-untyped]

    if not isinstance(value, Basic | MatrixBase):
        return value
    named = [symbol for symbol in value.atoms(Symbol) if symbol.name == "i"]
    return value.xreplace(dict.fromkeys(named, I)) if named else value


def _numerically_equal(a: Any, b: Any, *_: int) -> bool:
    """Return whether two values are equal. It replaces math-verify's own comparison, which rounds decimals and
    differences to a fixed number of places.

    Decimals are read as exact fractions. A matrix is compared element by element. A percentage may mean the number
    before the sign or its hundredth, as math-verify allows for integers. Expressions with variables are equal if their
    difference is 0 without simplification; otherwise math-verify's `simplify` decides.
    """
    from sympy import Float, MatrixBase, MatrixExpr

    try:
        if isinstance(a, MatrixBase | MatrixExpr) and isinstance(b, MatrixBase | MatrixExpr):
            a, b = a.doit(), b.doit()
            return a.shape == b.shape and all(map(_numerically_equal, a.flat(), b.flat()))
        is_rounded = a.has(Float) or b.has(Float)
        (a, a_percent), (b, b_percent) = _exact(a), _exact(b)
        if (a_percent and b_percent) or not (a_percent or b_percent):
            return _equal(a, b, is_rounded)
        plain, percent = (b, a) if a_percent else (a, b)
        return _equal(plain, percent, is_rounded) or _equal(plain, percent / 100, is_rounded)
    except Exception:  # the boundary to sympy: if it cannot evaluate, math-verify's other comparisons decide
        return False


def _exact(value: Any) -> tuple[Any, bool]:
    """Return the evaluated value with decimals as fractions, and whether it is a percentage, whose value is the number
    before the sign."""
    from sympy import Float, Rational
    from sympy.core.expr import UnevaluatedExpr  # type: ignore[import-untyped]

    hundredth = UnevaluatedExpr(Rational(1, 100))
    is_percent = value.is_Mul and len(value.args) == 2 and hundredth in value.args
    if is_percent:
        value = next(factor for factor in value.args if factor != hundredth)
    decimals = value.atoms(Float)
    return value.xreplace({decimal: Rational(str(decimal)) for decimal in decimals}).doit(), is_percent


def _equal(a: Any, b: Any, is_rounded: bool) -> bool:
    if a.is_Rational and b.is_Rational:
        first, second = Fraction(int(a.p), int(a.q)), Fraction(int(b.p), int(b.q))
        return agree(first, second) if is_rounded else first == second
    difference = a - b
    if not (a.is_number and b.is_number):
        return bool(difference == 0)
    if is_rounded and (a.is_Rational or b.is_Rational) and a.is_extended_real and b.is_extended_real:
        first, second = (Fraction(str(side.evalf(40))) for side in (a, b))
        return agree(first, second)
    # A value that sympy cannot tell from zero within a hundred digits comes with a precision of one bit.
    parts = difference.evalf(15).as_real_imag()
    return all(part == 0 or getattr(part, "_prec", 53) == 1 for part in parts)


def _certainly_unequal(a: Any, b: Any) -> bool:
    """Return whether two expressions have different values at one point, in which case no simplification makes them
    equal. `simplify` may take for ever: on `7777777\\ln 7` it computes the power 7^7777777."""
    from sympy import Basic, MatrixBase, Rational

    if not isinstance(a, Basic) or not isinstance(b, Basic) or isinstance(a, MatrixBase) or isinstance(b, MatrixBase):
        return False
    try:
        difference = (_exact(a)[0] - _exact(b)[0]).doit()
        names = sorted(difference.free_symbols, key=str)
        # Positive and different, so that roots and logarithms are on one branch and no difference of names is zero.
        at_a_point = difference.xreplace({name: Rational(17 + 6 * place, 7) for place, name in enumerate(names)})
        parts = at_a_point.evalf(15).as_real_imag()
    except Exception:  # the boundary to sympy: what it cannot evaluate is not certain
        return False
    return all(part.is_Number and part.is_finite for part in parts) and any(
        part != 0 and getattr(part, "_prec", 53) > 1 for part in parts
    )


def _contradicts_itself(stated: Any, expected: Any) -> bool:
    """Return whether an answer is an equation that does not state one of its sides, although math-verify reads the
    right-hand side of any equation: a false one (`7 = 5`), or a number on the left of an expression with names
    (`7 = x^2 + 1`), unless the ground truth is an equation too."""
    from sympy import And, Eq, FiniteSet, Symbol, Tuple, false
    from sympy.core.relational import Relational  # type: ignore[import-untyped]

    # One by one: the chain `a = b = c` is a conjunction whose own `doit` may raise, and `7 = 5, 6` is a list.
    claims = stated.args if isinstance(stated, And | FiniteSet | Tuple) else (stated,)
    if not isinstance(expected, Relational | And) and any(
        isinstance(claim, Eq)
        and claim.lhs.is_number
        and getattr(claim.rhs, "free_symbols", None)
        and not isinstance(claim.rhs, Symbol)
        for claim in claims
    ):
        return True
    return any(isinstance(claim, Relational) and claim.doit() is false for claim in claims)


def _is_rounded_falsely(math_verify: Any, stated: Any, answer: str) -> bool:
    r"""Return whether an answer has `\approx` and the text after it is no rounding of the value before it, which
    math-verify alone reads: `\pi \approx 3.14` states pi, and `5 \approx 7` nothing."""
    _, sign, rounded = answer.rpartition(_APPROXIMATELY)
    if not sign:
        return False
    near = _parse(math_verify, rounded)
    try:
        exact, rough = (complex(_exact(value)[0].evalf(15)) for value in (stated, near[0]))
    except Exception:  # the boundary to sympy: a side that is not a number is no rounding
        return True
    places = len(rounded.rpartition(".")[2]) if "." in rounded else 0
    return abs(exact - rough) > max(10.0**-places, float(_ROUGHLY) * abs(exact))
