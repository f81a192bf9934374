"""The tokenizer of egpo-tiny and its chat template."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, Qwen3ForCausalLM

from egpo.data.tool_prompt import qwen3_system_text, template_system_text
from examples.egpo_tiny.corpus import examples
from examples.egpo_tiny.make import make, rendered_texts
from examples.egpo_tiny.model import CONTEXT, model_config
from examples.egpo_tiny.tokenizer import CONTROL, TAGS, VOCAB_SIZE, save_tokenizer, train_tokenizer

TOOLS = [{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}, {"name": "g"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Trained, saved, and loaded again as anybody would load it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(rendered_texts(400, seed=0), CONTEXT), folder)
    return AutoTokenizer.from_pretrained(folder)


def render(tokenizer, messages, **options):
    return tokenizer.apply_chat_template(messages, tokenize=False, **options)


@given(text=st.text() | st.from_regex(r"[\s<>/a-z0-9\u0300-\u0310|_]*", fullmatch=True))
def test_any_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer(text).input_ids) == text


@given(text=st.text(alphabet="0123456789 +-*/=()\n", max_size=30))
def test_a_digit_is_a_token_and_so_is_an_operator(tokenizer, text):
    tokens = [tokenizer.decode([token]) for token in tokenizer(text).input_ids]
    assert all(len(token.strip(" ")) <= 1 or not token.strip() for token in tokens)
    assert all(len(token) == 1 for token in tokens if token.strip().isdigit())


def test_tags_are_single_tokens_that_survive_decoding(tokenizer):
    for tag in TAGS:
        assert len(tokenizer(tag).input_ids) == 1
    text = "".join(TAGS)
    assert tokenizer.decode(tokenizer(f"{CONTROL[1]}{text}{CONTROL[2]}").input_ids, skip_special_tokens=True) == text


def test_tools_stand_in_qwen3s_words(tokenizer):
    for instruction in ("Be brief.", ""):
        assert template_system_text(tokenizer)(instruction, TOOLS) == qwen3_system_text(instruction, TOOLS)


def test_a_response_follows_its_prompt_in_text_and_in_tokens(tokenizer):
    for example in examples(200, seed=3, stage="first"):
        prompt = render(tokenizer, example.messages[:-1], add_generation_prompt=True)
        whole = f"{prompt}{example.response}<|im_end|>\n"
        assert render(tokenizer, example.messages) == whole
        parts = tokenizer(prompt).input_ids + tokenizer(whole[len(prompt) :]).input_ids
        assert parts == tokenizer(whole).input_ids


def test_an_empty_thought_is_the_prompt_of_the_plain_mode(tokenizer):
    ask = [{"role": "user", "content": "q"}]
    plain = render(tokenizer, ask, add_generation_prompt=True, enable_thinking=False)
    answered = render(tokenizer, [*ask, {"role": "assistant", "content": "<think>\n\n</think>\n\nyes"}])
    assert answered == f"{plain}yes<|im_end|>\n"


def test_earlier_thoughts_are_left_out_but_not_those_since_the_question(tokenizer):
    thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}
    ask, result = {"role": "user", "content": "q"}, {"role": "tool", "content": "3"}
    assert "hm" not in render(tokenizer, [ask, thought, ask])
    assert "hm" in render(tokenizer, [ask, thought, result], add_generation_prompt=True)
    results = render(tokenizer, [ask, thought, result, result])
    assert results.count("<|im_start|>user") == 2
    assert "\n<tool_response>\n3\n</tool_response>\n<tool_response>\n3\n</tool_response><|im_end|>" in results


def test_calls_and_reasoning_in_fields_read_as_in_the_text(tokenizer):
    ask = {"role": "user", "content": "q"}
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": "é"}}}
    fields = {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]}
    body = '<tool_call>\n{"name": "f", "arguments": {"a": "é"}}\n</tool_call>'
    text = {"role": "assistant", "content": f"<think>\nhm\n</think>\n\n{body}"}
    assert render(tokenizer, [ask, fields]) == render(tokenizer, [ask, text])


def test_one_command_makes_all_that_the_cold_start_reads(tmp_path):
    make(tmp_path, conversations=50, held_out=5, seed=0)
    assert [len((tmp_path / name).read_text().splitlines()) for name in ("corpus.jsonl", "held_out.jsonl")] == [50, 5]
    made = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert len(made) == VOCAB_SIZE
    assert {"config.json", "generation_config.json"} <= {path.name for path in (tmp_path / "model").iterdir()}


def test_the_model_is_of_the_size_that_the_package_can_hold():
    num_parameters = Qwen3ForCausalLM(model_config()).num_parameters()
    assert 2_500_000 <= num_parameters <= 5_500_000
