"""A converted row is one that its reward can read: of whatever a record holds, the rest is dropped and counted."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.data import SplitRule, convert, read_records, read_rows
from egpo.data.conversations import ToolStyle
from egpo.data.conversion import CONVERTERS
from egpo.data.readers import Record
from egpo.data.rows import Dropped, Row
from egpo.errors import InputError
from egpo.rewards import score
from egpo.rewards.tool_calls import judge_tool_calls, read_ground_truth

TOOLS = [{"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}]


def nested(levels):
    return "[" * levels + "]" * levels


UNREADABLE = {
    "NaN": '{"a": NaN}',
    "Infinity": '{"a": [-Infinity]}',
    "beyond a double": '{"a": 1e999}',
    "long integer": '{"a": ' + "9" * 400 + "}",
    "long with its sign": '{"a": -' + "9" * 300 + "}",
    "one level too deep": '{"a": ' + nested(63) + "}",
    "deep": '{"a": ' + nested(70) + "}",
    "very deep": '{"a": ' + nested(100_000) + "}",
    "key twice": '{"a": 1, "a": 2}',
    "inner key twice": '{"a": {"b": 1, "b": 2}}',
    "over a million characters": '{"a": "' + "x" * 1_000_001 + '"}',
}
READABLE = {
    "longest integer": '{"a": -' + "9" * 299 + "}",
    "deepest": '{"a": ' + nested(62) + "}",
    "long decimals": '{"a": 0.' + "1" * 400 + "}",
    "tags": '{"a": "</think><tool_call>"}',
}


def forms_of(arguments):
    """The same call in every form that a record may have as text."""
    call = f'{{"name": "f", "arguments": {arguments}}}'
    user, system = {"role": "user", "content": "q"}, {"role": "system", "content": "", "tools": json.dumps(TOOLS)}
    tagged = {"role": "assistant", "content": f"<think>x</think><tool_call>{call}</tool_call>"}
    openai = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    return [
        ("xlam", {"query": "q", "tools": json.dumps(TOOLS), "answers": f"[{call}]"}),
        ("messages", {"messages": [user, tagged], "tools": TOOLS}),
        ("messages", {"messages": [user, openai], "tools": TOOLS}),
        ("hardgen", {"0": system, "1": user, "2": tagged}),
    ]


def made(kind, value):
    return CONVERTERS[kind](Record(value, "here"), 0, ToolStyle())


@pytest.mark.parametrize("arguments", UNREADABLE.values(), ids=UNREADABLE)
def test_calls_that_no_reward_reads_are_dropped(arguments):
    for kind, value in forms_of(arguments):
        assert made(kind, value) == Dropped("bad_calls"), kind


@pytest.mark.parametrize("arguments", [READABLE[name] for name in READABLE if name != "tags"])
def test_what_is_just_within_the_bounds_is_kept_and_read(arguments):
    for kind, value in forms_of(arguments):
        (call,) = read_ground_truth(made(kind, value).ground_truth)
        assert call.arguments == json.loads(arguments)


def test_tags_in_an_argument_are_kept_and_read():
    for kind, value in [forms_of(READABLE["tags"])[i] for i in (0, 2)]:
        (call,) = read_ground_truth(made(kind, value).ground_truth)
        assert call.arguments == {"a": "</think><tool_call>"}


@pytest.mark.parametrize(
    "text",
    [
        "{'b': 1, 'b': 2}",
        "{1: 1, '1': 2}",
        "9" * 400,
        nested(63),
        "[{'b': 1, 'b': 2}]",
    ],
)
def test_a_python_list_of_calls_is_held_to_the_same(text):
    _, value = forms_of("{}")[3]
    value["2"] = {"role": "assistant", "content": f"[f(a={text})]"}
    assert made("hardgen", value) == Dropped("bad_calls")


def test_values_that_the_file_itself_holds_are_held_to_the_same(tmp_path):
    """Not as JSON text inside the record: the reader of the file has decoded them already."""
    path = tmp_path / "x.jsonl"
    calls = ['{"a": 1e999}', '{"a": ' + "9" * 400 + "}", '{"a": ' + nested(70) + "}", '{"a": 1}']
    rows = [
        f'{{"query": "{i}", "tools": [], "answers": [{{"name": "f", "arguments": {a}}}]}}\n'
        for i, a in enumerate(calls)
    ]
    path.write_text("".join(rows) + rows[-1].replace('"3"', '"4"'))
    done = convert("xlam", path, tmp_path / "out", SplitRule(test_size=0.5))
    assert done.dropped == {"bad_calls": 3}
    for row in read_rows(tmp_path / "out" / "train.parquet"):
        right = f"<think>x</think>{row.ground_truth}"
        assert score(row.data_source, right, row.ground_truth, dict(row.extra)).correct


@pytest.mark.parametrize(
    "tools",
    [
        '[{"name": "f", "x": NaN}]',
        '[{"name": "f", "x": 1e999}]',
        '[{"name": "f", "x": 1, "x": 2}]',
        '[{"name": "f", "x": ' + nested(63) + "}]",
        '[{"name": "f", "parameters": "none"}]',
        '[{"name": "f", "parameters": {"type": "object", "properties": {"a": true}}}]',
        '[{"name": "f", "parameters": {"type": "object", "required": "a"}}]',
    ],
)
def test_tools_that_no_reward_reads_are_dropped(tools):
    _, value = forms_of("{}")[1]
    assert made("messages", {**value, "tools": tools}) == Dropped("bad_tools")


def test_the_schema_that_xlam_tools_become_is_within_the_bounds_too():
    for levels, kept in ((59, True), (60, False)):
        tools = [{"name": "f", "parameters": {"a": {"default": json.loads(nested(levels))}}}]
        row = made("xlam", {"query": "q", "tools": json.dumps(tools), "answers": "[]"})
        assert isinstance(row, Row) is kept
        if kept:
            wrong = '<tool_call>{"name": "f", "arguments": {"zz": 0}}</tool_call>'
            assert judge_tool_calls(wrong, "", mode="plain", tools=row.extra["tools"]).reward == 0.0


@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
def test_a_key_that_comes_twice_in_a_record_is_broken_json(tmp_path, name):
    path = tmp_path / name
    path.write_text('{"0": {"role": "user", "content": "q"}, "1": {"role": "user"}, "1": {"role": "user"}}')
    with pytest.raises(InputError, match=r"(line|record) 1: the record is not valid JSON \(a key occurs twice\)"):
        list(read_records(path))


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(10**400),
    st.sampled_from(["</think>", "<think>", "<tool_call>", "</tool_call>", "[f(a=1)]", "NaN"]),
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
) | st.integers(55, 70).map(lambda levels: json.loads(nested(levels)))
names = st.sampled_from(["f", "g.h", "", "</think>", "<tool_call>"])
some_calls = st.lists(
    st.fixed_dictionaries({"name": names, "arguments": st.dictionaries(st.text(max_size=3), values, max_size=3)}),
    max_size=3,
)
specs = st.fixed_dictionaries({"name": names}, optional={"parameters": values | st.just(TOOLS[0]["parameters"])})
offered = st.just(TOOLS) | st.lists(specs, max_size=2)
words = st.sampled_from(["", "So. ", "</think>", "<think>", "</tool_call>"])


def in_python(calls):
    spelt = (", ".join(f"a{i}={v!r}" for i, v in enumerate(call["arguments"].values())) for call in calls)
    return "[" + ", ".join(f"{call['name']}({arguments})" for call, arguments in zip(calls, spelt, strict=True)) + "]"


def tagged(calls, word):
    return word.join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)


def record_of(kind, calls, tools, word, form):
    text = in_python(calls) if form == "python" else word + tagged(calls, word) + word
    user, last = {"role": "user", "content": "q"}, {"role": "assistant", "content": text}
    if kind == "xlam":
        return {"query": "q", "tools": json.dumps(tools), "answers": json.dumps(calls) if form == "text" else calls}
    if kind == "hardgen":
        return {"0": {"role": "system", "tools": json.dumps(tools)}, "1": user, "2": last}
    fields = calls if form == "text" else [{**call, "arguments": json.dumps(call["arguments"])} for call in calls]
    last = last if form == "python" else {"role": "assistant", "content": word, "tool_calls": fields}
    return {"messages": [user, last], "tools": tools}


@pytest.mark.parametrize("kind", sorted(CONVERTERS))
@given(calls=some_calls, tools=offered, word=words, form=st.sampled_from(["text", "python", "objects"]))
def test_every_converted_row_is_readable_by_its_reward(kind, calls, tools, word, form):
    row = made(kind, record_of(kind, calls, tools, word, form))
    if not isinstance(row, Row):
        return
    expected = read_ground_truth(row.ground_truth)
    assert len(expected) == row.ground_truth.count("<tool_call>\n{")
    if kind == "xlam":
        assert [call.name for call in expected] == [call["name"] for call in calls]
    # A wrong answer makes the reward look into each tool.
    for tool in json.loads(row.extra["tools"]):
        wrong = f'<tool_call>{{"name": {json.dumps(tool["name"])}, "arguments": {{"zz": 0}}}}</tool_call>'
        judge_tool_calls(wrong, row.ground_truth, mode="plain", tools=row.extra["tools"])
