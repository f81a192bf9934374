"""Fuzz every text reward with millions of strings: no exception, nothing slow, no large memory.

    python benchmarks/fuzz_rewards.py --strings 1000000

A seeded generator cuts, splices, repeats and corrupts well-formed responses; hostile patterns grow to 10 MB. Every
verdict must have a documented reason, be in range, take at most 50 ms of processor time per 10 kB of text, and need at
most `MEMORY_FACTOR` times the text's memory. Exit code 1 if one does not.
"""

import argparse
import random
import resource
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from rich.console import Console
from rich.table import Table

from egpo.rewards import reasons_of, score
from egpo.rewards.answers import split_thinking
from egpo.rewards.code import LONGEST_PROGRAM, extract_program
from egpo.rewards.code import REASONS as CODE_REASONS
from egpo.rewards.countdown import REASONS as COUNTDOWN_REASONS
from egpo.rewards.countdown import judge_countdown
from egpo.rewards.gsm8k import REASONS as GSM8K_REASONS
from egpo.rewards.gsm8k import judge_gsm8k
from egpo.rewards.math import REASONS as MATH_REASONS
from egpo.rewards.math import judge_math
from egpo.rewards.math.judge import gold_form, settle_by_spelling
from egpo.rewards.tool_calls import REASONS as TOOL_CALL_REASONS
from egpo.rewards.tool_calls import judge_tool_calls
from egpo.rewards.verdict import Verdict

SLOWEST_MS_PER_10_KB = 50.0
MEMORY_FACTOR = 4
MEMORY_FLOOR_BYTES = 4 << 20
GROWTH_LIMIT_BYTES = 512 << 20
HOSTILE_CHARACTERS = 100_000
LARGE_CHARACTERS = 10_000_000
LARGE_STEP = 6
"""Of the hostile patterns, five forms of each, every sixth is also built large: most patterns, all forms in turn."""
CHECKED_SHARE = 200
"""One string in so many also goes to math-verify's workers, which take milliseconds where the others take micro."""

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": [1, 2.5, true, null]}}\n</tool_call>'
TOOLS = [
    {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array"}}},
    }
]
SCORED_ROWS: dict[str, tuple[object, dict[str, object]]] = {
    "function_calling": (CALL, {"mode": "plain", "tools": TOOLS, "index": 3}),
    "countdown": ({"nums": [3, 5, 7], "target": 22.0}, {"tags": ["<think>", "</think>"]}),
    "gsm8k": (18, {"mode": "binary"}),
}
"""A ground truth and an `extra_info` by data source."""


@dataclass
class Subject:
    """One reward under test, and its results so far."""

    name: str
    judge: Callable[[str], Verdict]
    reasons: dict[str, str]
    highest: float = 1.0
    count: int = 0
    slowest_ms: float = 0.0
    memory_factor: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def _spelled(text: str) -> Verdict:
    """Return the verdict of the math reward without its worker processes: what they would judge counts as
    unparsable."""
    _, reason = settle_by_spelling(text, gold_form("18"))
    return Verdict(float(reason == "correct"), reason == "correct", reason or "unparsable")


def _extracted(text: str) -> Verdict:
    """Return the verdict of the code reward without its sandbox: a program that it would run counts as correct."""
    program = extract_program(split_thinking(text).answer)
    if program is None:
        return Verdict(0.0, False, "no_code")
    return Verdict(0.0, False, "too_long") if len(program) > LONGEST_PROGRAM else Verdict(1.0, True, "correct")


def _scored(data_source: str) -> Subject:
    """Judge a response as training does: convert the values of a data row, read its settings, and find its reward by
    `data_source`."""
    truth, extra = SCORED_ROWS[data_source]
    return Subject(
        f"score {data_source}", lambda text: score(data_source, text, truth, extra), dict(reasons_of(data_source))
    )


# Every text reward: a name, the call, its reasons and its highest reward.
def subjects() -> list[Subject]:
    tool_calls = [
        Subject(f"tool_calls {mode}", _tool_calls(mode), TOOL_CALL_REASONS, 1.1 if mode == "shaped" else 1.0)
        for mode in ("strict_think", "plain", "shaped")
    ]
    return [
        Subject("countdown shaped", lambda text: judge_countdown(text, [3, 5, 7], 22), COUNTDOWN_REASONS),
        Subject("countdown binary", lambda t: judge_countdown(t, [3, 5, 7], 22, mode="binary"), COUNTDOWN_REASONS),
        Subject("gsm8k binary", lambda text: judge_gsm8k(text, "#### 18"), GSM8K_REASONS),
        Subject("gsm8k shaped", lambda text: judge_gsm8k(text, "18", mode="shaped"), GSM8K_REASONS, 1.1),
        Subject("math by spelling", _spelled, MATH_REASONS),
        *tool_calls,
        Subject("code extraction", _extracted, CODE_REASONS),
        *map(_scored, SCORED_ROWS),
        Subject("tool_calls no call", lambda text: judge_tool_calls(text, [], mode="plain"), TOOL_CALL_REASONS),
    ]


def checked_subjects() -> list[Subject]:
    """Return the rewards that use another process. They are slow, and get a fraction of the strings."""
    return [Subject("math", lambda text: judge_math(text, r"\frac{37}{2}", timeout_s=0.5), MATH_REASONS)]


def _tool_calls(mode: str) -> Callable[[str], Verdict]:
    return lambda text: judge_tool_calls(text, CALL, mode=mode, tools=TOOLS)


SEEDS = (
    "<think>3 * 5 is 15, and 7 more is 22.</think>\n<answer>3 * 5 + 7 = 22</answer>",
    "<think>hm</think><answer>(3 + 5) * 7 - -3 / 5</answer>",
    "9 eggs at $2 are $18.\n#### 18",
    "The answer is **$1,080.50**.",
    r"<think>so</think>Therefore $\boxed{\frac{37}{2}}$.",
    r"\boxed{x^{2} + \sqrt{3} = 18.5, \text{ or } \{1, 2\}}",
    f"<think>I look it up.</think>\n{CALL}",
    f"{CALL}\n{CALL}",
    "<think>so</think>```python\ndef f(x):\n    return x\n```\nor\n~~~\nprint(18)\n~~~",
    "<think>two</think>[get_weather(city='Oslo', days=[1, 2.5, True, None]), time.now(zone={'a': (1, 2)})]",
)
_WORDS = r"""
    <think> </think> <answer> </answer> <tool_call> </tool_call> #### ** \boxed{ \boxed } { ( ) [ ] , . ; - -- = ==
    \frac{1}{ \sqrt{ \text{ \left( $ $$ % \ \\ \u0000 \ud800 ' " # f( f(a= __import__('os') null true 18 22
    9**9**9**9 9^{9^{9^{9}}} 9999999! 101_2 1e999 1/0 0x1f 1_000 1,000 1{,}000 −5 3×5÷7 ٣ ² １８ NaN
    Infinity -Infinity 🙂
"""
FRAGMENTS = (
    *_WORDS.split(),
    *('{"a": 1, "a": 2}', '"arguments": "{\\"a\\": 1}"', "lambda: 0", '"""', "9" * 400, "e\u0301", "\u202e", "\ufeff"),
    *("```python\n", "```", "~~~", "`f(a=1)`", "f(a=1);", "[TOOL_CALLS]", '{"arguments": {}, "name": "f"}'),
    *("\x00", "\ud800", "\udfff", "\n", "\r", "\t", " " * 50),
)


def mutants(seed: int, count: int) -> Iterator[str]:
    """Yield responses with one to six corruptions. One in a thousand is repeated to about 30 kB, to find costs
    that grow faster than the length."""
    rng = random.Random(seed)
    for number in range(count):
        text = rng.choice(SEEDS) if rng.random() < 0.9 else ""
        for _ in range(rng.randint(1, 6)):
            text = _wound(text, rng)
        yield text * (30_000 // max(1, len(text))) if number % 1000 == 999 else text[:20_000]


def _wound(text: str, rng: random.Random) -> str:
    start, stop = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
    match rng.randrange(7):
        case 0:
            return text[:start] + text[stop:]
        case 1:
            return text[:stop] + text[start:]
        case 2:
            return text[:start] + rng.choice(FRAGMENTS) * rng.randint(1, 30) + text[start:]
        case 3:
            return text[:start] + chr(rng.choice((rng.randrange(128), rng.randrange(0x110000)))) + text[start:]
        case 4:
            return text + rng.choice(SEEDS)
        case 5:
            return text[:start] + rng.choice(FRAGMENTS) + text[stop:]
        case _:
            return text[:start] + rng.choice(FRAGMENTS) + text[start:stop] + rng.choice(FRAGMENTS) + text[stop:]


def hostile(characters: int) -> Iterator[str]:
    """Yield every fragment and patterns that cause backtracking, repeated to this length: alone and inside tags."""
    bait = (
        "<think><answer>",
        r"\boxed{\boxed{",
        "a" * 30 + "!",
        '{"a":',
        "f(a=[",
        "-(",
        "1+",
        "1,",
        "x=",
        "{}",
        "[[",
        "é",
    )
    for piece in (*FRAGMENTS, *bait):
        body = (piece * (characters // len(piece) + 1))[:characters]
        yield body
        yield f"<think>a</think><answer>{body}</answer>"
        yield f"<think>a</think><tool_call>{body}</tool_call>"
        yield f"\\boxed{{{body}}} #### {body[: characters // 2]}"
        yield f"[f(a={body})]"


def examine(subject: Subject, text: str, *, with_memory: bool = False) -> None:
    """Judge one text, and record the time and all violations of the limits."""
    try:
        elapsed_ms, verdict = _timed(subject, text)
        peak = _peak_bytes(subject, text) if with_memory else 0
    except Exception as error:  # the boundary of the fuzzer: any exception is a finding
        subject.faults.append(f"{type(error).__name__}: {error!s:.60} on {text[:60]!r}… ({len(text)} characters)")
        return
    _note(subject, text, verdict, elapsed_ms, peak)


def _peak_bytes(subject: Subject, text: str) -> int:
    """Return the peak memory of judging a text, measured in a separate call because tracemalloc makes it slower."""
    tracemalloc.start()
    try:
        subject.judge(text)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _timed(subject: Subject, text: str) -> tuple[float, Verdict]:
    """Return milliseconds of this thread's processor time per 10 kB. A slow text is measured again."""
    best = float("inf")
    for _ in range(3):
        start = time.thread_time()
        verdict = subject.judge(text)
        best = min(best, (time.thread_time() - start) * 1000 / max(1.0, len(text) / 10_000))
        if best < SLOWEST_MS_PER_10_KB:
            break
    return best, verdict


def _note(subject: Subject, text: str, verdict: Verdict, elapsed_ms: float, peak: int) -> None:
    subject.count += 1
    subject.seen[verdict.reason] += 1
    subject.slowest_ms = max(subject.slowest_ms, elapsed_ms)
    subject.memory_factor = max(subject.memory_factor, (peak - MEMORY_FLOOR_BYTES) / sys.getsizeof(text))
    where = f"on {text[:60]!r}… ({len(text)} characters)"
    if verdict.reason not in subject.reasons:
        subject.faults.append(f"undocumented reason {verdict.reason!r} {where}")
    if not 0.0 <= verdict.reward <= subject.highest:
        subject.faults.append(f"reward {verdict.reward} {where}")
    if elapsed_ms > SLOWEST_MS_PER_10_KB:
        subject.faults.append(f"{elapsed_ms:.0f} ms per 10 kB {where}")
    if peak > MEMORY_FLOOR_BYTES + MEMORY_FACTOR * sys.getsizeof(text):
        subject.faults.append(f"{peak >> 20} MB at its peak {where}")


def fuzz(num_strings: int, *, seed: int = 0, large_characters: int = LARGE_CHARACTERS) -> list[Subject]:
    """Judge the hostile patterns, measuring memory, then the mutants."""
    everybody, checked = subjects(), checked_subjects()
    for text in chain(hostile(HOSTILE_CHARACTERS), islice(hostile(large_characters), 0, None, LARGE_STEP)):
        for subject in everybody:
            examine(subject, text, with_memory=True)
    for number, text in enumerate(mutants(seed, num_strings)):
        for subject in everybody:
            examine(subject, text)
        if number % CHECKED_SHARE == 0:
            for subject in checked:
                examine(subject, text)
    return everybody + checked


def report(found: list[Subject], growth_bytes: int) -> None:
    table = Table("reward", "strings", "slowest, ms per 10 kB", "peak memory / text", "reasons", "faults")
    for subject in found:
        reasons = ", ".join(f"{name} {count}" for name, count in subject.seen.most_common())
        slowest, factor = f"{subject.slowest_ms:.2f}", f"{max(0.0, subject.memory_factor):.1f}"
        table.add_row(subject.name, f"{subject.count:,}", slowest, factor, reasons, str(len(subject.faults)))
    console = Console(width=180)
    console.print(table)
    console.print(f"The process grew by {growth_bytes >> 20} MB.")
    for subject in found:
        for fault in subject.faults[:20]:
            console.print(f"{subject.name}: {fault}", markup=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large-characters", type=int, default=LARGE_CHARACTERS)
    arguments = parser.parse_args()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = fuzz(arguments.strings, seed=arguments.seed, large_characters=arguments.large_characters)
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    report(found, growth)
    return 1 if growth > GROWTH_LIMIT_BYTES or any(subject.faults for subject in found) else 0


if __name__ == "__main__":
    sys.exit(main())
