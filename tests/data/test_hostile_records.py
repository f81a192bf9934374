"""Whatever JSON a file holds, a converter gives a row, a reason, or an error that names the record."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.data.conversations import DROP_REASONS, ToolStyle
from egpo.data.conversion import CONVERTERS
from egpo.data.readers import Record
from egpo.data.rows import Dropped, schema_of
from egpo.errors import InputError

words = st.sampled_from(
    ["", "f", "[f(a=1)]", "[", "[]", "{}", "null", "<tool_call>", '<tool_call>{"name": "f"}</tool_call>', "</think>",
     "<think>", '[{"name": "f"}]', '{"name": "f", "parameters": {"a": {"type": "int"}}}', "\x00", "\ud800", "user"]
)  # fmt: skip
keys = st.sampled_from(
    ["0", "1", "2", "10", "role", "content", "tools", "tool_calls", "function", "name", "arguments", "parameters",
     "messages", "query", "answers", "type", "text", "reasoning_content"]
)  # fmt: skip
values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.just(1e308) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=20,
)
roles = st.sampled_from(["system", "user", "assistant", "tool", "function", "developer", "alien"])
turns = st.fixed_dictionaries({"role": roles, "content": values}, optional={"tools": values, "tool_calls": values})
records = {
    "hardgen": st.lists(turns, max_size=6).map(lambda ts: {str(n): turn for n, turn in enumerate(ts)}),
    "messages": st.fixed_dictionaries({"messages": st.lists(turns, max_size=6)}, optional={"tools": values}),
    "xlam": st.fixed_dictionaries({"query": values, "tools": values, "answers": values}),
}


def outcome(kind, value):
    try:
        return CONVERTERS[kind](Record(value, "here, line 1"), 0, ToolStyle())
    except InputError as error:
        return error


@pytest.mark.parametrize("kind", sorted(CONVERTERS))
@given(data=st.data())
def test_any_record_gives_a_row_or_a_reason_or_a_named_error(kind, data):
    value = data.draw(records[kind] | st.dictionaries(keys, values, max_size=5))
    made = outcome(kind, value)
    if isinstance(made, InputError):
        assert str(made).startswith("here, line 1: ")
        return
    if isinstance(made, Dropped):
        assert made.reason in DROP_REASONS
        return
    assert made.prompt
    assert all(isinstance(message["content"], str) and isinstance(message["role"], str) for message in made.prompt)
    assert isinstance(made.ground_truth, str)
    assert schema_of(made).field("extra_info").type.names == ["split", "index", "tools", "answer", "source_row"]
