"""What every verb says of a model that it cannot use: one line, exit code 2, and no question to the hub."""

import sys
from pathlib import Path

import pytest

from egpo.assets import resolve_model
from egpo.cli.main import main

TINY = Path(resolve_model("egpo-tiny"))
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def words_of(verb, model, tmp_path):
    task = ["--task", "countdown"]
    return {
        "eval": ["eval", model, *task, "--n", "1", "--problems", "2", "--max-tokens", "8"],
        "probe": ["probe", "--model", model, *task, "--n", "2", "--problems", "2", "--max-tokens", "8"],
        "train": ["train", str(EXAMPLES / "recipe.yaml"), f"model.path={model}", "steps=1"],
        "dry run": ["train", str(EXAMPLES / "recipe.yaml"), f"model.path={model}", "--dry-run"],
        "sft": ["sft", str(EXAMPLES / "sft.yaml"), f"model.path={model}"],
        "serve": ["serve", model, "--port", "0"],
        "bfcl": ["eval", "bfcl", model, "--cases", "1", "--categories", "simple_python", "--offline"],
    }[verb]


VERBS = ("eval", "probe", "train", "dry run", "sft", "serve", "bfcl")


@pytest.fixture
def egpo(tmp_path, monkeypatch, capsys):
    """Runs a verb in an empty folder; whoever would ask the hub fails the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EGPO_MACHINE", "")
    asked = []
    monkeypatch.setattr("huggingface_hub.file_download.get_hf_file_metadata", lambda *a, **k: asked.append(a) or 1 / 0)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["egpo", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert asked == []
        return ended.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("verb", VERBS)
def test_a_path_that_leads_nowhere_is_not_asked_of_the_hub(egpo, tmp_path, verb):
    (tmp_path / "runs" / "typos").mkdir(parents=True)
    code, said = egpo(*words_of(verb, "runs/typo", tmp_path))
    assert code == 2
    assert "egpo: model runs/typo: no such folder; did you mean `runs/typos`?\n" in said
    assert "Traceback" not in said
