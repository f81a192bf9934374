"""Which texts are calls, and which reason the others get."""

import pytest

from egpo.rewards.tool_calls import Call, read_answer

ONE = '{"name": "f", "arguments": {"a": 1}}'
F1 = (Call("f", {"a": 1}),)


def calls(text):
    reading = read_answer(text)
    assert not reading.fault, reading
    return reading.calls


def fault(text):
    reading = read_answer(text)
    assert not reading.calls
    return reading.fault


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>{ONE}</tool_call>",
        f"<tool_call>\n{ONE}\n</tool_call>\n",
        f"I will look.\n<tool_call>\r\n\t{ONE} </tool_call> There.",
        f"```\n<tool_call>{ONE}</tool_call>\n```",
        '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "[f(a=1)]",
        "  [f(a=1),]\n",
        "```python\n[f(a=1)]\n```",
        "```\n[f(a=1)]```",
        "```[f(a=1)]```",
        "[f(a=0x1)]",
        "[f(a=(1))]",
        "[f(a=+1)]",
    ],
)
def test_one_call(text):
    assert calls(text) == F1


@pytest.mark.parametrize(
    "text", ["", "No.", "[]", "[ \n]", "[1, 2]", "[sorry]", "see [1](http://x)", "```\n[]\n```", "f (x) = 1"]
)
def test_no_call(text):
    assert calls(text) == ()


def test_arguments_of_every_kind():
    value = {"s": "é\n\"'", "i": -3, "f": 2.5, "b": True, "n": None, "l": [1, [2, []], {}], "o": {"k": {"x": [None]}}}
    written = ", ".join(f"{key}={one!r}" for key, one in value.items())
    assert calls(f"[f({written})]") == (Call("f", value),)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        ("'a' \"b\"\n'c'", "abc"),
        ("('a'\n 'b')", "ab"),
        ("r'\\d'", "\\d"),
        ("'\\d'", "\\d"),
        ("u'x'", "x"),
        ("'''it's \"so\"\n'''", 'it\'s "so"\n'),
        ('"""a""b"""', 'a""b'),
        ("''", ""),
        ("''''''", ""),
        ("'\\x41\\u00e9\\U0001F600\\101\\N{BULLET}\\t\\\n'", "Aé😀A•\t"),
        ("()", []),
        ("(1,)", [1]),
        ("(1, 2)", [1, 2]),
        ("[1,]", [1]),
        ("{'a': 1,}", {"a": 1}),
        ("1_000", 1000),
        ("- 1", -1),
        ("-0x1F", -31),
        (".5", 0.5),
        ("1.", 1.0),
        ("1e3", 1000.0),
    ],
)
def test_python_literals(literal, value):
    assert calls(f"[f(a={literal})]") == (Call("f", {"a": value}),)


@pytest.mark.parametrize(
    "text",
    [
        "[f()]",
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
    ],
)
def test_empty_arguments(text):
    assert calls(text) == (Call("f", {}),)


def test_positional_arguments_have_the_names_that_conversion_gives_them():
    assert calls("[f(1, 'x', b=2)]") == (Call("f", {"arg_0": 1, "arg_1": "x", "b": 2}),)
    assert fault("[f(b=2, 1)]") == "malformed_call"
    assert fault("[f(1, arg_0=1)]") == "malformed_call"


def test_python_s_own_words_are_names_of_parameters_too():
    assert calls("[f(from='a', class=1)]") == (Call("f", {"from": "a", "class": 1}),)


@pytest.mark.parametrize(
    "body",
    [
        "",
        "f",
        "{}",
        "[]",
        '"f"',
        '{"name": "f"}',
        '{"arguments": {}}',
        '{"name": "f", "parameters": {}}',
        '{"name": "f", "arguments": {}, "parameters": {}}',
        '{"name": "f", "arguments": {}, "id": 1}',
        '{"name": "", "arguments": {}}',
        '{"name": 1, "arguments": {}}',
        '{"name": "f", "arguments": null}',
        '{"name": "f", "arguments": []}',
        '{"name": "f", "arguments": ""}',
        '{"name": "f", "arguments": "[1]"}',
        '{"name": "f", "arguments": "\\"{}\\""}',
        "{'name': 'f', 'arguments': {}}",
        '{"name": "f", "arguments": {"a": 1,}}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": -Infinity}}',
        '{"name": "f", "arguments": {"a": 1e999}}',
        '{"name": "f", "arguments": {"a": 1e-400}}',
        '{"name": "f", "arguments": {"a": -0.0001e-400}}',
        '{"name": "f", "arguments": {"a": 1, "a": 1}}',
        '{"name": "f", "name": "f", "arguments": {}}',
        '{"name": "f", "arguments": "{\\"a\\": 1, \\"a\\": 1}"}',
        '{"name": "f", "arguments": {"a": "line\nbreak"}}',
        '{"name": "f", "arguments": {"a": ٣}}',
        f"[{ONE}]",
        f"{ONE}{ONE}",
        f"{ONE} and so on",
        f"<tool_call>{ONE}",
        f"```json\n{ONE}\n```",
    ],
)
def test_malformed_tagged_calls(body):
    assert fault(f"<tool_call>{body}</tool_call>") == "malformed_call"


@pytest.mark.parametrize(
    "text", [f"</tool_call><tool_call>{ONE}</tool_call>", f"<tool_call>{ONE}</tool_call></tool_call>", "</tool_call>"]
)
def test_a_stray_closing_tag_is_malformed(text):
    assert fault(text) == "malformed_call"


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>{ONE}",
        f"<tool_call>{ONE} and so on",
        f"<tool_call>{ONE[:-4]}",
        f"<tool_call>{ONE}</tool_call><tool_call>",
        f"<tool_call>{ONE}</tool_cal",
        "[f(a=1)",
        "[f(a=1), ",
        "[f(a='x",
        "[f(",
    ],
)
def test_unclosed_calls(text):
    assert fault(text) == "unclosed_call"


@pytest.mark.parametrize(
    "inside",
    [
        "a=b", "a=true", "a=null", "a=nan", "a=1+1", "a=1-1", "a=2**9", "a=--1", "a=1j", "a=1__0", "a=0777", "a=1 2",
        "a=b'x'", "a=f'x'", "a=f(1)", "a=__import__('os')", "a={1, 2}", "a={1: 2}", "a={'k': 1, 'k': 2}", "a=[1 2]",
        "a=[,]", "a={'k'}", "a={'k': }", "a={**{}}", "a=[*[]]", "**{}", "*[]", ",", "a=1,,", "a==1", "a=1 if 1 else 2",
        "a=lambda: 1", "a=[x for x in y]", "a=...", "a=1; b=2", "a='x", "a='''x'", "a='\\x4'", "a='\\N{no such}'",
        "a='\\U00110000'", "a=1.2.3", "a=1e999", "a=٣", "a='x'.upper()", "a=[1][0]", "True=1", "a=1 # note", "a='a\nb'",
        "a=1e-400", "a=0_0.1e-400",
        "a=1 b=2",
    ],
)  # fmt: skip
def test_only_literals(inside):
    assert fault(f"[f({inside})]") == "malformed_call"


@pytest.mark.parametrize(
    "text", ["[f(a=1)](b)]", "[f(a=1), 2]", "[f(a=1), [g(b=1)]]", "[f(a=1) g(b=1)]", "[f(a=1)(b=2)]", "[f(a=1).g(b=2)]"]
)
def test_only_calls_in_the_list(text):
    assert fault(text) in {"malformed_call", "text_after_list"}


def test_text_after_the_list():
    assert fault("[f(a=1)] as you asked") == "text_after_list"
    assert fault("[f(a=1)][0]") == "text_after_list"
    assert fault("[f(a=1)], [f(a=1)]") == "text_after_list"


def test_prose_around_a_list_makes_it_prose():
    assert calls("I would call [f(a=1)] here.") == ()


@pytest.mark.parametrize("text", [f"[f(a=1)]\n<tool_call>{ONE}</tool_call>", f"<tool_call>{ONE}</tool_call>\n[f(a=1)]"])
def test_mixed_syntaxes(text):
    assert fault(text) == "mixed_syntax"


@pytest.mark.parametrize("text", ["f(a=1)", "a.b()", ONE, f"[{ONE}]", f"```json\n{ONE}\n```", "```python\nf(a=1)\n```"])
def test_a_call_without_its_list_or_tags(text):
    assert fault(text) == "bare_call"
