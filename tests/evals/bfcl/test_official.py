"""The official evaluator, for real, against a server on loopback."""

import json
import shutil
from pathlib import Path

import pytest

from egpo.assets import resolve_model
from egpo.data.tool_prompt import qwen3_system_text
from egpo.errors import EgpoError, InputError
from egpo.evals.bfcl.categories import first_cases
from egpo.evals.bfcl.evaluate_bfcl import BfclOptions, evaluate_bfcl
from egpo.evals.bfcl.passes import BfclSettings, built_prompt, run_pass
from egpo.evals.bfcl.targets import find_target
from egpo.evals.bfcl.verdicts import evaluation_of, figures_by_category, read_verdicts, require_generated
from egpo.evals.evaluate import read_evaluation
from tests.evals.bfcl.gold_server import Golds, serving

ENVIRONMENT = Path(__file__).resolve().parents[3] / ".env-bfcl"
PYTHON = ENVIRONMENT / "bin" / "python"
CATEGORIES = ("simple_python", "multi_turn_base")
TINY = resolve_model("egpo-tiny")
pytestmark = needs_bfcl = pytest.mark.skipif(
    not (ENVIRONMENT / ".ready").is_file(), reason="BFCL's environment is not made"
)


@pytest.fixture(scope="module")
def golds():
    return Golds(CATEGORIES)


def asked(url, number, categories=CATEGORIES, **settings):
    cases = first_cases(PYTHON, categories, number)
    return BfclSettings(url, "gold", TINY, categories, cases, threads=2, **settings)


def passed(answer, tmp_path, number=3, **settings):
    with serving(answer) as (url, prompts):
        run_pass(PYTHON, asked(url, number, **settings), tmp_path / "pass", lambda line: None)
        return read_verdicts(tmp_path / "pass"), prompts


def test_a_server_that_answers_500_for_ever_ends_with_one_line(tmp_path):
    """BFCL's own loop asked for the list of models again, without a pause and without an end."""
    with serving(lambda prompt: "", models_status=500) as (url, _), pytest.raises(EgpoError) as caught:
        run_pass(PYTHON, asked(url, 1, timeout_s=2), tmp_path / "pass", lambda line: None)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{url}/models: the server did not list its models within 2 s (its last answer was 500 ")
    assert str(tmp_path / "pass" / "bfcl.log") in line


def test_a_pass_leaves_no_lock_files(golds, tmp_path):
    passed(golds.answer, tmp_path, number=1)
    assert (tmp_path / "pass" / "result").is_dir()
    assert [path for path in tmp_path.rglob("*") if "lock" in path.name] == []


def test_gold_calls_score_everything_in_single_and_multi_turn(golds, tmp_path, monkeypatch):
    """The whole path of the command: passes, figures, the file that `egpo compare` reads."""
    monkeypatch.setenv("EGPO_BFCL_PYTHON", str(PYTHON))
    with serving(golds.answer) as (url, prompts):
        target = find_target(url, None, "egpo-tiny", "latest")
        outcome = evaluate_bfcl(target, asked("", 3), BfclOptions(num_passes=2, out=tmp_path), lambda line: None)
    parts = figures_by_category(outcome.evaluation.samples)
    assert [(part.category, part.accuracy.value, part.by_pass, part.num_cases) for part in parts] == [
        ("multi_turn_base", 1.0, (1.0, 1.0), 3),
        ("simple_python", 1.0, (1.0, 1.0), 3),
    ]
    stored = read_evaluation(outcome.path)
    assert {(sample.problem, sample.sample) for sample in stored.samples} == {
        (f"{name}_{case}", number) for name in CATEGORIES for case in range(3) for number in range(2)
    }
    assert stored.header["categories"][0]["spread"] == 0.0
    assert len(set(prompts)) > 6
    assert outcome.mismatches is None


def test_wrong_calls_are_wrong_with_bfcls_own_reason(golds, tmp_path):
    verdicts, _ = passed(lambda prompt: "I would rather not.", tmp_path)
    assert not any(verdict.correct or verdict.failed for verdict in verdicts)
    assert {verdict.reason.split(":")[0] for verdict in verdicts} == {"simple_function_checker", "multi_turn"}


def test_one_case_alone_is_judged_too(golds, tmp_path):
    """BFCL's own table wants the spread of latencies, and dies of having one."""
    (verdict,), _ = passed(golds.answer, tmp_path, number=1, categories=("simple_python",))
    assert verdict.correct


def test_a_failed_generation_is_an_error_and_not_a_zero(golds, tmp_path):
    """BFCL stores it as an answer, scores it 0, and ends with status 0."""
    lost = golds.answer
    verdicts, _ = passed(lambda prompt: 400 if "triangle" in prompt else lost(prompt), tmp_path, number=2)
    failed = [verdict.id for verdict in verdicts if verdict.failed]
    assert failed == ["simple_python_0"]
    with pytest.raises(EgpoError, match=r"1 of 4 generations failed.*simple_python_0.*status 400"):
        require_generated([verdicts], "here")
    evaluation = evaluation_of("gold", asked("", 2), [verdicts])
    assert evaluation.figures.accuracy.value == 1.0
    assert evaluation.figures.num_failed == 1


def test_a_failure_that_passes_is_asked_again(golds, tmp_path):
    refused = []

    def answer(prompt):
        if "triangle" in prompt and not refused:
            refused.append(prompt)
            return 400
        return golds.answer(prompt)

    verdicts, _ = passed(answer, tmp_path, number=2)
    assert all(verdict.correct for verdict in verdicts)
    assert refused


def test_hostile_calls_are_executed_where_they_can_do_no_harm(golds, tmp_path):
    """BFCL evaluates what the model wrote as a function's name."""
    token = tmp_path / "secret"
    token.write_text("untouched")
    attack = f"__import__('pathlib').Path({str(token)!r}).write_text"
    call = json.dumps({"name": attack, "arguments": {"data": "pwned"}})
    passed(lambda prompt: f"<tool_call>\n{call}\n</tool_call>", tmp_path, number=1, categories=("multi_turn_base",))
    assert token.read_text() == "untouched"


def test_the_prompt_of_each_format(tmp_path):
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    tools = [{"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}]
    prompts = {
        name: built_prompt(
            PYTHON, BfclSettings("", "m", TINY, (), prompt_format=name), tmp_path / name, messages, tools
        )
        for name in ("qwen_fc", "qwen", "llama", "template")
    }
    assert all("What is 2 + 2?" in prompt and "add" in prompt for prompt in prompts.values())
    assert prompts["qwen_fc"].endswith("<|im_start|>assistant\n")
    assert "<|start_header_id|>" in prompts["llama"]
    instructed = BfclSettings("", "m", TINY, (), prompt_format="template", instruction="Be brief.")
    assert "Be brief." in built_prompt(PYTHON, instructed, tmp_path / "instructed", messages, tools)


def test_tools_stand_in_the_system_message_where_the_template_does_not_write_them(tmp_path):
    """As in training with the task `bfcl`: SmolLM2's template, for one, ignores tools."""
    model = shutil.copytree(TINY, tmp_path / "model")
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant"
    )
    tools = [{"name": "add", "description": "Add.", "parameters": {"type": "object", "properties": {}}}]
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    asked = BfclSettings("", "m", str(model), (), prompt_format="template", instruction="Be brief.")
    built = built_prompt(PYTHON, asked, tmp_path / "work", messages, tools)
    system = qwen3_system_text("Be brief.", tools)
    shown = "<|im_start|>user\nWhat is 2 + 2?<|im_end|>\n<|im_start|>assistant"
    assert built == f"<|im_start|>system\n{system}<|im_end|>\n{shown}"


def test_the_tokenizer_of_a_model_in_the_cache_of_the_hub_is_found(tmp_path):
    """Its files are links into a neighbouring folder, which is in the user's home and hidden in the sandbox."""
    snapshot = tmp_path / "models--egpo--tiny" / "snapshots" / "0123abc"
    blobs = shutil.copytree(TINY, tmp_path / "models--egpo--tiny" / "blobs")
    snapshot.mkdir(parents=True)
    for path in blobs.iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    asked = BfclSettings("", "m", str(snapshot), (), prompt_format="template")
    messages = [{"role": "user", "content": "What is 2 + 2?"}]
    assert "What is 2 + 2?" in built_prompt(PYTHON, asked, tmp_path / "work", messages, [])


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is missing")
def test_a_tokenizer_that_the_sandbox_hides_is_named(tmp_path):
    model = shutil.copytree(TINY, tmp_path / "model", ignore=shutil.ignore_patterns("tokenizer.json"))
    shutil.copy(Path(TINY) / "tokenizer.json", tmp_path / "elsewhere.json")
    (model / "tokenizer.json").symlink_to(tmp_path / "elsewhere.json")
    asked = BfclSettings("", "m", str(model), (), prompt_format="template")
    with pytest.raises(InputError, match=r"tokenizer\.json: it is a link to .*elsewhere\.json, which BFCL cannot read"):
        built_prompt(PYTHON, asked, tmp_path / "work", [{"role": "user", "content": "?"}], [])
