"""What a server is told, from the model's template and the machine."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from egpo.assets import MODELS
from egpo.errors import InputError
from egpo.serving.commands import ChatTemplate, Engine, Serving, command, environment, find_engine, read_template

STAND_IN = str(Path(__file__).with_name("stand_in.py"))
TINY = MODELS["egpo-tiny"]
VLLM, TRANSFORMERS = Engine("vllm", "python", on_cpu=False), Engine("transformers", "python", on_cpu=False)
PLAIN = ChatTemplate(None, opens_thinking=False, may_switch=False)
HEAD = "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>"


@pytest.fixture
def template_of(tmp_path):
    def read(text):
        folder = tmp_path / "model"
        shutil.copytree(TINY, folder, dirs_exist_ok=True)
        (folder / "chat_template.jinja").write_text(text)
        return read_template(str(folder))

    return read


def test_our_own_model():
    """Its template knows thinking and does not open it: its text stays whole."""
    found = read_template(str(TINY))
    assert found == ChatTemplate("hermes", opens_thinking=False, may_switch=True)
    assert found.reasoning_parser is None


@pytest.mark.parametrize(
    ("calls", "parser"),
    [
        ('<tool_call>\n{"name": <n>, "arguments": <a>}\n</tool_call>', "hermes"),
        ("<tool_call>\n<function=f>\n<parameter=x>", "qwen3_coder"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_tag|>", "llama3_json"),
        ("call it as you like", None),
    ],
)
def test_the_parser_of_calls_follows_the_template(template_of, calls, parser):
    assert template_of(f"{{% if tools %}}{calls}{{% endif %}}{HEAD}{{% endif %}}").tool_parser == parser


def test_thinking_is_taken_out_only_where_the_prompt_opens_it(template_of):
    assert template_of(HEAD + "<think>\n{% endif %}").reasoning_parser == "qwen3"
    assert template_of(HEAD + "<think>\n\n</think>\n\n{% endif %}").reasoning_parser is None
    never = HEAD + "{% if false %}<think>{% endif %}{% endif %}"
    assert template_of(never).reasoning_parser is None


def test_templates_that_fail(template_of, tmp_path):
    with pytest.raises(InputError, match="the chat template cannot be rendered"):
        template_of("{{ raise_exception('never') }}")
    with pytest.raises(InputError, match="the tokenizer has no chat template"):
        template_of("")


def after(words, option):
    return words[words.index(option) + 1]


def test_vllm_is_told_of_template_and_machine():
    template = ChatTemplate("hermes", opens_thinking=True, may_switch=True)
    words = command(Serving("/m", "mine", port=81, thinking=False, more=["--seed", "1"]), VLLM, template)
    assert words[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"]
    assert (after(words, "--model"), after(words, "--served-model-name"), after(words, "--port")) == (
        "/m",
        "mine",
        "81",
    )
    assert after(words, "--tool-call-parser") == "hermes"
    assert after(words, "--reasoning-parser") == "qwen3"
    assert json.loads(after(words, "--default-chat-template-kwargs")) == {"enable_thinking": False}
    assert (after(words, "--max-model-len"), after(words, "--dtype")) == ("auto", "auto")
    assert "--enforce-eager" not in words
    assert words[-2:] == ["--seed", "1"]


def test_nothing_recommended_changes_how_it_is_sampled():
    """A model's generation config may say top_k 20: a request that names no top_k would be cut by it."""
    neutral = json.loads(after(command(Serving("/m", "m"), VLLM, PLAIN), "--override-generation-config"))
    assert neutral == {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}


def test_on_a_cpu_in_float32():
    engine = Engine("vllm", "python", on_cpu=True)
    words = command(Serving("/m", "m", max_tokens=512), engine, PLAIN)
    assert (after(words, "--dtype"), after(words, "--max-model-len")) == ("float32", "512")
    assert "--enforce-eager" in words
    assert after(command(Serving("/m", "m", dtype="bfloat16"), engine, PLAIN), "--dtype") == "bfloat16"


def test_the_user_s_environment_comes_first(monkeypatch):
    engine = Engine("vllm", "python", on_cpu=True)
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    assert environment(engine)["VLLM_CPU_KVCACHE_SPACE"] == "2"
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "9")
    assert environment(engine)["VLLM_CPU_KVCACHE_SPACE"] == "9"
    assert "VLLM_CPU_KVCACHE_SPACE" not in environment(VLLM) or environment(VLLM)["VLLM_CPU_KVCACHE_SPACE"] == "9"


@pytest.mark.parametrize(("parts", "value"), [("vllm", "0"), ("vllm flashinfer", None)])
def test_a_vllm_for_gpus_is_told_when_flashinfer_is_not_there(monkeypatch, parts, value):
    """Otherwise vLLM imports the package to sample, and fails at its start."""
    monkeypatch.setenv("STAND_IN_PARTS", parts)
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
    engine = replace(find_engine(python=STAND_IN), on_cpu=False)
    assert environment(engine).get("VLLM_USE_FLASHINFER_SAMPLER") == value
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "1")
    assert environment(engine)["VLLM_USE_FLASHINFER_SAMPLER"] == "1"


def test_parsers_may_be_named_and_left_out():
    template = ChatTemplate("hermes", opens_thinking=True, may_switch=False)
    words = command(Serving("/m", "m", tool_parser="none", reasoning_parser="deepseek_r1"), VLLM, template)
    assert "--tool-call-parser" not in words
    assert after(words, "--reasoning-parser") == "deepseek_r1"


def test_thinking_that_the_template_does_not_know():
    with pytest.raises(InputError, match="this model's thinking cannot be turned on or off"):
        command(Serving("/m", "m", thinking=True), VLLM, PLAIN)


def test_transformers_serves_too():
    template = ChatTemplate("hermes", opens_thinking=False, may_switch=True)
    words = command(Serving("/m", "mine", thinking=True), TRANSFORMERS, template)
    assert words[:5] == ["python", "-m", "transformers.cli.transformers", "serve", "mine"]
    assert after(words, "--reasoning") == "on"
    with pytest.raises(InputError, match="--max-tokens: `transformers serve` has no such setting"):
        command(Serving("/m", "m", max_tokens=9), TRANSFORMERS, template)


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ("vllm transformers fastapi uvicorn openai", "vllm"),
        ("transformers fastapi uvicorn openai", "transformers"),
    ],
)
def test_vllm_comes_first(monkeypatch, parts, kind):
    monkeypatch.setenv("STAND_IN_PARTS", parts)
    assert find_engine(python=STAND_IN) == Engine(kind, STAND_IN, on_cpu=True, flashinfer=kind != "vllm")
    assert find_engine("transformers", STAND_IN).kind == "transformers"


def test_no_server_at_all_gives_the_command_that_installs_one(monkeypatch):
    monkeypatch.setenv("STAND_IN_PARTS", "transformers openai")
    with pytest.raises(InputError) as caught:
        find_engine(python=STAND_IN)
    assert "(fastapi, uvicorn missing)" in str(caught.value)
    assert f'{STAND_IN} -m pip install "transformers[serving]"' in str(caught.value)
    with pytest.raises(InputError, match="-m pip install vllm"):
        find_engine("vllm", STAND_IN)


def test_a_python_that_is_none(tmp_path):
    with pytest.raises(InputError, match="the interpreter cannot be run"):
        find_engine(python=str(tmp_path / "python"))


def test_a_real_python_is_asked_without_importing_what_it_has():
    """This one has transformers, so only the rest can be missing."""
    with pytest.raises(InputError, match=r"neither vLLM nor .*\((?!transformers)"):
        find_engine(python=str(Path(sys.prefix) / "bin" / "python"))
