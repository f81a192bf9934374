"""The tiny model: in the package, in the wheel, in plain transformers, and where reinforcement has something to do."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from egpo.assets import MODELS, resolve_model
from egpo.config import load_config
from egpo.config.schema import Model
from egpo.evals.evaluate import Exam, evaluate, load_exam
from egpo.evals.local_model import LocalModel
from egpo.evals.responses import Sampling
from egpo.local.models.loading import load_policy

REPOSITORY = Path(__file__).parents[1]
TINY = MODELS["egpo-tiny"]
COUNTDOWN = {
    "mode": "binary",
    "min_numbers": 3,
    "max_numbers": 3,
    "max_number": 12,
    "max_target": 60,
    "prompt_format": "Make {target} from {numbers}.",
    "train": 1024,
    "test": 256,
}


def test_a_name_of_the_package_is_its_folder_and_any_other_stays():
    assert Path(resolve_model("egpo-tiny"), "config.json").is_file()
    assert resolve_model("Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"
    assert resolve_model("runs/egpo-tiny") == "runs/egpo-tiny"


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    (tmp_path / "egpo-tiny").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_model("egpo-tiny") == "egpo-tiny"


def test_it_stays_small():
    assert sum(path.stat().st_size for path in TINY.iterdir()) < 12e6


def test_it_loads_in_plain_transformers_and_answers():
    tokenizer, model = AutoTokenizer.from_pretrained(TINY), AutoModelForCausalLM.from_pretrained(TINY)
    messages = [{"role": "user", "content": "Make 24 from [2, 3, 4]."}]
    inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    written = model.generate(**inputs, max_new_tokens=136, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    text = tokenizer.decode(written)
    assert "<think>" in text
    assert "</think>" in text
    assert text.endswith(tokenizer.eos_token)


def test_its_template_closes_an_empty_thought_where_thinking_is_off():
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hello."}], add_generation_prompt=True, tokenize=False, enable_thinking=False
    )
    assert prompt.endswith("<think>\n\n</think>\n\n")


def test_reinforcement_has_something_to_do():
    policy = load_policy(Model(path="egpo-tiny", device="cpu"))
    exam = Exam("countdown", COUNTDOWN, num_problems=48, sampling=Sampling(n=4, max_tokens=136))
    evaluation = evaluate(LocalModel("egpo-tiny", policy), load_exam(exam))
    assert 0.1 < evaluation.figures.accuracy.value < 0.8
    assert evaluation.figures.readable_frac > 0.5


def test_reinforcement_has_something_to_do_in_episodes():
    config = load_config("toolbox_tiny")
    exam = Exam(
        config.task.name,
        config.task.settings,
        num_problems=24,
        sampling=Sampling(n=4, max_tokens=config.rollout.max_response_tokens),
    )
    model = LocalModel("egpo-tiny", load_policy(config.model), episodes=config.rollout.episodes)
    evaluation = evaluate(model, load_exam(exam))
    assert 0.1 < evaluation.figures.accuracy.value < 0.8


@pytest.fixture(scope="module")
def names_in_wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    return set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_the_whole_model_and_the_demo(names_in_wheel):
    files = {f"egpo/assets/egpo-tiny/{path.name}" for path in TINY.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in TINY.iterdir()}
    assert files | {"egpo/demos/countdown.yaml"} <= names_in_wheel
