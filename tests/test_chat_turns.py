"""Conversations of several turns under the chat templates of real models.

The law: if a template keeps history, the tokens so far, with those of `following_text` after each answer, are the
tokens of the whole conversation as the template renders it. The templates come from TRL's wheel, from the model
SmolLM2, and from egpo-tiny; Hermes' style is written here.
"""

import json

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from egpo import chat_templates, chat_turns
from egpo.assets import MODELS
from egpo.chat_templates import render
from egpo.chat_turns import following_text, require_tools, rewrites_history
from egpo.errors import InputError
from egpo.model_sources.named_models import indexed_folder
from egpo.tags import THINK_TAGS, opens_thinking
from tests.trl_templates import template

HERMES = """{%- if tools %}<|im_start|>system
You may call functions. <tools>{% for tool in tools %}{{ tool.function | tojson }}{% endfor %}</tools><|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>tool\\n<tool_response>\\n' + message.content + '\\n</tool_response>\\n' }}
{%- else %}{{- '<|im_start|>' + message.role + '\\n' + message.content }}{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
MARKERS = (
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>",
)  # fmt: skip

REWRITES = {
    "qwen2_5": False,
    "qwen3": True,
    "qwen3_instruct_2507": False,
    "qwen3_5_think": True,
    "qwen3_5_think_training": False,
    "qwen3_training": True,  # it writes empty thinking before an answer that was sampled without
    "llama3_1": False,
    "llama3_2": False,
    "glm4moe": True,
    "lfm2": False,
    "hermes": False,
    "smollm2": False,
    "egpo-tiny": True,
}
WITHOUT_TOOLS = ("llama3_training", "gemma3", "phi3", "qwen2_5_vl", "cohere", "smollm2")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find",
            "description": "Find a thing.",
            "parameters": {
                "type": "object",
                "properties": {"what": {"type": "string", "description": "Its name."}},
                "required": ["what"],
            },
        },
    }
]
CALL = '<tool_call>\n{"name": "find", "arguments": {"what": "tea"}}\n</tool_call>'


@pytest.fixture(scope="module")
def tokenizer_of():
    """`tokenizer_of("qwen3")`: the tokenizer of egpo-tiny with that template; SmolLM2's is its own."""
    made = {}

    def tokenizer(name):
        if name in made:
            return made[name]
        if name == "smollm2":
            try:
                made[name] = AutoTokenizer.from_pretrained(indexed_folder("smollm2-135m"))
            except InputError as error:
                pytest.skip(f"SmolLM2 is not here: {error}")
            return made[name]
        own = AutoTokenizer.from_pretrained(MODELS["egpo-tiny"], trust_remote_code=False)
        if name != "egpo-tiny":
            own.chat_template = HERMES if name == "hermes" else template(name)
        if name.startswith("llama"):
            own.add_special_tokens({"bos_token": MARKERS[0], "additional_special_tokens": list(MARKERS[1:])})
        made[name] = own
        return own

    return tokenizer


def ids(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def grown(tokenizer, start, turns, tools, variables=None):
    """Return the tokens of an episode as an engine makes them, and those of the template's rendering of the whole.

    `turns`: pairs of the text that was sampled and the messages that followed it. None if an engine would not sample
    such a text as these tokens: they are joined with those of the prompt, or the prompt opens the thinking.
    """
    text = render(tokenizer, start, tools=tools, variables=variables)
    talk, so_far = list(start), ids(tokenizer, text)
    for said, new in turns:
        opened = opens_thinking(text)
        if opened:
            if not said.startswith(THINK_TAGS[0]):
                return None
            said = said.removeprefix(THINK_TAGS[0]).lstrip("\n")
        elif text.rstrip().endswith(THINK_TAGS[1]) and said.startswith(THINK_TAGS[0]):
            return None
        sampled = ids(tokenizer, said)
        if ids(tokenizer, text + said) != ids(tokenizer, text) + sampled:
            return None
        text = following_text(tokenizer, start, new, tools=tools, variables=variables)
        so_far = so_far + sampled + ids(tokenizer, text)
        talk += [{"role": "assistant", "content": said}, *new]
    return so_far, ids(tokenizer, render(tokenizer, talk, tools=tools, variables=variables))


def result(content):
    return {"role": "tool", "name": "find", "content": content}


def user(content):
    return {"role": "user", "content": content}


WORDS = st.lists(
    st.sampled_from(("tea", "12", "one", "the", "Bräu", "é", "日本", "a b", "x_y", "(3)", "no.")), min_size=1
)
SAID = st.builds(lambda words, thought, calls: thought + (CALL if calls else " ".join(words)), WORDS,
                 st.sampled_from(("", "<think>\nwell\n</think>\n\n", "<think>\n12 is\nmore\n</think>\n\n")),
                 st.booleans())  # fmt: skip
HEARD = st.text(st.characters(exclude_categories=("Cs",)), max_size=30) | st.sampled_from(
    ('{"ok": true}', "egpo-marks-this-answer", "egpo-marks-this-answer-", "<tool_response>", "</think>", "")
)


@st.composite
def talks(draw):
    turns = []
    for _ in range(draw(st.integers(1, 4))):
        said = draw(SAID)
        heard = [result(text) for text in draw(st.lists(HEARD, min_size=1, max_size=3))]
        turns.append((said, heard if CALL in said else [user("so " + " ".join(draw(WORDS)))]))
    return turns


KEEPING = [name for name, rewrites in REWRITES.items() if not rewrites]


@pytest.mark.parametrize("with_tools", [False, True])
@pytest.mark.parametrize("name", KEEPING)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(turns=talks(), asked=WORDS)
def test_the_tokens_so_far_are_those_of_the_whole_conversation(tokenizer_of, name, with_tools, turns, asked):
    found = grown(tokenizer_of(name), [user(" ".join(asked))], turns, TOOLS if with_tools else None)
    assume(found is not None)
    so_far, whole = found
    assert so_far == whole


@pytest.mark.parametrize("name", REWRITES)
def test_whether_a_template_rewrites_history(tokenizer_of, name):
    """What the function says is what a few conversations show: equal tokens in all of them, or not."""
    tokenizer, differs = tokenizer_of(name), []
    for thought in ("<think>\nwell\n</think>\n\n", ""):
        for turns in (
            [(thought + "It is 3.", [user("Why?")])],
            [(thought + CALL, [result("3")])],
            [(thought + CALL, [result("3")]), (thought + "It is 3.", [user("Why?")])],
        ):
            found = grown(tokenizer, [user("What is it?")], turns, None)
            differs += [] if found is None else [found[0] != found[1]]
    assert any(differs) is REWRITES[name]
    assert rewrites_history(tokenizer) is REWRITES[name]


def test_a_template_is_tried_once_for_its_variables(tokenizer_of, monkeypatch):
    tokenizer, rendered = tokenizer_of("qwen2_5"), []
    monkeypatch.setattr(chat_turns, "_rewrites", {})
    monkeypatch.setattr(chat_turns, "render", lambda *values, **named: rendered.append(1) or render(*values, **named))
    assert not rewrites_history(tokenizer)
    first = len(rendered)
    assert first > 10
    assert not rewrites_history(tokenizer)
    assert len(rendered) == first
    assert not rewrites_history(tokenizer, variables={"enable_thinking": False})
    assert len(rendered) > first


def test_thinking_that_is_turned_off_is_part_of_the_question(tokenizer_of):
    """Qwen3 writes empty thinking into the prompt then, and takes it out of earlier turns."""
    tokenizer, off = tokenizer_of("qwen3"), {"enable_thinking": False}
    so_far, whole = grown(tokenizer, [user("What is it?")], [("It is 3.", [user("Why?")])], None, off)
    assert so_far != whole
    assert rewrites_history(tokenizer, variables=off)
    kept, same = grown(tokenizer_of("qwen3_training"), [user("What is it?")], [("It is 3.", [user("Why?")])], None, off)
    assert kept == same
    assert not rewrites_history(tokenizer_of("qwen3_training"), variables=off)


@pytest.mark.parametrize("name", WITHOUT_TOOLS)
def test_a_template_without_tools_is_refused_in_one_line(tokenizer_of, name):
    with pytest.raises(InputError) as caught:
        require_tools(tokenizer_of(name))
    assert "the chat template does not write the tools" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "llama3_2", "hermes", "egpo-tiny"])
def test_a_template_with_tools_is_not(tokenizer_of, name):
    require_tools(tokenizer_of(name))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("gemma3", "refuses a conversation with tool: Conversation roles must alternate"),
        ("cohere", "refuses a conversation with tool: Conversation roles must alternate"),
        ("gptoss", "refuses a conversation with tool: Message has tool role, but there was no previous assistant"),
        ("phi3", "leaves out messages with the role `tool`"),
        ("cohere2", "leaves out messages with the role `tool`"),
    ],
)
def test_a_template_without_the_role_tool_is_refused_in_one_line(tokenizer_of, name, why):
    with pytest.raises(InputError) as caught:
        following_text(tokenizer_of(name), [user("q")], [result("3")])
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert following_text(tokenizer_of(name), [user("q")], [user("Why?")]), "without tools it can be used"


def test_a_template_that_fails_ever_so_long_is_told_in_one_line(tokenizer_of):
    tokenizer = AutoTokenizer.from_pretrained(MODELS["egpo-tiny"])
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no\\n' * 999) }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    with pytest.raises(InputError) as caught:
        following_text(tokenizer, [user("q")], [result("3")])
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


def test_a_result_that_looks_like_the_mark_is_kept_whole(tokenizer_of):
    """A tool may return any text, that of this package's source too."""
    for content in (chat_turns._MARK, f"{chat_turns._MARK} {chat_turns._MARK}-", json.dumps({"a": chat_turns._MARK})):
        text = following_text(tokenizer_of("hermes"), [user("q")], [result(content)])
        assert text == (
            f"<|im_end|>\n<|im_start|>tool\n<tool_response>\n{content}\n</tool_response>\n<|im_end|>\n"
            "<|im_start|>assistant\n"
        )


def test_the_checks_are_made_once_for_a_template(tokenizer_of, monkeypatch):
    tokenizer, count = tokenizer_of("hermes"), []
    monkeypatch.setattr(chat_turns, "render", lambda *a, **k: count.append(1) or chat_templates.render(*a, **k))
    monkeypatch.setattr(chat_turns, "_shown", set())
    for _ in range(3):
        following_text(tokenizer, [user("q")], [result("3")])
    assert len(count) == 4
