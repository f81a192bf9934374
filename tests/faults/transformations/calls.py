"""Tool calls: transformations of right calls, judged by the exact calls and by BFCL's possible answers.

The verdicts differ where the two rules differ: BFCL ignores case and punctuation of strings and refuses 1.0 for 1.
"""

import json
import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from egpo.rewards.tool_calls import judge_tool_calls, read_ground_truth
from egpo.rewards.verdict import Verdict
from egpo.tasks.function_calling import FunctionCalling
from tests.bfcl.cases import PYTHON, cases, right_calls
from tests.bfcl.test_agreement import UNANSWERABLE
from tests.faults.transformations import REFUSED, RIGHT, WRONG, Transformation
from tests.rewards.tool_calls.responses import listed, tagged

Calls = list[tuple[str, dict[str, Any]]]
EXACT, BFCL = "exact calls", "BFCL's answers"
THOUGHT = "<think>\nLet me see.\n</think>\n\n"
_STRAY = ("no_such_function", {"no_such_argument": 1})


@dataclass(frozen=True, eq=False)
class CallTruth:
    """The right calls of a problem, its tools, and BFCL's possible answers, if it is a case of BFCL."""

    id: str
    calls: Calls
    tools: str
    answers: str = ""
    required: frozenset[tuple[str, str]] = frozenset()

    def __str__(self) -> str:
        return f"{self.id} {listed(*self.calls)}"


def truths(count: int | None = None) -> list[CallTruth]:
    """Return the single-turn Python cases of BFCL if its environment is there, else generated problems."""
    found = list(_from_bfcl() if PYTHON.exists() else _generated())
    return found if count is None else random.Random(0).sample(found, min(count, len(found)))


def _from_bfcl() -> Iterator[CallTruth]:
    for case in cases():
        if case.id in UNANSWERABLE:
            continue
        calls = [named for call in right_calls(case, pick=0, leave_out=False) for named in call.items()]
        required = {(tool["name"], name) for tool in case.tools for name in tool["parameters"].get("required", ())}
        yield CallTruth(case.id, calls, case.tools_json, case.answers_json, frozenset(required))


def _generated() -> Iterator[CallTruth]:
    for problem in FunctionCalling().problems("train")[:1_000]:
        calls = [(call.name, dict(call.arguments)) for call in read_ground_truth(problem.ground_truth)]  # type: ignore[union-attr]
        if calls:
            yield CallTruth(problem.key, calls, str(problem.extra["tools"]))


def judge_exact(truth: CallTruth, text: str) -> Verdict:
    expected = [{"name": name, "arguments": arguments} for name, arguments in truth.calls]
    return judge_tool_calls(text, expected, mode="strict_think", tools=truth.tools)


def judge_by_answers(truth: CallTruth, text: str) -> Verdict:
    return judge_tool_calls(text, truth.answers, mode="strict_think", tools=truth.tools)


Change = Callable[[CallTruth], Calls | None]


def _text(write: Callable[[Calls], str | None]) -> Callable[[CallTruth], str | None]:
    def response(truth: CallTruth) -> str | None:
        text = write(deepcopy(truth.calls))
        return None if text is None else THOUGHT + text

    return response


def _whole(write: Callable[[Calls], str | None]) -> Callable[[CallTruth], str | None]:
    return lambda truth: write(deepcopy(truth.calls))


def _changed(change: Change, syntax: Callable[..., str] = tagged) -> Callable[[CallTruth], str | None]:
    def response(truth: CallTruth) -> str | None:
        calls = change(truth)
        return None if calls is None else THOUGHT + syntax(*calls)

    return response


def _objects(calls: Calls, **style: Any) -> list[str]:
    return [json.dumps({"name": name, "arguments": arguments}, **style) for name, arguments in calls]


def _in_tags(bodies: list[str], opening: str = "<tool_call>\n", closing: str = "\n</tool_call>") -> str:
    return "\n".join(f"{opening}{body}{closing}" for body in bodies)


def _with_first(calls: Calls, arguments: dict[str, Any]) -> Calls:
    return [(calls[0][0], arguments), *calls[1:]]


def _first_value(
    truth: CallTruth, kinds: type | tuple[type, ...], change: Callable[[Any], Any], *, only_required: bool = False
) -> Calls | None:
    """Change the first argument of this type in the first call. Nothing where the change changes nothing, or where one
    of the possible answers allows the new value."""
    name, arguments = truth.calls[0]
    for key, value in arguments.items():
        exact_type = type(value) in (kinds if isinstance(kinds, tuple) else (kinds,))
        if not exact_type or (only_required and (name, key) not in truth.required):
            continue
        new = change(deepcopy(value))
        if json.dumps(new) == json.dumps(value) or (truth.answers and json.dumps(new).lower() in truth.answers.lower()):
            continue
        return _with_first(truth.calls, {**arguments, key: new})
    return None


def _first_key(truth: CallTruth, change: Callable[[str], str]) -> Calls | None:
    arguments = truth.calls[0][1]
    if not arguments:
        return None
    key = next(iter(arguments))
    if change(key) in arguments or change(key) == key or f'"{change(key)}"' in truth.tools:
        return None
    return _with_first(truth.calls, {change(old) if old == key else old: value for old, value in arguments.items()})


def _without_one(truth: CallTruth) -> Calls | None:
    name, arguments = truth.calls[0]
    keys = [key for key in arguments if not truth.answers or (name, key) in truth.required]
    return _with_first(truth.calls, {k: v for k, v in arguments.items() if k != keys[0]}) if keys else None


def _rotated(truth: CallTruth) -> Calls | None:
    arguments = truth.calls[0][1]
    values = list(arguments.values())
    if len({json.dumps(value) for value in values}) < 2 or len({type(value) for value in values}) < len(values):
        return None
    return _with_first(truth.calls, dict(zip(arguments, values[1:] + values[:1], strict=True)))


def _named(change: Callable[[str], str]) -> Change:
    def response(truth: CallTruth) -> Calls | None:
        name, arguments = truth.calls[0]
        new = change(name)
        return None if new == name or f'"{new}"' in truth.tools else [(new, arguments), *truth.calls[1:]]

    return response


def _value(kinds: type | tuple[type, ...], change: Callable[[Any], Any]) -> Change:
    return lambda truth: _first_value(truth, kinds, change)


_NUMBERS = (int, float)
_LETTERS = str.maketrans("aeopc", "аеорс")  # Cyrillic

# name, kind, verdict by exact calls, verdict by BFCL's answers ("" if it is not defined there), response
_ROWS: tuple[tuple[str, str, str, str, Callable[[CallTruth], str | None]], ...] = (
    ("tagged", "syntax", RIGHT, RIGHT, _text(lambda c: tagged(*c))),
    ("listed", "syntax", RIGHT, RIGHT, _text(lambda c: listed(*c))),
    ("compact JSON", "syntax", RIGHT, RIGHT, _text(lambda c: _in_tags(_objects(c, separators=(",", ":"))))),
    ("indented JSON", "syntax", RIGHT, RIGHT, _text(lambda c: _in_tags(_objects(c, indent=4)))),
    ("letters unescaped", "syntax", RIGHT, RIGHT, _text(lambda c: _in_tags(_objects(c, ensure_ascii=False)))),
    (
        "arguments before the name",
        "syntax",
        RIGHT,
        RIGHT,
        _text(lambda c: _in_tags([json.dumps({"arguments": a, "name": n}) for n, a in c])),
    ),
    (
        "arguments as JSON text",
        "syntax",
        RIGHT,
        RIGHT,
        _text(lambda c: _in_tags([json.dumps({"name": n, "arguments": json.dumps(a)}) for n, a in c])),
    ),
    (
        "no line breaks",
        "syntax",
        RIGHT,
        RIGHT,
        _text(lambda c: "".join(_in_tags([b], "<tool_call>", "</tool_call>") for b in _objects(c))),
    ),
    ("carriage returns", "syntax", RIGHT, RIGHT, _text(lambda c: tagged(*c).replace("\n", "\r\n"))),
    ("text before", "syntax", RIGHT, RIGHT, _text(lambda c: "I call it now.\n" + tagged(*c))),
    ("text after", "syntax", RIGHT, RIGHT, _text(lambda c: tagged(*c) + "\nThat is all.")),
    ("text between", "syntax", RIGHT, RIGHT, _text(lambda c: "\nthen\n".join(tagged(one) for one in c))),
    ("tagged in a fence", "syntax", RIGHT, RIGHT, _text(lambda c: f"```json\n{tagged(*c)}\n```")),
    ("list in a fence", "syntax", RIGHT, RIGHT, _text(lambda c: f"```python\n{listed(*c)}\n```")),
    ("list in a bare fence", "syntax", RIGHT, RIGHT, _text(lambda c: f"```\n{listed(*c)}\n```")),
    (
        "list over lines",
        "syntax",
        RIGHT,
        RIGHT,
        _text(lambda c: "[\n" + ",\n".join(listed(one)[1:-1] for one in c) + ",\n]"),
    ),
    ("list with spaces", "syntax", RIGHT, RIGHT, _text(lambda c: f"  {listed(*c)}  \n")),
    (
        "keys with escapes",
        "syntax",
        RIGHT,
        RIGHT,
        _text(lambda c: _in_tags([b.replace('"name"', '"n\\u0061me"', 1) for b in _objects(c)])),
    ),
    ("calls reversed", "order", RIGHT, RIGHT, _changed(lambda t: t.calls[::-1])),
    ("calls reversed, listed", "order", RIGHT, RIGHT, _changed(lambda t: t.calls[::-1], listed)),
    (
        "arguments reversed",
        "order",
        RIGHT,
        RIGHT,
        _changed(lambda t: [(n, dict(reversed(a.items()))) for n, a in t.calls]),
    ),
    (
        "arguments reversed, listed",
        "order",
        RIGHT,
        RIGHT,
        _changed(lambda t: [(n, dict(reversed(a.items()))) for n, a in t.calls], listed),
    ),
    (
        "a wrong draft in the thought",
        "thinking",
        RIGHT,
        RIGHT,
        _whole(lambda c: f"<think>{tagged(_STRAY)}</think>{tagged(*c)}"),
    ),
    (
        "a wrong list in the thought",
        "thinking",
        RIGHT,
        RIGHT,
        _whole(lambda c: f"<think>{listed(_STRAY)}</think>{listed(*c)}"),
    ),
    ("the prompt opened the thinking", "thinking", RIGHT, RIGHT, _whole(lambda c: f"so</think>{tagged(*c)}")),
    (
        "a broken call in the thought",
        "thinking",
        RIGHT,
        RIGHT,
        _whole(lambda c: f"<think><tool_call>{{</think>\n{tagged(*c)}"),
    ),
    ("one newline after the thought", "thinking", RIGHT, RIGHT, _whole(lambda c: f"<think>a</think>\n{tagged(*c)}")),
    ("whole number as a real", "numbers", RIGHT, "", _changed(_value(int, float))),
    ("whole number with an exponent", "numbers", RIGHT, "", lambda t: _written_otherwise(t, int, lambda v: f"{v}e0")),
    ("whole number in hexadecimal", "numbers", RIGHT, RIGHT, lambda t: _written_otherwise(t, int, hex)),
    ("a tuple for a list", "numbers", RIGHT, "", lambda t: _written_otherwise(t, list, lambda v: repr(tuple(v)))),
    ("text in pieces", "numbers", RIGHT, RIGHT, lambda t: _written_otherwise(t, str, lambda v: f"{v[:1]!r} {v[1:]!r}")),
    (
        "a value in parentheses",
        "numbers",
        RIGHT,
        RIGHT,
        lambda t: _written_otherwise(t, (str, int, float), lambda v: f"({v!r})"),
    ),
    # the thinking block
    ("only in the thought", "thinking", WRONG, WRONG, _whole(lambda c: f"<think>{tagged(*c)}</think>I cannot.")),
    ("only in the thought, listed", "thinking", WRONG, WRONG, _whole(lambda c: f"<think>{listed(*c)}</think>")),
    ("thought never closed", "thinking", WRONG, WRONG, _whole(lambda c: f"<think>so\n{tagged(*c)}")),
    ("no thought", "thinking", WRONG, WRONG, _whole(lambda c: tagged(*c))),
    ("empty thought", "thinking", WRONG, WRONG, _whole(lambda c: f"<think> \u200b\n</think>{tagged(*c)}")),
    ("text before the thought", "thinking", WRONG, WRONG, _whole(lambda c: f"Well. <think>a</think>{tagged(*c)}")),
    ("a thought in the thought", "thinking", WRONG, WRONG, _whole(lambda c: f"<think>a<think>b</think>{tagged(*c)}")),
    ("a second thought", "thinking", WRONG, WRONG, _text(lambda c: f"<think>b</think>{tagged(*c)}")),
    ("a closing tag after the calls", "thinking", WRONG, WRONG, _text(lambda c: f"{tagged(*c)}</think>")),
    # the number of calls
    ("no call", "number of calls", WRONG, WRONG, _text(lambda c: "I cannot do that.")),
    ("empty answer", "number of calls", WRONG, WRONG, _text(lambda c: "")),
    ("empty list", "number of calls", WRONG, WRONG, _text(lambda c: "[]")),
    (
        "last call dropped",
        "number of calls",
        WRONG,
        WRONG,
        _changed(lambda t: t.calls[:-1] if len(t.calls) > 1 else None),
    ),
    ("last call doubled", "number of calls", WRONG, WRONG, _changed(lambda t: [*t.calls, t.calls[-1]])),
    ("last call doubled, listed", "number of calls", WRONG, WRONG, _changed(lambda t: [*t.calls, t.calls[-1]], listed)),
    ("all calls doubled", "number of calls", WRONG, WRONG, _changed(lambda t: t.calls * 2)),
    ("a stray call more", "number of calls", WRONG, WRONG, _changed(lambda t: [*t.calls, _STRAY])),
    ("a stray call for the last", "number of calls", WRONG, WRONG, _changed(lambda t: [*t.calls[:-1], _STRAY])),
    (
        "one call for all",
        "number of calls",
        WRONG,
        WRONG,
        _changed(
            lambda t: (
                [t.calls[0]] * len(t.calls)
                if len({json.dumps(c).lower() for c in t.calls}) == len(t.calls) > 1
                else None
            )
        ),
    ),
    (
        "a thousand times",
        "number of calls",
        WRONG,
        WRONG,
        _changed(lambda t: t.calls * 1_000 if len(t.calls) == 1 else None, listed),
    ),
    # names
    ("name with a suffix", "name", WRONG, WRONG, _changed(_named(lambda n: f"{n}_x"))),
    ("name with a prefix", "name", WRONG, WRONG, _changed(_named(lambda n: f"x.{n}"), listed)),
    ("name in other case", "name", WRONG, WRONG, _changed(_named(str.swapcase))),
    ("name without its last letter", "name", WRONG, WRONG, _changed(_named(lambda n: n[:-1] or "x"))),
    ("name with Cyrillic letters", "name", WRONG, WRONG, _changed(_named(lambda n: n.translate(_LETTERS)))),
    ("name with a space", "name", WRONG, WRONG, _changed(_named(lambda n: f"{n} "))),
    ("name with an invisible space", "name", WRONG, WRONG, _changed(_named(lambda n: f"{n}\u200b"))),
    ("name with underscores for dots", "name", WRONG, WRONG, _changed(_named(lambda n: n.replace(".", "_")))),
    ("last part of the name", "name", WRONG, WRONG, _changed(_named(lambda n: n.rpartition(".")[2]))),
    (
        "name in a list",
        "name",
        WRONG,
        WRONG,
        _text(lambda c: _in_tags([json.dumps({"name": [n], "arguments": a}) for n, a in c])),
    ),
    (
        "no name",
        "name",
        WRONG,
        WRONG,
        _text(lambda c: _in_tags([json.dumps({"name": "", "arguments": a}) for _, a in c])),
    ),
    # arguments
    ("an argument missing", "arguments", WRONG, WRONG, _changed(_without_one)),
    ("an argument missing, listed", "arguments", WRONG, WRONG, _changed(_without_one, listed)),
    (
        "an argument more",
        "arguments",
        WRONG,
        WRONG,
        _changed(lambda t: _with_first(t.calls, {**t.calls[0][1], "no_such_argument": 1})),
    ),
    (
        "an argument more, null",
        "arguments",
        WRONG,
        WRONG,
        _changed(lambda t: _with_first(t.calls, {**t.calls[0][1], "no_such_argument": None})),
    ),
    (
        "an empty key more",
        "arguments",
        WRONG,
        WRONG,
        _changed(lambda t: _with_first(t.calls, {**t.calls[0][1], "": 1})),
    ),
    ("a key renamed", "arguments", WRONG, WRONG, _changed(lambda t: _first_key(t, lambda k: f"{k}_x"))),
    ("a key in other case", "arguments", WRONG, WRONG, _changed(lambda t: _first_key(t, str.swapcase))),
    ("a key with a space", "arguments", WRONG, WRONG, _changed(lambda t: _first_key(t, lambda k: f" {k}"))),
    (
        "a key with Cyrillic letters",
        "arguments",
        WRONG,
        WRONG,
        _changed(lambda t: _first_key(t, lambda k: k.translate(_LETTERS))),
    ),
    (
        "a key with camel case",
        "arguments",
        WRONG,
        WRONG,
        _changed(lambda t: _first_key(t, lambda k: k.title().replace("_", ""))),
    ),
    ("values rotated", "arguments", WRONG, "", _changed(_rotated)),
    ("no arguments", "arguments", WRONG, "", _changed(lambda t: _with_first(t.calls, {}) if t.calls[0][1] else None)),
    (
        "arguments one level deeper",
        "arguments",
        WRONG,
        WRONG,
        _changed(lambda t: _with_first(t.calls, {"arguments": t.calls[0][1]}) if t.calls[0][1] else None),
    ),
    (
        "arguments as pairs",
        "arguments",
        WRONG,
        WRONG,
        _text(lambda c: _in_tags([json.dumps({"name": n, "arguments": list(a.items())}) for n, a in c])),
    ),
    # values
    ("number plus 7919", "value", WRONG, WRONG, _changed(_value(_NUMBERS, lambda v: v + 7919))),
    ("number plus 7919, listed", "value", WRONG, WRONG, _changed(_value(_NUMBERS, lambda v: v + 7919), listed)),
    ("number negated", "value", WRONG, WRONG, _changed(_value(_NUMBERS, lambda v: -v - 7919))),
    ("number times a thousand", "value", WRONG, "", _changed(_value(_NUMBERS, lambda v: v * 1000))),
    ("number plus 1e-9", "value", WRONG, "", _changed(_value(float, lambda v: v + 1e-9 if abs(v) < 1e4 else v))),
    ("whole number as text", "type", WRONG, "", _changed(_value(int, str))),
    ("whole number as a bool", "type", WRONG, WRONG, _changed(_value(int, bool))),
    ("bool turned", "value", WRONG, "", _changed(_value(bool, lambda v: not v))),
    ("bool as a number", "type", WRONG, WRONG, _changed(_value(bool, int))),
    ("bool as a real", "type", WRONG, "", _changed(_value(bool, float))),
    ("bool as text", "type", WRONG, "", _changed(_value(bool, str))),
    ("text replaced", "value", WRONG, WRONG, _changed(_value(str, lambda v: "no such value at all"))),
    ("text emptied", "value", WRONG, "", _changed(_value(str, lambda v: ""))),
    ("text longer", "value", WRONG, WRONG, _changed(_value(str, lambda v: f"{v} zzz"))),
    ("text broken off", "value", WRONG, "", _changed(_value(str, lambda v: v[:-1]))),
    ("text reversed", "value", WRONG, "", _changed(_value(str, lambda v: v[::-1]))),
    ("text in other case", "value", WRONG, RIGHT, lambda t: _other_case(t)),
    ("text with spaces", "value", WRONG, "", _changed(_value(str, lambda v: f" {v} "))),
    ("text with an invisible space", "value", WRONG, WRONG, _changed(_value(str, lambda v: f"{v}\u200b"))),
    ("text with Cyrillic letters", "value", WRONG, WRONG, _changed(_value(str, lambda v: v.translate(_LETTERS)))),
    ("text as a list", "type", WRONG, "", _changed(_value(str, lambda v: [v]))),
    ("text as an object", "type", WRONG, WRONG, _changed(_value(str, lambda v: {"value": v}))),
    ("text as null", "type", WRONG, "", _changed(_value(str, lambda v: None))),
    ("number as null", "type", WRONG, "", _changed(_value(_NUMBERS, lambda v: None))),
    ("list reversed", "value", WRONG, "", _changed(_value(list, lambda v: v[::-1]))),
    ("list longer", "value", WRONG, "", _changed(_value(list, lambda v: [*v, v[-1]] if v else v))),
    ("list shorter", "value", WRONG, "", _changed(_value(list, lambda v: v[:-1]))),
    ("list emptied", "value", WRONG, "", _changed(_value(list, lambda v: []))),
    ("list as an object", "type", WRONG, "", _changed(_value(list, lambda v: {}))),
    ("list as text", "type", WRONG, "", _changed(_value(list, json.dumps))),
    ("list in a list", "type", WRONG, "", _changed(_value(list, lambda v: [v]))),
    ("object with a key more", "value", WRONG, WRONG, _changed(_value(dict, lambda v: {**v, "no_such_key": 1}))),
    ("object emptied", "value", WRONG, "", _changed(_value(dict, lambda v: {}))),
    ("object as text", "type", WRONG, "", _changed(_value(dict, json.dumps))),
    # what no reader would call a call
    ("unclosed tag", "broken syntax", WRONG, WRONG, _text(lambda c: tagged(*c).removesuffix("</tool_call>"))),
    ("no opening tag", "broken syntax", WRONG, WRONG, _text(lambda c: tagged(*c).removeprefix("<tool_call>"))),
    ("a closing tag more", "broken syntax", WRONG, WRONG, _text(lambda c: f"{tagged(*c)}</tool_call>")),
    ("an opening tag more", "broken syntax", WRONG, WRONG, _text(lambda c: f"{tagged(*c)}<tool_call>")),
    ("tags in tags", "broken syntax", WRONG, WRONG, _text(lambda c: f"<tool_call>{tagged(*c)}</tool_call>")),
    ("broken off", "broken syntax", WRONG, WRONG, _text(lambda c: tagged(*c)[: -len("}\n</tool_call>")])),
    ("list broken off", "broken syntax", WRONG, WRONG, _text(lambda c: listed(*c)[:-1])),
    (
        "a key twice",
        "broken syntax",
        WRONG,
        WRONG,
        _text(lambda c: _in_tags([b[:-1] + ', "name": "x"}' for b in _objects(c)])),
    ),
    (
        "the same key twice",
        "broken syntax",
        WRONG,
        WRONG,
        _text(
            lambda c: _in_tags(
                [
                    json.dumps({"name": n})[:-1] + f', "arguments": {json.dumps(a)}, "arguments": {json.dumps(a)}}}'
                    for n, a in c
                ]
            )
        ),
    ),
    (
        "NaN as an argument",
        "broken syntax",
        WRONG,
        WRONG,
        _changed(lambda t: _with_first(t.calls, {**t.calls[0][1], "x": float("nan")})),
    ),
    (
        "infinity as an argument",
        "broken syntax",
        WRONG,
        WRONG,
        _changed(lambda t: _with_first(t.calls, {**t.calls[0][1], "x": float("inf")})),
    ),
    (
        "a key more in the call",
        "broken syntax",
        WRONG,
        WRONG,
        _text(lambda c: _in_tags([json.dumps({"name": n, "arguments": a, "result": 1}) for n, a in c])),
    ),
    (
        "null arguments",
        "broken syntax",
        WRONG,
        WRONG,
        _text(lambda c: _in_tags([json.dumps({"name": n, "arguments": None}) for n, _ in c])),
    ),
    (
        "arguments as text of text",
        "broken syntax",
        WRONG,
        WRONG,
        _text(lambda c: _in_tags([json.dumps({"name": n, "arguments": json.dumps(json.dumps(a))}) for n, a in c])),
    ),
    ("both syntaxes", "broken syntax", WRONG, WRONG, _text(lambda c: f"{listed(*c)}\n{tagged(*c)}")),
    ("tagged, then a list", "broken syntax", WRONG, WRONG, _text(lambda c: f"{tagged(*c)}\n{listed(*c)}")),
    (
        "an expression as an argument",
        "broken syntax",
        WRONG,
        WRONG,
        _text(lambda c: listed(*c).replace(")]", ", x=1+1)]") if c[-1][1] else None),
    ),
    (
        "a name as an argument",
        "broken syntax",
        WRONG,
        WRONG,
        _text(lambda c: listed(*c)[:-2] + ", x=y)]" if c[-1][1] else None),
    ),
    (
        "a call as an argument",
        "broken syntax",
        WRONG,
        WRONG,
        _text(lambda c: listed(*c)[:-2] + ", x=f(a=1))]" if c[-1][1] else None),
    ),
    (
        "an argument twice",
        "broken syntax",
        WRONG,
        WRONG,
        _text(
            lambda c: (
                listed(*c)[:-2] + ", " + ", ".join(f"{k}={v!r}" for k, v in c[-1][1].items()) + ")]"
                if c[-1][1]
                else None
            )
        ),
    ),
    (
        "text of a list of calls in a tag",
        "broken syntax",
        WRONG,
        WRONG,
        _text(lambda c: f"<tool_call>{listed(*c)}</tool_call>"),
    ),
    ("mentioned in prose", "broken syntax", WRONG, WRONG, _text(lambda c: f"One could call {listed(*c)[1:-1]} here.")),
    # right for a reader, refused by the rule
    ("text after the list", "refused syntax", REFUSED, REFUSED, _text(lambda c: f"{listed(*c)}\nThat is all.")),
    ("text before the list", "refused syntax", REFUSED, REFUSED, _text(lambda c: f"I call it now.\n{listed(*c)}")),
    ("call without its list", "refused syntax", REFUSED, REFUSED, _text(lambda c: listed(*c)[1:-1])),
    ("JSON without tags", "refused syntax", REFUSED, REFUSED, _text(lambda c: "\n".join(_objects(c)))),
    (
        "JSON list in one tag",
        "refused syntax",
        REFUSED,
        REFUSED,
        _text(lambda c: f"<tool_call>[{', '.join(_objects(c))}]</tool_call>"),
    ),
    (
        "key `parameters`",
        "refused syntax",
        REFUSED,
        REFUSED,
        _text(lambda c: _in_tags([json.dumps({"name": n, "parameters": a}) for n, a in c])),
    ),
    (
        "OpenAI's wrapping",
        "refused syntax",
        REFUSED,
        REFUSED,
        _text(lambda c: _in_tags([json.dumps({"function": {"name": n, "arguments": a}}) for n, a in c])),
    ),
    (
        "a call with an id",
        "refused syntax",
        REFUSED,
        REFUSED,
        _text(lambda c: _in_tags([json.dumps({"id": "1", "name": n, "arguments": a}) for n, a in c])),
    ),
    (
        "trailing comma in JSON",
        "refused syntax",
        REFUSED,
        REFUSED,
        _text(lambda c: _in_tags([f"{b[:-1]},}}" for b in _objects(c)])),
    ),
    (
        "single quotes in JSON",
        "refused syntax",
        REFUSED,
        REFUSED,
        _text(lambda c: _in_tags([repr({"name": n, "arguments": a}) for n, a in c])),
    ),
    ("a comment in the list", "refused syntax", REFUSED, REFUSED, _text(lambda c: f"{listed(*c)[:-1]}  # done\n]")),
    ("Mistral's mark", "refused syntax", REFUSED, REFUSED, _text(lambda c: f"[TOOL_CALLS][{', '.join(_objects(c))}]")),
    ("Llama's mark", "refused syntax", REFUSED, REFUSED, _text(lambda c: f"<|python_tag|>{'; '.join(_objects(c))}")),
    (
        "XML arguments",
        "refused syntax",
        REFUSED,
        REFUSED,
        _text(
            lambda c: "".join(
                f"<tool_call>\n<function={n}>\n"
                + "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in a.items())
                + "</function>\n</tool_call>"
                for n, a in c
            )
        ),
    ),
)


def _other_case(truth: CallTruth) -> str | None:
    """Write the first text argument in other case. By exact calls that is another value, by BFCL's rule the same."""
    name, arguments = truth.calls[0]
    for key, value in arguments.items():
        # BFCL compares text inside a list and an object without case, too; here only text itself is changed.
        if type(value) is str and value.swapcase() != value and value.lower() == value.swapcase().lower():
            return THOUGHT + tagged((name, {**arguments, key: value.swapcase()}), *truth.calls[1:])
    return None


def _written_otherwise(truth: CallTruth, kinds: type | tuple[type, ...], write: Callable[[Any], str]) -> str | None:
    """Write the first argument of this type in another Python notation of the same value, as a list of calls."""
    name, arguments = truth.calls[0]
    for key, value in arguments.items():
        if type(value) in (kinds if isinstance(kinds, tuple) else (kinds,)):
            written = ", ".join(f"{k}={write(v) if k == key else repr(v)}" for k, v in arguments.items())
            return f"{THOUGHT}[{', '.join([f'{name}({written})', *(listed(call)[1:-1] for call in truth.calls[1:])])}]"
    return None


def _table(column: int) -> tuple[Transformation, ...]:
    return tuple(Transformation(row[0], row[1], row[column], row[4]) for row in _ROWS if row[column])  # type: ignore[arg-type,misc]


BY_RULE = {EXACT: _table(2), BFCL: _table(3)}
