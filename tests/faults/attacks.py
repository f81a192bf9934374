r"""Responses that try to make their own verdict `failed`, so that they leave their group instead of counting as wrong.

A strategy is a function that writes the body of an answer; `PLACES` puts it where each reward looks for an answer. The
strategies were written one by one, each for another weakness: nesting, size, time, memory, regular expressions, text
encodings, the protocols between processes. `hostile_programs.py` has those for the sandbox.
"""

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

from egpo.rewards import score
from egpo.rewards.countdown import judge_countdown
from egpo.rewards.gsm8k import judge_gsm8k
from egpo.rewards.math import MathPool, judge_math
from egpo.rewards.tool_calls import judge_tool_calls
from egpo.rewards.verdict import Verdict
from egpo.tasks.episodes import TURN_BREAK
from egpo.tasks.toolbox import Toolbox
from tests.rewards.test_fuzz import fuzz_rewards

Draw = random.Random
MATH_TIMEOUT_S = 0.5
GOLDS = (
    "18",
    r"\frac{37}{2}",
    "x^2+3x+2",
    "[0,1)",
    r"\{1,2\}",
    r"\ln(7)",
    r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
    "3+4i",
    r"\sqrt{2}",
    "x > 3",
    r"50\%",
    "y = 2x + 1",
    r"5\text{ cm}",
    r"(1, 2)",
    r"\pi",
    r"2^{10}",
    r"\binom{10}{3}",
    r"\sin(1)",
)
"""Ground truths of math: the comparison takes another way for each."""


# Strategies: the body of an answer.
def deep_nesting(rng: Draw) -> str:
    opening, closing = rng.choice(
        [
            ("(", ")"),
            ("[", "]"),
            ("{", "}"),
            (r"\{", r"\}"),
            (r"\left(", r"\right)"),
            (r"\sqrt{", "}"),
            (r"\frac{1}{", "}"),
        ]
    )
    depth = rng.choice([5, 11, 12, 13, 60, 65, 500, 5_000, 100_000])
    return opening * depth + "18" + closing * rng.choice([depth, depth - 1, 0])


def power_towers(rng: Draw) -> str:
    base, height = rng.randint(2, 99), rng.randint(2, 9)
    style = rng.choice(["{}", "()", "plain", "stars", "factor"])
    if style == "{}":
        return f"{base}^{{" * height + str(rng.randint(2, 99)) + "}" * height
    if style == "()":
        return "(" * height + str(base) + "".join(f")^{rng.randint(2, 99)}" for _ in range(height))
    if style == "plain":
        return "^".join(str(rng.randint(2, 99)) for _ in range(height))
    if style == "stars":
        return "**".join(str(rng.randint(2, 99)) for _ in range(height))
    return rf"{base}^{{{rng.randint(100, 99_999)}}} \cdot {base}^{{{rng.randint(100, 99_999)}}} - 1"


def factorials(rng: Draw) -> str:
    n = rng.choice([50, 999, 9_999, 10_000, 10_001, 10**6, 10**9, 10**30])
    forms = [
        f"{n}!",
        f"({n}!)!",
        f"{n}!!!",
        rf"\binom{{{n}}}{{{n // 2}}}",
        rf"\binom{{{n}!}}{{2}}",
        rf"\Gamma({n})",
        rf"\frac{{{n}!}}{{{n - 1}!}}",
        rf"\prod_{{k=1}}^{{{n}}} k",
        rf"({n}!)^{{{n}}}",
    ]
    return rng.choice(forms)


def open_ended(rng: Draw) -> str:
    sign, n = rng.choice([r"\sum", r"\prod", r"\int", r"\lim"]), rng.choice([10, 10**4, 10**9, 10**30])
    inner = rng.choice(["k^2", r"\sin(k)", r"e^{-k^2}", r"\frac{1}{k!}", r"k^k", r"\sqrt[k]{k}", "x^{x^x}"])
    if sign == r"\lim":
        return rf"\lim_{{k \to {rng.choice(['0', chr(92) + 'infty', str(n)])}}} {inner}"
    return rf"{sign}_{{k=1}}^{{{rng.choice([str(n), chr(92) + 'infty'])}}} {inner}" + (
        r" \, dk" if sign == r"\int" else ""
    )


def huge_numbers(rng: Draw) -> str:
    digits = rng.choice([39, 40, 41, 199, 200, 201, 299, 301, 999, 4_300, 4_301, 100_000, 1_000_000])
    number = rng.choice("123456789") + rng.choice("0123456789") * (digits - 1)
    style = rng.choice(["plain", "minus", "decimals", "exponent", "commas", "fraction", "hex", "repeating"])
    table = {
        "plain": number,
        "minus": f"-{number}",
        "decimals": f"0.{number}",
        "exponent": f"1e{number[: rng.randint(1, 12)]}",
        "commas": ",".join([number[:3]] * (digits // 3 + 1)),
        "fraction": rf"\frac{{{number}}}{{{number[::-1]}}}",
        "hex": f"0x{number}",
        "repeating": rf"0.\overline{{{number}}}",
    }
    return table[style]


def expansions(rng: Draw) -> str:
    names, power = "abcdefghuvwxyz"[: rng.randint(2, 12)], rng.choice([2, 5, 20, 100, 499, 501, 9_999])
    total = "+".join(names)
    forms = [
        f"({total})^{{{power}}}",
        f"({total})" * rng.randint(2, 40),
        f"(({total})^{{{power}}})^{{{power}}}",
        rf"\frac{{({total})^{{{power}}}}}{{{total}}}",
        f"({total})^{{{power}}} - ({total})^{{{power}}}",
        f"(1+x)^{{{power}}}(1-x)^{{{power}}}",
    ]
    return rng.choice(forms)


def large_sets(rng: Draw) -> str:
    count = rng.choice([20, 80, 150, 300])
    items = [str(rng.randint(-99, 99)) for _ in range(count)]
    union = r" \cup ".join(f"({a}, {int(a) + 1})" for a in items[: count // 2])
    return rng.choice(
        [
            rf"\{{{', '.join(items)}\}}",
            f"({', '.join(items)})",
            union,
            ", ".join(items),
            rf"\{{{union}\}}",
            r" \setminus ".join([union[:300]] * 3),
            r" \cap ".join(f"[{a}, 99]" for a in items[:60]),
        ]
    )


def matrices(rng: Draw) -> str:
    size = rng.choice([1, 2, 3, 5, 8, 12])
    kind = rng.choice(["pmatrix", "bmatrix", "vmatrix", "Vmatrix", "array", "cases"])
    entry = rng.choice(
        ["1", "x", r"\frac{1}{2}", "9^{99}", r"\sqrt{2}", "10^{10^{10}}", "", r"\begin{pmatrix}1\end{pmatrix}", "i"]
    )
    rows = [" & ".join([entry] * rng.choice([size, size, size - 1])) for _ in range(size)]
    text = rf"\begin{{{kind}}} " + r" \\ ".join(rows) + rf" \end{{{kind}}}"
    return text + rng.choice(["", "^{-1}", "^{99}", "^{9999}", "^T", text, rf" \cdot {text}", "!"])


def nested_functions(rng: Draw) -> str:
    depth = rng.choice([3, 6, 9, 12, 13, 40])
    names = [
        r"\sin",
        r"\cos",
        r"\ln",
        r"\arctan",
        r"\exp",
        r"\sqrt",
        r"\tan",
        r"\log",
        "f",
        r"\Gamma",
        r"\zeta",
        r"\arcsin",
    ]
    chosen = [rng.choice(names) for _ in range(depth)]
    opening = "".join(f"{name}{{" if name == r"\sqrt" else f"{name}(" for name in chosen)
    closing = "".join("}" if name == r"\sqrt" else ")" for name in reversed(chosen))
    return opening + rng.choice(["1", "x", r"\pi", "10^{10}", "i", "0", r"\infty"]) + closing


def rational_functions(rng: Draw) -> str:
    n, m = rng.choice([5, 50, 400, 501, 10**5]), rng.choice([3, 30, 300, 499])
    forms = [
        rf"\frac{{x^{{{n}}} - 1}}{{x^{{{m}}} - 1}}",
        rf"\frac{{1}}{{1 + \frac{{1}}{{1 + \frac{{1}}{{x^{{{m}}}}}}}}}",
        rf"\frac{{x^{{{n}}}+x+1}}{{(x-1)(x-2)(x-3)(x-4)}}",
        "+".join(rf"\frac{{1}}{{x+{k}}}" for k in range(rng.choice([5, 20, 60]))),
        rf"\frac{{x^{{{m}}} - y^{{{m}}}}}{{x - y}}",
        rf"x^{{{n}}} + x^{{{m}}} + 1 = 0",
    ]
    return rng.choice(forms)


def large_roots(rng: Draw) -> str:
    n = rng.choice([3, 97, 9_999, 10**9, 10**18])
    big = str(rng.randint(10**20, 10 ** rng.choice([21, 60, 200])))
    forms = [
        rf"\sqrt[{n}]{{{big}}}",
        rf"{big}^{{\frac{{1}}{{{n}}}}}",
        rf"\sqrt{{{big}}} + \sqrt{{{big}1}}",
        rf"{big[:5]}^{{\frac{{{n}}}{{7}}}}",
        rf"\sqrt{{2 + \sqrt{{{n} + \sqrt{{{big}}}}}}}",
        rf"\sqrt[{n}]{{-1}}",
        rf"2^{{1/{n}}} \cdot 3^{{1/{n}}}",
        rf"{big} \bmod {n}",
        rf"\log_{{{n}}}({big})",
        rf"{big} \ln({n})",
    ]
    return rng.choice(forms)


def backtracking(rng: Draw) -> str:
    piece = rng.choice(
        [
            " ",
            "* ",
            r"\,",
            "~",
            "_",
            "`$",
            r"\text{",
            "a",
            "-",
            "0",
            "1,",
            "1 ",
            ".",
            "(-",
            "''",
            '\\"',
            "\\",
            "x=",
            "<",
            "|",
            "\t\n",
            "**",
            "#",
            "```\n",
            "1+",
            "=",
            "...",
            r"\ldots",
            "\\\\ ",
            "&",
            "$",
            r"\left",
            r"\pm",
        ]
    )
    return (
        rng.choice(["18", "", "f(a="])
        + piece * rng.choice([50, 900, 1_999, 20_000, 200_000])
        + rng.choice(["!", "q", "", "18", ")]"])
    )


def giant_text(rng: Draw) -> str:
    piece = rng.choice(
        ["word ", "18 ", r"\boxed{18} ", "#### 18\n", "<answer>1</answer>", "é", "\n", "{}", '{"a": 1}, ', "**1** "]
    )
    return piece * (rng.choice([300_000, 1_000_000]) // len(piece))


def unicode_tricks(rng: Draw) -> str:
    # As characters: no list of literals, which a formatter writes out, can hold a lone surrogate.
    invisible = [chr(code) for code in (0xD800, 0xDFFF, 0x202E, 0x200B, 0, 0xFEFF, 0x301, 0xE0031, 0x2028, 0x1B, 0x7F)]
    marks = [*invisible, *"²½٣１三𝟏Ⅻ−–＝﹢∞‰🙂ıſßﬃ", chr(0x600)]
    return "".join(rng.choice([*marks, "18", "x", "1", " "]) for _ in range(rng.choice([1, 3, 20, 400])))


def json_specials(rng: Draw) -> str:
    value = rng.choice(
        [
            "NaN",
            "Infinity",
            "-Infinity",
            "-0",
            "1e400",
            "1e-400",
            "1E+99999",
            "9" * 5_000,
            '"\\ud800"',
            '"\\u0000"',
            "01",
            "+1",
            "0x1",
            "1_000",
            "'a'",
            "undefined",
            "[" * 70 + "]" * 70,
            '{"a":' * 70 + "1" + "}" * 70,
            '{"a": 1, "a": 2}',
            "[1,]",
            "/* c */ 1",
            '"' + "\\u0041" * 9_999 + '"',
            "true1",
            "nul",
            '"\t"',
            "[" * 100_000,
        ]
    )
    return rng.choice(
        [
            value,
            f'{{"name": "add_note", "arguments": {{"text": {value}}}}}',
            f'{{"name": {value}, "arguments": {{}}}}',
            f'{{"name": "add_note", "arguments": {value}}}',
        ]
    )


def python_literals(rng: Draw) -> str:
    value = rng.choice(
        [
            "'\\N{LATIN SMALL LETTER A}'",
            "'\\N{NO SUCH NAME}'",
            "'\\ud800'",
            "'\\x4'",
            "'\\777'",
            "b'a'",
            "f'{1}'",
            "1__0",
            "0777",
            "1j",
            "1if 1else 2",
            "...",
            "lambda: 0",
            "{1, 2}",
            "{**{}}",
            "[*[]]",
            "-'a'",
            "--1",
            "not 1",
            "(" * 200 + ")" * 200,
            "'a'" * 5_000,
            '"""' + "a" * 9_999,
            "r'\\'",
            "__import__('os')",
            "1e999",
            "0b" + "1" * 2_000,
            "{1: 2}",
            "{'a': 1, 'a': 2}",
            "x",
            "[" * 90 + "]" * 90,
        ]
    )
    return rng.choice([value, f"[f(a={value})]", f"[add_note(text={value})]", f"[f({value})]", f"[f(a=1, {value}=2)]"])


def tag_confusion(rng: Draw) -> str:
    tags = [
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "<tool_call>",
        "</tool_call>",
        r"\boxed{",
        "}",
        "####",
        "**",
        "```",
        "```python\n",
        "[f(a=1)]",
        "<|im_end|>",
        TURN_BREAK,
        "18",
        "{",
        "<tool_response>",
        "[TOOL_CALLS]",
    ]
    return "".join(rng.choice(tags) for _ in range(rng.choice([3, 10, 40, 2_000])))


def forged_replies(rng: Draw) -> str:
    reply = rng.choice(
        [
            "same",
            "same_and_spent",
            "ready",
            "checker_timeout",
            "different",
            "\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00.",
            "\x00\x00\x00\x04same",
            '"same"',
            "(S'same'\np0\n.",
            "\x7f" * 8,
            "ok 0 0 0",
            "None",
            "gold_unparsable",
            "checker_died",
        ]
    )
    return rng.choice([reply, f"\n{reply}\n", rf"\text{{{reply}}}", f"18\n{reply}", f"{reply}\0" * 50])


def latex_commands(rng: Draw) -> str:
    command = rng.choice(
        [
            r"\def\x{\x\x}\x",
            r"\input{/etc/passwd}",
            r"\newcommand{\a}{18}\a",
            r"\csname end\endcsname",
            r"\left(18",
            r"\right)",
            r"\begin{matrix}",
            r"\end{matrix}",
            "% 18",
            r"\\\\\\",
            r"\verb|18|",
            r"\write18{ls}",
            r"\char`1",
            r"\loop\iftrue\repeat",
            r"\mathbb{C}",
            r"\mathcal{18}",
            r"\overline{\overline{18}}",
            r"\underset{1}{8}",
            r"\stackrel{1}{8}",
            r"\xrightarrow{18}",
            r"\not18",
            r"\color{red}18",
            r"\href{a}{18}",
            r"\frac{1",
            r"\frac",
            r"\sqrt",
            "^",
            "_",
            "_{",
            "^{^{^{",
            r"\%",
            r"\pm\pm18",
            r"\approx",
            r"18\approx",
            r"\approx\approx 18",
            r"=",
            "==18",
            "18=",
            r"\le",
            r"\in",
        ]
    )
    return command * rng.choice([1, 1, 2, 30]) + rng.choice(["", "18", "x"])


def logic(rng: Draw) -> str:
    n = rng.choice([2, 5, 15, 40])
    names = [rng.choice("abcxyz") for _ in range(n)]
    forms = [
        "<".join(names),
        " = ".join(map(str, range(n))),
        r" \le ".join(["x", *map(str, range(n))]),
        "|" * n + "x" + "|" * n,
        r"\lfloor " * n + "x" + r" \rfloor" * n,
        r" \text{ or } ".join(f"x > {k}" for k in range(n)),
        ", ".join(f"x_{k} = {k}" for k in range(n)),
        r" \cup ".join(f"x < {k}" for k in range(n)),
        " = ".join(f"x^{k}" for k in range(n)),
        rf"|x - {n}| + |x + {n}| < |x|^{n}",
        r"\neg " * n + "x",
        f"x^{n} + y^{n} = z^{n}",
        f"x^{n} - x + 1 > 0",
    ]
    return rng.choice(forms)


def complex_numbers(rng: Draw) -> str:
    n = rng.choice([3, 17, 997, 10**6])
    forms = [
        f"i^{{i^{{i^{{{n}}}}}}}",
        rf"e^{{\frac{{2 \pi i}}{{{n}}}}}",
        rf"(1+i)^{{{n}}}",
        rf"\sqrt[{n}]{{i}}",
        rf"\ln(-{n} + i)",
        rf"\left(\cos\frac{{\pi}}{{{n}}} + i\sin\frac{{\pi}}{{{n}}}\right)^{{{n}}}",
        rf"|{n} + {n}i|",
        rf"\overline{{{n} + i}}",
        rf"({n}, i)",
        rf"[i, {n}]",
        rf"\{{i, {n}\}}",
        f"i > {n}",
        rf"\arg({n}i)",
        r"\frac{1}{0i}",
    ]
    return rng.choice(forms)


def undefined_values(rng: Draw) -> str:
    forms = [
        r"\frac{1}{0}",
        r"\frac{0}{0}",
        r"\infty - \infty",
        r"0^0",
        r"0^{-1}",
        r"\ln(0)",
        r"\tan(\frac{\pi}{2})",
        r"\infty",
        r"-\infty",
        r"\infty^\infty",
        r"\sqrt{-\infty}",
        r"[\infty, 1]",
        r"(2, 1)",
        r"[3, 3)",
        r"\{\}",
        r"\emptyset",
        r"\frac{x}{x - x}",
        r"\text{NaN}",
        r"\text{zoo}",
        r"nan",
        r"oo",
        r"zoo",
        "True",
        "None",
        r"\lim",
        r"1 = 1",
        "0 = 1",
        r"(\infty, -\infty)",
        r"\frac{\infty}{\infty}",
        r"\binom{-1}{2}",
        r"(-3)!",
        r"\Gamma(0)",
        r"\log_1(5)",
        r"\log_0(0)",
        r"\sqrt[0]{2}",
        r"1^\infty",
    ]
    chosen = rng.choice(forms)
    return rng.choice(
        [
            chosen,
            f"{chosen} + {rng.choice(forms)}",
            f"({chosen}, {rng.choice(forms)})",
            rf"\{{{chosen}\}}",
            f"x = {chosen}",
        ]
    )


def repeated_units(rng: Draw) -> str:
    piece = rng.choice(
        [
            r"\%",
            r"\text{ cm}",
            r"^\circ",
            r"\text{ or 6}",
            r"\text{\text{",
            r"\$",
            r"\mathrm{m}^2",
            r" dollars",
            r"\text{ million}",
            r"_{2}",
            r"\,",
            r"\text{ and six}",
        ]
    )
    return "18" + piece * rng.choice([1, 2, 5, 40, 300])


def identities(rng: Draw) -> str:
    n = rng.choice([2, 4, 8, 16])
    forms = [
        r" \cdot ".join(rf"\cos({k})" for k in range(1, n)),
        "+".join(rf"\sin({k})^2" for k in range(1, n)),
        "+".join(rf"\sqrt{{{k}}}" for k in range(2, n + 3)),
        r"\cdot ".join(rf"(\sqrt{{{k}}} + 1)" for k in range(2, n + 3)),
        rf"\left(\sqrt{{2}}+\sqrt{{3}}\right)^{{{n * 8}}}",
        rf"\sqrt[3]{{{n}+\sqrt{{{n * n - 1}}}}} + \sqrt[3]{{{n}-\sqrt{{{n * n - 1}}}}}",
        rf"\sin(x)^{{{n}}} + \cos(x)^{{{n}}}",
        rf"\arctan({n}) + \arctan(\frac{{1}}{{{n}}})",
        "+".join(rf"\ln({k})" for k in range(2, n + 3)),
        rf"\cos({n}\arccos(x))",
        rf"\frac{{e^{{x}} + e^{{-x}}}}{{{n}}}",
        rf"\sinh({n}x)",
    ]
    return rng.choice(forms)


def spliced(rng: Draw) -> str:
    """Two other strategies, cut and joined."""
    first, second = (rng.choice(_SHORT)(rng)[:600] for _ in range(2))
    at, to = rng.randint(0, len(first)), rng.randint(0, len(second))
    return first[:at] + rng.choice(["", "+", "=", ",", r"\cdot ", "^", " "]) + second[to:]


def mutated(rng: Draw) -> str:
    """A damaged well-formed response, as `benchmarks/fuzz_rewards.py` makes them."""
    return next(iter(fuzz_rewards.mutants(rng.getrandbits(32), 1)))[:20_000]


def hostile_arguments(rng: Draw) -> str:
    name = rng.choice(
        [
            "add_note",
            "balance",
            "write_file",
            "transfer",
            "no_such",
            "__init__",
            "reset",
            "verdict",
            "call_tool",
            "state",
            "",
        ]
    )
    value = rng.choice(
        [
            0,
            -1,
            10**299,
            1.5,
            -0.0,
            "",
            "x" * 100_000,
            None,
            True,
            [],
            {},
            [[]] * 50,
            {"__class__": 1},
            "../../etc/passwd",
            "\u0000",
            "\ud800",
            {"self": 1},
            "9" * 400,
            {"a": {"b": {"c": []}}},
        ]
    )
    keys = rng.sample(
        ["text", "name", "self", "amount", "path", "__class__", "row", "world", "to", "", "args", "kwargs"],
        rng.randint(0, 4),
    )
    return json.dumps({"name": name, "arguments": dict.fromkeys(keys, value)})


def many_turns(rng: Draw) -> str:
    turn = rng.choice(
        [
            "",
            "Done.",
            "<tool_call>\n{}\n</tool_call>",
            "[f()]",
            "<think>",
            '<tool_call>{"name": "balance", "arguments": {"name": "rosa"}}</tool_call>' * 9,
            "x" * 50_000,
        ]
    )
    return TURN_BREAK.join([turn] * rng.choice([2, 9, 40]))


STRATEGIES: dict[str, Callable[[Draw], str]] = {
    strategy.__name__: strategy
    for strategy in (
        deep_nesting,
        power_towers,
        factorials,
        open_ended,
        huge_numbers,
        expansions,
        large_sets,
        matrices,
        nested_functions,
        rational_functions,
        large_roots,
        backtracking,
        giant_text,
        unicode_tricks,
        json_specials,
        python_literals,
        tag_confusion,
        forged_replies,
        latex_commands,
        logic,
        complex_numbers,
        undefined_values,
        repeated_units,
        identities,
        spliced,
        mutated,
        hostile_arguments,
        many_turns,
    )
}
_SHORT = tuple(
    STRATEGIES[name]
    for name in (
        "power_towers",
        "factorials",
        "expansions",
        "matrices",
        "nested_functions",
        "rational_functions",
        "large_roots",
        "latex_commands",
        "logic",
        "complex_numbers",
        "undefined_values",
        "identities",
        "unicode_tricks",
        "large_sets",
    )
)


# Where each reward looks for an answer, and how it judges.
def _calls_text(body: str, rng: Draw) -> str:
    forms = [
        f"<tool_call>{body}</tool_call>",
        f"[f(a={body})]",
        f'<tool_call>{{"name": "add_note", "arguments": {{"text": {body}}}}}</tool_call>',
        body,
        f"[{body}]",
    ]
    return rng.choice(forms)


def _mathematical(body: str, rng: Draw) -> str:
    return rng.choice([rf"\boxed{{{body}}}", rf"\boxed{{{body}}}", f"#### {body}", f"<answer>{body}</answer>", body])


def _numeric(body: str, rng: Draw) -> str:
    return rng.choice([f"#### {body}", f"#### 18{body}", rf"\boxed{{{body}}}", f"**{body}**", body])


def _equation(body: str, rng: Draw) -> str:
    return rng.choice(
        [f"<answer>{body}</answer>", f"<answer>3 * 5 + 7 = {body}</answer>", f"<answer>{body} = 22</answer>", body]
    )


def _thinking(place: Callable[[str, Draw], str]) -> Callable[[str, Draw], str]:
    return lambda body, rng: rng.choice(["<think>so</think>", "<think>so</think>", "", "<think>"]) + place(body, rng)


@cache
def _toolbox() -> tuple[Toolbox, list[Any]]:
    task = Toolbox(max_requests=2, chains=0.3, missing=0.3, errors=0.3)
    return task, list(task.problems("train")[:40])


def _judge_toolbox(text: str, rng: Draw) -> Verdict:
    task, problems = _toolbox()
    return task.judge(rng.choice(problems), text)


_CALL = [{"name": "add_note", "arguments": {"text": "barn"}}]
_ANSWERS = [{"add_note": {"text": ["barn", "a barn"], "tag": ["", "x"]}}]


def judges(pool: MathPool) -> dict[str, Callable[[str, Draw], Verdict]]:
    """Return how each reward judges a body: it is put in its place first."""

    def hybrid(text: str, rng: Draw) -> Verdict:
        return score("mixed", text, rng.choice(GOLDS), extra_info={"ability": "math"})

    by_reward: dict[str, tuple[Callable[[str, Draw], str], Callable[[str, Draw], Verdict]]] = {
        "math": (_mathematical, lambda t, rng: judge_math(t, rng.choice(GOLDS), timeout_s=MATH_TIMEOUT_S, pool=pool)),
        "gsm8k": (_numeric, lambda t, _: judge_gsm8k(t, "18", mode="shaped")),
        "countdown": (_equation, lambda t, _: judge_countdown(t, [3, 5, 7], 22)),
        "tool calls": (
            _calls_text,
            lambda t, rng: judge_tool_calls(t, _CALL, mode=rng.choice(["strict_think", "plain", "shaped"])),
        ),  # type: ignore[arg-type]
        "BFCL's answers": (_calls_text, lambda t, _: judge_tool_calls(t, _ANSWERS, mode="plain")),
        "no call expected": (_calls_text, lambda t, _: judge_tool_calls(t, [], mode="plain")),
        "hybrid": (_mathematical, hybrid),
        "toolbox": (lambda body, rng: _calls_text(body, rng) + rng.choice(["", TURN_BREAK + "Done."]), _judge_toolbox),
    }
    return {name: _judged(_thinking(place), judge) for name, (place, judge) in by_reward.items()}


def _judged(place: Callable[[str, Draw], str], judge: Callable[[str, Draw], Verdict]) -> Callable[[str, Draw], Verdict]:
    return lambda body, rng: judge(place(body, rng), rng)
