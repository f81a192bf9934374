"""It learns: from random weights to 95 % of the maximum, under each estimator."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from egpo.config import load_config
from egpo.local.run import open_run
from egpo.local.step import step
from tests.local.device import WORDS
from tests.local.learning_tasks import letters_tokenizer

SETTINGS = {
    "Bandit": {"steps": 50, "tokens": 1, "prompts": 4},
    "Copy": {"steps": 120, "tokens": 2, "prompts": 16},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("letters")
    config = Qwen3Config(
        vocab_size=13,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=32,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(path)
    letters_tokenizer().save_pretrained(path)
    return path


def learning_run(folder, task, estimator, *overrides):
    settings = SETTINGS[task]
    return open_run(
        load_config(
            overrides=[
                f"model.path={folder}",
                *WORDS,
                f"task.name=tests.local.learning_tasks:{task}",
                f"steps={settings['steps']}",
                f"rollout.prompts={settings['prompts']}",
                "rollout.n=8",
                f"rollout.max_response_tokens={settings['tokens']}",
                f"algorithm.estimator={estimator}",
                "algorithm.egpo.entropy_mode=response",
                "algorithm.egpo_calibrated.entropy_mode=response",
                "update.lr=3e-3",
                *overrides,
            ]
        )
    )


@pytest.mark.filterwarnings("ignore:.*neither.*:egpo.errors.EgpoWarning")
@pytest.mark.parametrize("task", sorted(SETTINGS))
@pytest.mark.parametrize("estimator", ["grpo", "egpo", "egpo_calibrated"])
def test_learns(folder, task, estimator):
    run = learning_run(folder, task, estimator)
    scores = [step(run, number).metrics["critic/score/mean"] for number in range(run.config.steps)]
    assert scores[0] < 0.5
    assert sum(scores[-5:]) / 5 >= 0.95
