"""The system turn that shows the tools is, to the character, what the chat template writes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egpo.data.tool_prompt import parse_tools, qwen3_system_text, template_system_text, tools_in, wrap
from tests.data.qwen3 import render, tokenizer

TOOL = {
    "name": "get_weather",
    "description": 'In <b>München</b> & 東京; "quoted", it\'s\n',
    "parameters": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"enum": [1, 2.5, None, True]}}},
}
tools_strategy = st.lists(
    st.fixed_dictionaries({"name": st.text(min_size=1), "parameters": st.dictionaries(st.text(), st.text())}),
    min_size=1,
)


def rendered(instruction, tools):
    text = render([{"role": "system", "content": instruction}], tools)
    return text.removeprefix("<|im_start|>system\n").removesuffix("<|im_end|>\n")


@pytest.mark.parametrize("tools", [[TOOL], [TOOL, wrap(TOOL)], [{"name": "f"}]])
@pytest.mark.parametrize("instruction", ["Be brief.", "two\nlines "])
def test_our_text_is_the_templates_text(instruction, tools):
    assert qwen3_system_text(instruction, tools) == rendered(instruction, tools)


@given(tools=tools_strategy, instruction=st.text(min_size=1))
def test_our_text_is_the_templates_text_for_any_tools(tools, instruction):
    assert qwen3_system_text(instruction, tools) == rendered(instruction, tools)


def test_without_an_instruction_the_tools_stand_alone():
    text = render([{"role": "user", "content": "hi"}], [TOOL])
    assert text.startswith(f"<|im_start|>system\n{qwen3_system_text('', [TOOL])}<|im_end|>\n")


def test_without_tools_the_instruction_stands_alone():
    assert qwen3_system_text("Be brief.", []) == "Be brief." == rendered("Be brief.", None)


def test_the_tokenizers_own_template_is_cut_out_exactly():
    system_text = template_system_text(tokenizer())
    for tools in ([], [TOOL], [TOOL, {"name": "g"}]):
        assert system_text("Be brief.", tools) == qwen3_system_text("Be brief.", tools)


class OtherTokenizer:
    def __init__(self, template):
        self.chat_template = template

    def apply_chat_template(self, messages, tools, tokenize, add_generation_prompt):
        from transformers.utils.chat_template_utils import render_jinja_template

        return render_jinja_template([messages], tools=tools, chat_template=self.chat_template)[0][0]


def test_another_models_template_gives_its_own_text():
    template = "<s>{{ messages[0].content }}{% if tools %} TOOLS {{ tools | tojson }}{% endif %}</s>"
    system_text = template_system_text(OtherTokenizer(template))
    assert system_text("Be brief.", [{"name": "g"}]) == 'Be brief. TOOLS [{"name": "g"}]'


@pytest.mark.parametrize(
    "template",
    [
        None,
        "",
        "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}",
        "<s>{{ messages[0].content }}</s>",
    ],
)
def test_a_template_that_does_not_write_tools_into_the_system_turn_is_not_used(template):
    assert template_system_text(OtherTokenizer(template)) is None


@given(tools=tools_strategy, instruction=st.text())
def test_tools_can_be_read_back_out_of_the_text(tools, instruction):
    assert tools_in(qwen3_system_text(instruction, tools)) == tools


@pytest.mark.parametrize("text", ["", "no tools here", "# Tools", qwen3_system_text("", [TOOL]).replace("{", "[", 1)])
def test_text_of_another_form_shows_no_tools(text):
    assert tools_in(text) == []


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ([TOOL], ["get_weather"]),
        (json.dumps([TOOL, wrap(TOOL)]), ["get_weather"] * 2),
        (json.dumps(TOOL), ["get_weather"]),
        (wrap(TOOL), ["get_weather"]),
        ({"f": {"description": "x"}, "g": {}}, ["f", "g"]),
        (None, []),
        ("", []),
        ("[]", []),
    ],
)
def test_tools_in_every_shape(value, names):
    assert [tool.get("function", tool)["name"] for tool in parse_tools(value)] == names


@pytest.mark.parametrize("value", ["{", [1], [{}], [{"name": ""}], [{"name": 3}], [{"function": 3}], {"f": 3}, 7])
def test_what_is_no_tool_is_an_error(value):
    with pytest.raises((ValueError, TypeError)):
        parse_tools(value)
