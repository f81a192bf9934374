r"""GSM8K: transformations of a whole number. The ground truth is the number as text, `1080` or `-3`.

A wrong number is computed, never written by hand: a transformation that gives the right number again returns None.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path

from egpo.rewards.gsm8k import gold_number, judge_gsm8k
from egpo.rewards.verdict import Verdict
from egpo.tasks.gsm8k import draw_word_problem
from tests.faults.transformations import REFUSED, RIGHT, UNDEFINED, WRONG, Transformation

Write = Callable[[str], str | None]
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def truths(folder: Path | None, count: int | None = None) -> list[str]:
    """Return the ground truths of the real dataset if its folder is given, else those of generated problems."""
    if folder is None:
        rng = random.Random(0)
        return [gold_number(draw_word_problem(rng).answer) for _ in range(count or 2_000)]
    lines = [line for split in ("train", "test") for line in (folder / f"{split}.jsonl").read_text().splitlines()]
    found = [gold_number(json.loads(line)["answer"]) for line in lines]
    return found if count is None else random.Random(0).sample(found, count)


def judge(truth: str, text: str) -> Verdict:
    return judge_gsm8k(text, truth)


def decimal(value: Fraction) -> str:
    """Return the digits of a number with at most twelve decimals."""
    whole, rest = divmod(abs(value), 1)
    places = f"{int(rest * 10**12):012d}".rstrip("0")
    return ("-" if value < 0 else "") + str(int(whole)) + (f".{places}" if places else "")


def _marked(template: str) -> Write:
    return lambda n: "#### " + template.replace("@", n)


def _as_is(template: str) -> Write:
    return lambda n: template.replace("@", n)


def _other(change: Callable[[Fraction], Fraction], template: str = "#### @") -> Write:
    """Write another number. Nothing is written where it is the same number."""

    def write(n: str) -> str | None:
        value = Fraction(n)
        return None if change(value) == value else template.replace("@", decimal(change(value)))

    return write


def _digits(change: Callable[[str], str]) -> Write:
    """Change the digits of the number as text. Nothing is written where the number stays the same or is no number."""

    def write(n: str) -> str | None:
        sign, digits = ("-", n[1:]) if n.startswith("-") else ("", n)
        changed = sign + change(digits)
        return None if changed in ("", "-") or Fraction(changed) == Fraction(n) else f"#### {changed}"

    return write


def _if(test: Callable[[str], bool], write: Write) -> Write:
    return lambda n: write(n) if test(n) else None


def _grouped(n: str, separator: str) -> str:
    return f"{int(n):,}".replace(",", separator)


def _long(n: str) -> bool:
    return len(n.lstrip("-")) > 3


def _negative(n: str) -> bool:
    return n.startswith("-")


def _in_script(zero: str) -> Write:
    table = {ord("0") + digit: chr(ord(zero) + digit) for digit in range(10)}
    return lambda n: "#### " + n.translate(table)


_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
]


def _in_words(n: str) -> str | None:
    return f"#### {_ONES[int(n)]}" if 0 <= int(n) < len(_ONES) else None


def _rows(kind: str, verdict: str, rows: Sequence[tuple[str, Write]], why: str = "") -> Iterator[Transformation]:
    for name, write in rows:
        yield Transformation(name, kind, verdict, write, why)


def _templates(kind: str, verdict: str, templates: Sequence[str], why: str = "") -> Iterator[Transformation]:
    yield from _rows(kind, verdict, [(template, _marked(template)) for template in templates], why)


def _nonzero(write: Write) -> Write:
    return _if(lambda n: n != "0", write)


TRANSFORMATIONS: tuple[Transformation, ...] = (
    *_rows(
        "place of the answer",
        RIGHT,
        [
            ("after ####", _as_is("Add them up.\n#### @")),
            ("no space", _as_is("####@")),
            ("on the next line", _as_is("####\n@")),
            ("in a box", _as_is(r"So it is $\boxed{@}$.")),
            ("in an fbox", _as_is(r"\fbox{@}")),
            ("in bold", _as_is("It is **@**.")),
            ("in a box after ####", _as_is(r"#### \boxed{@}")),
            ("in bold after ####", _as_is("#### **@**")),
            ("a heading with ####, then a box", _as_is("#### The sum\n\\boxed{@}")),
            ("the last of two markers", _as_is("#### 7777777\n#### @")),
            ("the last of two boxes", _as_is(r"\boxed{7777777} \boxed{@}")),
            ("#### goes before a box", _as_is(r"\boxed{7777777} #### @")),
            ("the line after #### states two numbers, and the box counts", _as_is(r"#### 7777777 \boxed{@}")),
        ],
    ),
    *_rows(
        "thinking",
        RIGHT,
        [
            ("a wrong draft in the thought", _as_is("<think>#### 7777777</think>#### @")),
            ("thinking opened by the prompt", _as_is("#### 7777777</think>\n#### @")),
            ("another opening tag in the thought", _as_is("<think>a <think> b</think>#### @")),
            ("a box in the thought", _as_is(r"<think>\boxed{7777777}</think>It is **@**.")),
        ],
    ),
    *_rows(
        "thinking",
        WRONG,
        [
            ("only in the thought", _as_is("<think>#### @</think>I do not know.")),
            ("only in the thought, boxed", _as_is(r"<think>\boxed{@}</think>")),
            ("thought never closed", _as_is("<think>so\n#### @")),
            ("thought never closed, box", _as_is(r"<think>so \boxed{@}")),
            ("only in the thought that the prompt opened", _as_is("#### @</think>\nI do not know.")),
            ("right in the thought, wrong after it", _other(lambda v: v + 1, "<think>#### 1</think>\n#### @")),
        ],
    ),
    *_rows(
        "notation",
        RIGHT,
        [
            ("thousands with commas", _if(_long, lambda n: f"#### {_grouped(n, ',')}")),
            ("thousands with LaTeX commas", _if(_long, lambda n: rf"\boxed{{{_grouped(n, '{,}')}}}")),
            ("trailing full stop", _marked("@.")),
            ("cents", _marked("@.00")),
            ("one decimal", _marked("@.0")),
            ("leading zeros", _if(lambda n: not _negative(n), _marked("00@"))),
            ("plus sign", _if(lambda n: not _negative(n), _marked("+@"))),
            ("minus sign of typography", _if(_negative, lambda n: f"#### −{n[1:]}")),
            ("dollar sign", _marked("$@")),
            ("escaped dollar sign", _marked(r"\$@")),
            ("euro sign", _marked("€@")),
            ("pound sign", _marked("£@")),
            ("between dollars", _marked("$@$")),
            ("in backticks", _marked("`@`")),
            ("in italics", _marked("*@*")),
            ("underscored", _marked("_@_")),
            ("spaces around", _marked("   @   ")),
            ("tab before", _marked("\t@")),
            ("carriage return", _marked("@\r\n")),
        ],
    ),
    *_templates(
        "unit",
        RIGHT,
        [
            "@ apples",
            "@ dollars",
            "@%",
            r"@\%",
            r"@\text{ dollars}",
            "@-inch",
            "@ miles/hour",
            "@ per day",
            "@ (eggs)",
            "@ years old",
            "@ times",
            "@ pairs",
            "@ quarters",
            "@ half-dollars",
            r"@^\circ",
            "@ kg.",
            "@ eggs!",
            "@ m",
            "**@** eggs",
            "@ people in all",
            "@ dogs or cats",
            "@ ten-dollar bills",
        ],
    ),
    *_rows(
        "scale",
        WRONG,
        [
            (f"times 10^{power}", _other(lambda v, power=power: v * Fraction(10) ** power))
            for power in (-6, -3, -2, -1, 1, 2, 3, 6, 9)
        ],
    ),
    *_rows(
        "scale",
        WRONG,
        [
            ("times two", _other(lambda v: v * 2)),
            ("half", _other(lambda v: v / 2)),
            ("squared", _other(lambda v: v * v)),
            ("a dozen", _other(lambda v: v * 12)),
            ("sixty", _other(lambda v: v * 60)),
            ("per cent of it", _other(lambda v: v / 100, "#### @%")),
        ],
    ),
    *_rows(
        "near miss",
        WRONG,
        [
            ("plus one", _other(lambda v: v + 1)),
            ("minus one", _other(lambda v: v - 1)),
            ("plus a half", _other(lambda v: v + Fraction(1, 2))),
            ("minus a cent", _other(lambda v: v - Fraction(1, 100))),
            ("plus a millionth", _other(lambda v: v + Fraction(1, 10**6))),
            ("plus 10^-12", _other(lambda v: v + Fraction(1, 10**12))),
            ("in a box, plus one", _other(lambda v: v + 1, r"\boxed{@}")),
            ("in bold, plus one", _other(lambda v: v + 1, "**@**")),
        ],
    ),
    *_rows(
        "zero and sign",
        WRONG,
        [
            ("zero", _nonzero(_as_is("#### 0"))),
            ("minus zero", _nonzero(_as_is("#### -0.00"))),
            ("other sign", _other(lambda v: -v)),
            ("other sign, typography", _if(lambda n: not _negative(n) and n != "0", _marked("−@"))),
            ("minus and dollar", _if(lambda n: not _negative(n) and n != "0", _marked("-$@"))),
            ("without its sign", _if(_negative, lambda n: f"#### {n[1:]}")),
            ("empty", _as_is("####")),
            ("no number", _as_is("#### none")),
            ("infinity", _as_is("#### inf")),
            ("NaN", _as_is("#### NaN")),
        ],
    ),
    *_rows(
        "digits",
        WRONG,
        [
            ("reversed", _digits(lambda d: d[::-1])),
            ("last dropped", _digits(lambda d: d[:-1])),
            ("first dropped", _digits(lambda d: d[1:])),
            ("last doubled", _digits(lambda d: d + d[-1])),
            ("first doubled", _digits(lambda d: d[0] + d)),
            ("zero inside", _digits(lambda d: d[0] + "0" + d[1:])),
            ("rotated", _digits(lambda d: d[1:] + d[:1])),
            ("a decimal point inside", _digits(lambda d: d[0] + "." + d[1:] if len(d) > 1 else "")),
            ("complement to nines", _digits(lambda d: "".join(str(9 - int(c)) for c in d))),
            ("invisible space inside", _if(lambda n: len(n.lstrip("-")) > 1, lambda n: f"#### {n[:-1]}\u200b{n[-1]}")),
            ("a letter O for zero", _if(lambda n: "0" in n[1:], lambda n: f"#### {n[0]}{n[1:].replace('0', 'O')}")),
        ],
    ),
    *_templates(
        "second number",
        WRONG,
        [
            "@ or 7777777",
            "@ and 7777777",
            "@, 7777777",
            "@ 7777777",
            "@/7777777",
            "@:30",
            "@ to 7777777",
            "@-7777777",
            "@ – 7777777",
            "@ = 7777777",
            "@ (or 7777777)",
            "@ or nineteen",
            "@ and seventeen",
            "@, twenty",
            "@ or one",
            "@ dollars, five cents",
            "@ ٣",
            "@ 三",
            "@½",
            "@²",
            "@ or ½",
            "7777777 or @",
            "7777777, @",
            "@; 7777777",
            "@ | 7777777",
            "@ vs 7777777",
            "@\u00a07777777",
            "@\u2009777",
            "@ x 7777777",
            "@_7777777",
            "@,777",
            "@.777",
            "@'777",
        ],
    ),
    *_rows(
        "two answers",
        WRONG,
        [
            ("right first, wrong last marker", _as_is("#### @\n#### 7777777")),
            ("right box first", _as_is(r"\boxed{@} or \boxed{7777777}")),
            ("right bold first", _as_is("**@** or **7777777**")),
            ("wrong marker, right box", _as_is(r"\boxed{@} #### 7777777")),
            ("box in a box", _as_is(r"\boxed{@ \boxed{7777777}}")),
            ("wrong box after right bold", _as_is(r"**@** \boxed{7777777}")),
        ],
    ),
    *_templates(
        "changed by words",
        WRONG,
        [
            "@ thousand",
            "@ hundred",
            "@ million",
            "@ lakh",
            "@ crore",
            "@ dozen",
            "@k",
            "@K",
            "@M",
            "@ grand",
            "@만",
            "@ 억",
            "@-thousand",
            "@ thirds",
            "@ halves",
            "@ half",
            "@ tenths",
            "@ hundredths",
            "@ and a half",
            "@ and a quarter",
            "@ point five",
            "@ squared",
            "@ cubed",
            "@ factorial",
            "@ twice",
            "@ doubled",
            "@ divided by x",
            "@ times x",
            "@ minus x",
            "@ plus x",
            "@ negative",
            "@ mod x",
            "@ choose x",
            "@ pi",
            "@ permille",
            r"@\text{ million}",
            r"@\text{ squared}",
            "@ Millionen",
        ],
    ),
    *_templates(
        "operation",
        WRONG,
        [
            "@ + x",
            "@ - x",
            "@x",
            "@ * x",
            "@!",
            "@^2",
            "@³",
            "@e2",
            "@e-2",
            r"@\cdot 2",
            r"@\times x",
            r"@\sin(x)",
            r"@\ln x",
            r"@\theta",
            r"@\lim_{k \to 0} k",
            r"@\begin{pmatrix} x \end{pmatrix}",
            r"@\Rightarrow x",
            r"@\pi",
            r"@\sqrt{x}",
            "@ ÷ x",
            "@ ± x",
            "√@",
            "-(@",
            "@ → x",
            "@ ≈ x",
            "@ > x",
            "> @",
            "< @",
            "≠ @",
            "@(-1)",
            "0x@",
            "@‰",
            r"@\frac{1}{2}",
            "1/@",
            "2*@",
            "@ | x",
            "!@",
            "~@x",
            "log @",
            "@ mod 7",
        ],
    ),
    *_templates(
        "hedge",
        WRONG,
        [
            "@ or more",
            "@ or x",
            "@ or less",
            "@ or so",
            "@ or none",
            "@, or x",
            "@ (or none)",
            "@ not",
            "not @",
            "about @",
            "at least @",
            "@ dollars or a million",
            "between @ and 7777777",
            "somewhere near @",
            "x or @",
            "@ or not",
        ],
    ),
    *_rows(
        "no marker",
        WRONG,
        [
            ("prose", _as_is("The answer is @.")),
            ("an equation in prose", _as_is("So x = @.")),
            ("### only", _as_is("### @")),
            ("an answer tag", _as_is("<answer>@</answer>")),
            ("a box that is never closed", _as_is(r"\boxed{@")),
            ("bold that is never closed", _as_is("**@")),
            ("box in words", _as_is("boxed{@}")),
            ("nothing", lambda n: ""),
            (
                "the whole question of numbers",
                lambda n: (
                    "#### " + " ".join(map(str, range(max(0, int(n) - 20), int(n) + 20)))
                    if abs(int(n)) < 10**6
                    else None
                ),
            ),
        ],
    ),
    *_rows(
        "refused notation",
        REFUSED,
        [
            ("in words", _in_words),
            ("scientific", _nonzero(_marked("@e0"))),
            ("a quotient", _marked("@/1")),
            ("plus zero", _marked("@ + 0")),
            ("an equation", _marked("x = @")),
            ("full-width digits", _in_script("０")),
            ("Arabic-Indic digits", _in_script("٠")),
            ("bold mathematical digits", _in_script("𝟎")),
            ("text in front", _marked("The answer is @")),
            ("thousands with spaces", _if(_long, lambda n: f"#### {_grouped(n, ' ')}")),
            ("thousands with points", _if(_long, lambda n: f"#### {_grouped(n, '.')}")),
            ("thousands with apostrophes", _if(_long, lambda n: f"#### {_grouped(n, chr(39))}")),
            ("in parentheses", _marked("(@)")),
            ("currency behind", _marked("@ USD = @ dollars")),
            ("a LaTeX fraction", _marked(r"\frac{@}{1}")),
            ("in text", _as_is(r"\boxed{\text{@}}")),
            ("superscript digits", lambda n: "#### " + n.lstrip("-").translate(_SUPERSCRIPTS) if n[0] != "-" else None),
            ("the same number twice", _marked("@ (that is @)")),
            ("a fraction of twice it", lambda n: f"#### {2 * int(n)}/2"),
        ],
    ),
    *_templates(
        "words without a number",
        UNDEFINED,
        [
            "@ is not right",
            "@ is wrong",
            "@, I think",
            "@ (not sure)",
            "@ approximately",
            "@?",
            "@ full dozens",
            "@ if x",
        ],
        "text after the number that states no number is a unit by the rule, and is ignored",
    ),
    *_rows(
        "a second thought",
        UNDEFINED,
        [
            ("a second thinking block", _as_is("<think>a</think><think>\n#### @\n</think>\nI do not know.")),
        ],
        "the first closing tag ends the thinking; what follows is the answer, tags included",
    ),
    *_rows(
        "empty last marker",
        UNDEFINED,
        [
            ("an empty marker at the end", _as_is("#### @\n####")),
        ],
        "the last marker counts, and it states nothing",
    ),
)
