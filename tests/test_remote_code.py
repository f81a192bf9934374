"""Code that lies in a model folder never runs, whatever the folder says and whatever stands on standard input."""

import ast
import builtins
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import egpo
from egpo.assets import MODELS
from egpo.config.schema import Model
from egpo.data.tokens import load_tokenizer
from egpo.errors import ConfigError, InputError
from egpo.local.models.loading import load_policy
from egpo.merges.models import read_config
from egpo.serving.commands import ChatTemplate, Engine, Serving, command, read_template
from egpo.verl.launch.preflight import load_tokenizer as load_for_verl
from egpo.verl.launch.refusals import refuse_what_verl_lacks
from tests.verl.launch.recipes import small

SOURCE = Path(egpo.__file__).parent
CODE = """
from pathlib import Path
Path({marker!r}).write_text("it ran")
from transformers import PretrainedConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM, Qwen3Config
class Evil(Qwen3Config): model_type = "evil"
class EvilModel(Qwen3ForCausalLM): config_class = Evil
class EvilTokenizer(PreTrainedTokenizerFast): pass
"""
MODEL_MAP = {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.EvilModel"}
TOKENIZER_MAP = {"AutoTokenizer": [None, "evil.EvilTokenizer"]}


@pytest.fixture
def marker(tmp_path):
    return tmp_path / "it_ran"


@pytest.fixture
def folder(tmp_path, marker):
    """A copy of egpo-tiny with code of its own, that each test makes a part of the model."""
    made = Path(shutil.copytree(MODELS["egpo-tiny"], tmp_path / "model"))
    (made / "evil.py").write_text(CODE.format(marker=str(marker)))
    return made


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def with_own_model(folder):
    change(folder / "config.json", model_type="evil", architectures=["EvilModel"], auto_map=MODEL_MAP)


def with_own_tokenizer(folder):
    change(folder / "tokenizer_config.json", tokenizer_class="EvilTokenizer", auto_map=TOKENIZER_MAP)


@pytest.fixture
def yes(monkeypatch):
    """Somebody who answers every question with yes."""
    monkeypatch.setattr(builtins, "input", lambda *_: "yes")


LOADERS = {
    "train": lambda folder: load_policy(Model(path=folder, device="cpu")),
    "train, random weights": lambda folder: load_policy(Model(path=folder, device="cpu", init="random")),
    "serve": read_template,
    "prepare": load_tokenizer,
    "verl": load_for_verl,
}


@pytest.mark.parametrize("change_folder", [with_own_model, with_own_tokenizer])
@pytest.mark.parametrize("who", sorted(LOADERS))
def test_a_folders_code_is_refused_and_never_run(folder, marker, yes, who, change_folder):
    change_folder(folder)
    try:
        LOADERS[who](str(folder))
    except InputError as error:
        assert str(folder) in str(error)  # noqa: PT017 -- a loader that needs none of the code may load the rest
    assert not marker.exists()


def test_merging_runs_no_code_either(folder, marker, yes):
    with_own_model(folder)
    with pytest.raises(InputError, match="cannot be read"):
        read_config(folder)
    assert not marker.exists()


def test_a_known_class_is_loaded_from_transformers_and_not_from_the_folder(folder, marker, yes):
    """`auto_map` beside a model type that transformers has."""
    change(folder / "config.json", auto_map=MODEL_MAP)
    change(folder / "tokenizer_config.json", auto_map=TOKENIZER_MAP)
    assert type(load_policy(Model(path=str(folder), device="cpu")).model).__module__.startswith("transformers.")
    assert not marker.exists()


def test_verl_gets_no_folder_that_names_code(folder):
    """verl's reward workers load tokenizers with trust_remote_code=True, whatever its settings say."""
    change(folder / "tokenizer_config.json", auto_map=TOKENIZER_MAP)
    with pytest.raises(InputError, match="refers to code in the folder"):
        load_for_verl(str(folder))


@pytest.mark.parametrize(
    "key",
    [
        "actor_rollout_ref.model.trust_remote_code",
        "data.trust_remote_code",
        "critic.model.trust_remote_code",
        "actor_rollout_ref.rollout.engine_kwargs.vllm.trust_remote_code",
    ],
)
def test_a_recipe_cannot_have_verl_trust_a_model(key):
    with pytest.raises(ConfigError, match="would run code from a model folder"):
        refuse_what_verl_lacks(small(f"verl.{key}=true"))
    refuse_what_verl_lacks(small(f"verl.{key}=false"))


def test_a_server_is_not_told_to_trust_a_model():
    serving = Serving("folder", "model", more=["--trust-remote-code"])
    with pytest.raises(InputError, match="would run code from a model folder"):
        command(
            serving, Engine("vllm", "python", on_cpu=False), ChatTemplate(None, opens_thinking=False, may_switch=False)
        )


def test_yes_on_standard_input_trains_no_model_with_code(folder, marker, tmp_path):
    with_own_model(folder)
    words = ["train", f"model.path={folder}", "model.device=cpu", "task.name=countdown", "name=x", "steps=1"]
    done = subprocess.run(
        [sys.executable, "-m", "egpo", *words],
        input="yes\n" * 100,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "CI": "1"},
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "never runs code from a model folder" in done.stderr
    assert not marker.exists()


def test_bfcl_is_kept_from_trusting_a_model():
    """Its own handler loads tokenizer and config with trust_remote_code=True."""
    code = (
        "import transformers\nseen = []\n"
        "for kind in (transformers.AutoConfig, transformers.AutoTokenizer):\n"
        "    kind.from_pretrained = lambda *args, **options: seen.append(options)\n"
        "import drive\ndrive._refuse_code_of_models()\n"
        "transformers.AutoConfig.from_pretrained('x', trust_remote_code=True)\n"
        "transformers.AutoTokenizer.from_pretrained('x', trust_remote_code=True)\n"
        "assert seen == [{'trust_remote_code': False}] * 2, seen\n"
    )
    inside = SOURCE / "evals" / "bfcl" / "inside"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=inside)


def loading_calls(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in {"from_pretrained", "from_config", "pipeline"}:
                yield node


def test_every_call_that_loads_a_model_says_that_it_does_not_trust_it():
    found = 0
    for path in SOURCE.rglob("*.py"):
        for call in loading_calls(ast.parse(path.read_text())):
            said = {word.arg: word.value for word in call.keywords}.get("trust_remote_code")
            assert isinstance(said, ast.Constant), f"{path}:{call.lineno}"
            assert said.value is False, f"{path}:{call.lineno}"
            found += 1
    assert found >= 10
