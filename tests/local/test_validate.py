"""Validation: verl's names, honest figures, and no trace in the run."""

import pytest
import torch

from egpo.config import load_config
from egpo.errors import InputError
from egpo.local.training.rl_session import open_seeded
from egpo.local.validate import held_out_problems, source_name, validate
from egpo.rewards.verdict import Verdict
from tests.local.runs import write_recipe

pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
SOURCE = "tests.local.run_tasks:Sparse"


@pytest.fixture
def opened(model_folder, tmp_path):
    recipe = write_recipe(tmp_path / "recipe.yaml", model_folder())
    return lambda *overrides: open_seeded(load_config(recipe, overrides))


def test_the_names_are_verls(opened):
    run = opened("validation.n=2", "validation.temperature=1.0")
    metrics = validate(run)
    assert {f"val-core/{SOURCE}/acc/mean@2", f"val-aux/{SOURCE}/reward/mean@2"} <= set(metrics)
    assert metrics[f"val-aux/{SOURCE}/entropy/response"] > 0
    assert source_name(opened("task={name: gsm8k}")) == "gsm8k"


def test_greedy_responses_are_the_likeliest_tokens(opened, monkeypatch):
    run = opened()
    texts = []
    monkeypatch.setattr(run.task, "judge", lambda problem, text: texts.append(text) or Verdict(0.0, False, "odd"))
    monkeypatch.setattr(run.task, "prompt", lambda problem: list(problem.messages))
    validate(run)
    for problem, text in zip(held_out_problems(run), texts, strict=True):
        prompt = run.policy.tokenizer.apply_chat_template(
            list(problem.messages), add_generation_prompt=True, return_dict=False
        )
        tokens = torch.tensor([prompt], device=run.policy.device)
        for _ in range(6):
            with torch.no_grad():
                hidden = plain_hidden(run.policy, tokens)
            tokens = torch.cat([tokens, (hidden @ run.policy.head_VD.T).argmax()[None, None]], dim=1)
        assert run.policy.tokenizer.decode(tokens[0, len(prompt) :], skip_special_tokens=True) == text


def plain_hidden(policy, tokens):
    from egpo.local.models.packs import Sequences, pack_groups

    return policy.hidden(pack_groups([Sequences(tokens[0].tolist())], policy.device))[-1]


def test_validating_leaves_no_trace_and_repeats_itself(opened):
    run = opened("validation.temperature=0.7", "validation.n=3")
    run.task.prompt = lambda problem: list(problem.messages)
    position = run.stream.position
    assert validate(run) == validate(run)
    assert run.stream.position == position


def test_a_checker_that_fails_is_no_wrong_answer_and_shows(opened):
    run = opened("validation.n=2", "validation.temperature=1.0")
    verdicts = iter([Verdict(1.0, True, "even"), Verdict(0.0, False, "lost", failed=True)] * 3)
    run.task.judge = lambda problem, text: next(verdicts)
    metrics = validate(run)
    assert metrics[f"val-core/{SOURCE}/acc/mean@2"] == 1.0
    assert metrics[f"val-aux/{SOURCE}/error_frac"] == 0.5


def test_long_prompts_are_left_out_as_in_training(opened):
    run = opened()
    assert len(held_out_problems(run)) == 3
    with pytest.raises(InputError, match="to validate on"):
        held_out_problems(opened("rollout.max_prompt_tokens=5"))
