"""A chat template is a program from a model folder: it has limits, and a message that names it."""

import time

import pytest
from jinja2 import TemplateError
from transformers import AutoTokenizer

from egpo import chat_templates
from egpo.assets import MODELS
from egpo.chat_templates import render
from egpo.errors import InputError

ASKED = [{"role": "user", "content": "how many?"}]
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}"


@pytest.fixture(autouse=True)
def untried(monkeypatch):
    monkeypatch.setattr(chat_templates, "_tried", set())


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(MODELS["egpo-tiny"], trust_remote_code=False)


def with_template(tokenizer, text):
    tokenizer.chat_template = text
    return tokenizer


def test_it_is_what_transformers_writes(tokenizer):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    for shown, variables in ((None, {}), (tools, {}), (None, {"enable_thinking": False})):
        expected = tokenizer.apply_chat_template(
            ASKED, tools=shown, tokenize=False, add_generation_prompt=True, **variables
        )
        assert render(tokenizer, ASKED, tools=shown, variables=variables) == expected
    assert render(tokenizer, ASKED, prompt=False) == tokenizer.apply_chat_template(ASKED, tokenize=False)


def test_one_that_never_ends_is_named(tokenizer, monkeypatch):
    monkeypatch.setattr(chat_templates, "CPU_LIMIT_S", 1)
    with pytest.raises(
        InputError, match=r"^chat template of .*egpo-tiny: the template has not finished within 1 s; use the"
    ):
        render(with_template(tokenizer, CHAT + ENDLESS), ASKED)


def test_one_that_computes_for_ever_in_a_single_operation_is_named(tokenizer, monkeypatch):
    """The interpreter's lock is held meanwhile: no other thread of this process could look at the clock."""
    monkeypatch.setattr(chat_templates, "CPU_LIMIT_S", 1)
    with pytest.raises(InputError, match="the template has not finished within 1 s"):
        render(with_template(tokenizer, CHAT + "{{ 9 ** (9 ** 9) % 10 }}"), ASKED)


def test_one_that_writes_gigabytes_is_named(tokenizer, monkeypatch):
    monkeypatch.setattr(chat_templates, "MOST_CHARS", 1000)
    with pytest.raises(InputError, match="the template writes more than"):
        render(with_template(tokenizer, CHAT + "{% for a in range(300) %}words{% endfor %}"), ASKED)


def test_one_that_takes_all_memory_is_named(tokenizer):
    doubling = "{% set n = namespace(x='words') %}{% for a in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}"
    with pytest.raises(InputError, match=r"the template takes more than 1,024 MiB of memory"):
        render(with_template(tokenizer, CHAT + doubling), ASKED)


def test_one_that_ignores_the_messages_is_refused(tokenizer):
    with pytest.raises(
        InputError, match="the template ignores the messages: two different questions give the same prompt"
    ):
        render(with_template(tokenizer, "<user>how many?<assistant>"), ASKED)


def test_one_that_never_ends_on_a_later_conversation_is_named(tokenizer, monkeypatch):
    """After its first rendering it runs in this process."""
    template = CHAT + "{% if 'slow' in messages[0].content %}" + ENDLESS + "{% endif %}"
    assert render(with_template(tokenizer, template), ASKED) == "<user>how many?<a>"
    monkeypatch.setattr(chat_templates, "TIME_LIMIT_S", 0.5)
    with pytest.raises(InputError, match=r"the template has not finished within 0\.5 s"):
        render(tokenizer, [{"role": "user", "content": "slow"}])
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:  # nothing is raised here any more
        assert render(tokenizer, ASKED) == "<user>how many?<a>"


def test_what_a_template_raises_comes_through(tokenizer):
    with pytest.raises(TemplateError, match="no tools here"):
        render(with_template(tokenizer, CHAT + "{{ raise_exception('no tools here') }}"), ASKED)


def test_system_turns_alone_may_be_ignored(tokenizer):
    template = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    assert render(with_template(tokenizer, template), [{"role": "system", "content": "be brief"}]) == ""
