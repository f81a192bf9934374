"""Raw turns, OpenAI messages and xlam rows to rows: the rules of each, and every reason for dropping."""

import json

import pytest

from egpo.data.conversations import DROP_REASONS, INSTRUCTION, ToolStyle, read_reply
from egpo.data.hardgen import convert_hardgen
from egpo.data.messages import convert_messages
from egpo.data.readers import Record
from egpo.data.rows import Dropped
from egpo.data.tool_prompt import qwen3_system_text, wrap
from egpo.data.xlam import convert_xlam, json_schema_tool
from egpo.errors import InputError
from tests.data.qwen3 import render

TOOLS = [{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
SYSTEM = {"role": "system", "content": "Be brief.", "tools": json.dumps(TOOLS)}


def raw(*turns, system=SYSTEM):
    return Record({str(n): turn for n, turn in enumerate([system, *turns])}, "raw.jsonl, line 7")


def turn(role, content):
    return {"role": role, "content": content}


def hardgen(*turns, style=None, **options):
    return convert_hardgen(raw(*turns, **options), 3, style or ToolStyle())


def openai(*messages, style=None, **fields):
    return convert_messages(Record({"messages": list(messages), **fields}, "m.jsonl, line 7"), 3, style or ToolStyle())


def test_a_raw_conversation_is_cut_after_its_last_turn_with_a_call():
    row = hardgen(
        turn("user", "  hi "),
        turn("assistant", "<think>\nhm, [f(a=9)]\n</think>\n\n[f(a=1)]"),
        turn("tool", [{"ok": True, "none": None}, "text"]),
        turn("assistant", ""),
        {},
        turn("user", "again"),
        turn("assistant", "thought</think>[f(a=1), f(2)]"),
        turn("tool", [1]),
        turn("assistant", "Done."),
    )
    assert list(row.prompt) == [
        turn("system", qwen3_system_text("Be brief.", TOOLS)),
        turn("user", "hi"),
        turn("assistant", CALL),
        turn(
            "user",
            '<tool_response>\n{"ok": true, "none": null}\n</tool_response>\n<tool_response>\ntext\n</tool_response>',
        ),
        turn("user", "again"),
    ]
    second = '<tool_call>\n{"name": "f", "arguments": {"arg_0": 2}}\n</tool_call>'
    assert row.ground_truth == f"{CALL}\n{second}"
    assert row.extra == {
        "tools": json.dumps(TOOLS),
        "answer": f"<think>\nthought\n</think>\n\n{CALL}\n{second}",
        "source_row": 3,
    }
    assert (row.data_source, row.ability) == ("hardgen", "function_calling")


def test_turns_go_in_numeric_order_and_not_in_the_order_of_the_file():
    value = {str(n): turn("user", str(n)) for n in (10, 9, 2, 1)}
    value |= {"11": turn("assistant", "[f(a=1)]"), "0": SYSTEM, "id": "x"}
    row = convert_hardgen(Record(value, "here"), 0, ToolStyle())
    assert [m["content"] for m in row.prompt[1:]] == ["1", "2", "9", "10"]


def test_turns_that_a_parquet_file_fills_with_null_are_no_turns():
    value = {"0": SYSTEM, "1": turn("user", "q"), "2": turn("assistant", "[f(a=1)]"), "3": None}
    assert convert_hardgen(Record(value, "here"), 0, ToolStyle()).ground_truth == CALL


def test_tool_results_spelt_by_python_become_json():
    row = hardgen(
        turn("user", "q"),
        turn("tool", "[{'a': True}, 'b']"),
        turn("tool", "plain"),
        turn("tool", {"k": 1}),
        turn("assistant", "[f(a=1)]"),
    )
    blocks = ['{"a": true}', "b", "plain", '{"k": 1}']
    assert row.prompt[-1] == turn("user", "\n".join(f"<tool_response>\n{block}\n</tool_response>" for block in blocks))


@pytest.mark.parametrize("tools", [TOOLS[0], {"f": {"parameters": TOOLS[0]["parameters"]}}])
def test_tools_may_be_an_object(tools):
    row = hardgen(
        turn("user", "q"), turn("assistant", "[f(a=1)]"), system={"role": "system", "tools": json.dumps(tools)}
    )
    assert json.loads(row.extra["tools"])[0]["name"] == "f"
    assert row.prompt[0]["content"].startswith(INSTRUCTION)


def test_an_instruction_of_ones_own_and_wrapped_tools():
    style = ToolStyle(instruction="Mine.", wrap_tools=True)
    row = hardgen(turn("user", "q"), turn("assistant", "[f(a=1)]"), style=style)
    assert row.prompt[0]["content"] == qwen3_system_text("Mine.", [wrap(TOOLS[0])])
    assert json.loads(row.extra["tools"]) == TOOLS


@pytest.mark.parametrize(
    ("turns", "system", "reason"),
    [
        ([turn("user", "q"), turn("assistant", "words")], SYSTEM, "no_call"),
        ([turn("user", "q"), turn("assistant", "[]")], SYSTEM, "no_call"),
        ([turn("user", "q")], SYSTEM, "no_call"),
        ([turn("assistant", "[f(a=1)]")], SYSTEM, "no_prompt"),
        ([turn("user", "q"), turn("assistant", "[f(a=g(1))]")], SYSTEM, "bad_calls"),
        ([turn("user", "q"), turn("assistant", "[sic]")], SYSTEM, "bad_calls"),
        ([turn("bot", "q"), turn("assistant", "[f(a=1)]")], SYSTEM, "unknown_role"),
        ([turn("user", "q"), turn("assistant", "[f(a=1)]")], turn("system", "x"), "no_tools"),
        ([turn("user", "q"), turn("assistant", "[f(a=1)]")], {**SYSTEM, "tools": "["}, "bad_tools"),
        ([turn("user", "q"), turn("assistant", "[f(a=1)]")], {**SYSTEM, "tools": "[{}]"}, "bad_tools"),
    ],
)
def test_every_reason_for_dropping_a_raw_conversation(turns, system, reason):
    assert hardgen(*turns, system=system) == Dropped(reason)
    assert reason in DROP_REASONS


@pytest.mark.parametrize("value", [{}, {"messages": []}, {"0": "x"}, {"0": SYSTEM, "1": 3}, {"²": {}}])
def test_what_is_no_raw_conversation_names_its_line(value):
    with pytest.raises(InputError, match=r"raw.jsonl, line 7: .*egpo convert messages"):
        convert_hardgen(Record(value, "raw.jsonl, line 7"), 0, ToolStyle())


def structured(calls):
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"type": "function", "function": call} for call in calls],
    }


CONVERSATION = [
    turn("system", "Be brief."),
    turn("user", "q"),
    structured([{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": '{"a": 2}'}]),
    turn("tool", "one"),
    turn("tool", "two"),
    turn("assistant", "So.\n<think>x"),
    turn("user", "again"),
]


def test_a_prompt_of_openai_messages_is_what_the_template_renders():
    row = openai(*CONVERSATION, structured([{"name": "f", "arguments": {"a": 1}}]), tools=TOOLS)
    assert render(list(row.prompt), add_generation_prompt=True) == render(
        CONVERSATION, TOOLS, add_generation_prompt=True
    )
    assert row.ground_truth == CALL
    assert json.loads(row.extra["tools"]) == TOOLS


@pytest.mark.parametrize(
    "last", [structured([{"name": "f", "arguments": {"a": 1}}]), turn("assistant", CALL), turn("assistant", "[f(a=1)]")]
)
def test_calls_as_fields_as_hermes_text_and_as_a_list_are_the_same(last):
    assert openai(turn("user", "q"), last, tools=json.dumps(TOOLS)).ground_truth == CALL


def test_a_last_message_without_a_call_is_right_without_one():
    row = openai(turn("user", "q"), turn("assistant", "<think>no</think> I cannot."))
    assert (row.ground_truth, row.extra["answer"], row.extra["tools"]) == (
        "",
        "<think>\nno\n</think>\n\nI cannot.",
        "[]",
    )
    assert list(row.prompt) == [turn("user", "q")]


def test_words_before_the_calls_stay_in_the_answer_and_out_of_the_ground_truth():
    row = openai(turn("user", "q"), turn("assistant", f"Sure.\n{CALL}"))
    assert (row.ground_truth, row.extra["answer"]) == (CALL, f"Sure.\n{CALL}")


def test_tool_results_as_text_as_parts_and_as_values():
    results = ["one", [{"type": "text", "text": "two"}], {"three": None}, [4]]
    row = openai(turn("user", "q"), *(turn("tool", result) for result in results), turn("assistant", "a"))
    blocks = ["one", "two", '{"three": null}', "[4]"]
    assert row.prompt[-1]["content"] == "\n".join(f"<tool_response>\n{block}\n</tool_response>" for block in blocks)


def test_thoughts_in_a_field_of_their_own_and_text_in_parts():
    last = {**structured([{"name": "f", "arguments": {"a": 1}}]), "reasoning_content": "hm"}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = openai(turn("developer", "D"), {"role": "user", "content": parts}, last)
    assert row.extra["answer"] == f"<think>\nhm\n</think>\n\n{CALL}"
    assert list(row.prompt) == [turn("system", "D"), turn("user", "ab")]


@pytest.mark.parametrize(
    ("messages", "fields", "reason"),
    [
        ([turn("user", "q")], {}, "last_not_assistant"),
        ([turn("assistant", "a")], {}, "no_prompt"),
        ([turn("alien", "q"), turn("assistant", "a")], {}, "unknown_role"),
        ([turn("user", [{"type": "image_url"}]), turn("assistant", "a")], {}, "not_text"),
        ([turn("user", "q"), turn("assistant", "a")], {"tools": "{"}, "bad_tools"),
        ([turn("user", "q"), structured([{"name": "f", "arguments": "{"}])], {}, "bad_calls"),
        ([turn("user", "q"), {**turn("assistant", "a"), "tool_calls": {"name": "f"}}], {}, "bad_calls"),
        ([turn("user", "q"), turn("assistant", "<tool_call>{</tool_call>")], {}, "bad_calls"),
    ],
)
def test_every_reason_for_dropping_messages(messages, fields, reason):
    assert openai(*messages, **fields) == Dropped(reason)
    assert reason in DROP_REASONS


@pytest.mark.parametrize(
    "value", [{}, {"messages": None}, {"messages": []}, {"messages": "["}, {"messages": ["x"]}, {"query": "q"}]
)
def test_what_is_no_conversation_names_its_line(value):
    with pytest.raises(InputError, match=r"m.jsonl, line 7: the record has no `messages`"):
        convert_messages(Record(value, "m.jsonl, line 7"), 0, ToolStyle())


XLAM_TOOL = {
    "name": "f",
    "description": "d",
    "parameters": {
        "a": {"description": "x", "type": "int"},
        "b": {"description": "y", "type": "str, optional", "default": "z"},
        "c": {"type": "List[int]"},
        "d": {"type": "Optional[Dict[str, int]]"},
        "e": {"type": "Callable"},
        "g": {"type": "number", "default": 1},
    },
}


def test_an_xlam_row():
    value = {
        "id": 0,
        "query": "q",
        "tools": json.dumps([XLAM_TOOL]),
        "answers": json.dumps([{"name": "f", "arguments": {"a": 1}}]),
    }
    row = convert_xlam(Record(value, "x.json, record 1"), 0, ToolStyle())
    assert row.ground_truth == CALL
    assert row.data_source == "xlam-function-calling"
    assert row.prompt[1] == turn("user", "q")
    assert json.loads(row.extra["tools"]) == [json_schema_tool(XLAM_TOOL)]


def test_flat_parameters_become_json_schema():
    parameters = json_schema_tool(XLAM_TOOL)["parameters"]
    types = {name: spec.get("type") for name, spec in parameters["properties"].items()}
    assert types == {"a": "integer", "b": "string", "c": "array", "d": "object", "e": None, "g": "number"}
    assert parameters["required"] == ["a", "c", "e"]
    assert parameters["properties"]["b"] == {"type": "string", "description": "y", "default": "z"}
    assert json_schema_tool(TOOLS[0]) == TOOLS[0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tools": "["}, "bad_tools"),
        ({"tools": "3"}, "bad_tools"),
        ({"answers": "["}, "bad_calls"),
        ({"answers": "[1]"}, "bad_calls"),
        ({"answers": 3}, "bad_calls"),
        ({"answers": "{}"}, "bad_calls"),
        ({"answers": '""'}, "bad_calls"),
    ],
)
def test_every_reason_for_dropping_an_xlam_row(change, reason):
    value = {"query": "q", "tools": json.dumps(TOOLS), "answers": "[]", **change}
    assert convert_xlam(Record(value, "x"), 0, ToolStyle()) == Dropped(reason)


@pytest.mark.parametrize("missing", ["query", "tools", "answers"])
def test_an_xlam_row_without_its_ground_truth_names_itself(missing):
    value = {"query": "q", "tools": "[]", "answers": "[]", missing: None}
    with pytest.raises(InputError, match=f"x.jsonl, line 9: the record has no `{missing}`"):
        convert_xlam(Record(value, "x.jsonl, line 9"), 0, ToolStyle())


def test_the_last_closing_tag_ends_the_thought():
    reply = read_reply("<think>a</think>b</think> c ")
    assert (reply.thinking, reply.visible_text) == ("a</think>b", "c")


WORDY = f"First.\n{CALL}\nThen.\n{CALL}\nLast."


def test_words_between_and_after_calls_stay_where_they_are():
    row = openai(
        turn("user", "q"), turn("assistant", f"<think>x</think>{WORDY}"), turn("user", "r"), turn("assistant", WORDY)
    )
    assert row.prompt[1] == turn("assistant", WORDY)
    assert (row.ground_truth, row.extra["answer"]) == (f"{CALL}\n{CALL}", WORDY)
    raw_row = hardgen(turn("user", "q"), turn("assistant", WORDY), turn("user", "r"), turn("assistant", WORDY))
    assert (raw_row.prompt[2], raw_row.extra["answer"]) == (turn("assistant", WORDY), WORDY)


def test_a_closing_tag_without_its_call_is_no_word():
    assert openai(turn("user", "q"), turn("assistant", f"{CALL}</tool_call>")) == Dropped("bad_calls")


@pytest.mark.parametrize("keys", [["0", "1", "02", "3"], ["00", "01", "02", "03"], ["0", "1", "2", "00000000003"]])
def test_padded_numbers_are_numbers(keys):
    turns = [SYSTEM, turn("user", "q"), turn("user", "more"), turn("assistant", "[f(a=1)]")]
    row = convert_hardgen(Record(dict(zip(keys, turns, strict=True)), "here"), 0, ToolStyle())
    assert [message["content"] for message in row.prompt[1:]] == ["q", "more"]
    assert row.ground_truth == CALL


def test_two_turns_of_one_number_are_dropped_and_not_one_of_them_lost():
    value = {"0": SYSTEM, "1": turn("user", "q"), "2": turn("user", "r"), "02": turn("assistant", "[f(a=1)]")}
    assert convert_hardgen(Record(value, "here"), 0, ToolStyle()) == Dropped("turn_twice")
    assert convert_hardgen(Record({**value, "2": None}, "here"), 0, ToolStyle()).ground_truth == CALL


def test_text_parts_of_a_raw_turn_are_joined():
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    row = hardgen(turn("user", parts), turn("assistant", [{"type": "text", "text": "[f(a=1)]"}]))
    assert (row.prompt[1], row.ground_truth) == (turn("user", "a b"), CALL)


@pytest.mark.parametrize("content", [[1], {"k": 1}, [{"type": "image_url"}], 3])
def test_what_is_no_text_is_dropped_and_not_spelt_by_python(content):
    assert hardgen(turn("user", content), turn("assistant", "[f(a=1)]")) == Dropped("not_text")
    value = {"query": content, "tools": json.dumps(TOOLS), "answers": "[]"}
    assert convert_xlam(Record(value, "x"), 0, ToolStyle()) == Dropped("not_text")
