"""Whole trainings on episodes, with the environment in worker processes."""

import json
import time

import pytest

from tests.local.runs import Finished, contents, differing, run, start
from tests.waiting import becomes_true

RECIPE = """
name: talk
steps: 4
model: {{path: {model}, device: cpu}}
task: {{name: "tests.local.sampling.talking:Talking"}}
rollout:
  {{prompts: 2, n: 4, max_response_tokens: 150, stop_tokens: [{ends}],
    episodes: {{max_turn_tokens: 6, history: {history}}}}}
algorithm: {{estimator: egpo, egpo: {{entropy_mode: response}}}}
update: {{lr: 1e-3, epochs: 2, mini_batch: 1}}
checkpoints: {{every: 1, keep_last: 2, keep_best: 0}}
validation: {{every: 2, problems: 2}}
watch: {{rollouts_every: 2}}
"""


@pytest.fixture
def recipe(model_folder, tmp_path):
    def write(history="keep"):
        path = tmp_path / f"{history}.yaml"
        ends = ", ".join(map(str, range(3, 33)))
        path.write_text(RECIPE.format(model=model_folder(), ends=ends, history=history))
        return path

    return write


def metrics(folder):
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("history", ["keep", "per_turn"])
def test_a_training_on_episodes(recipe, tmp_path, history):
    done = run(recipe(history), cwd=tmp_path)
    assert done.code == 0, done.err
    lines = metrics(tmp_path / "runs/talk")
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert all(line["actor/grad_norm"] > 0 for line in lines[1:])
    found = [line["sampler/logp_diff_mean"] for line in lines if "sampler/logp_diff_mean" in line]
    assert found  # it is absent where a mini-batch has equal rewards
    assert max(found) < 1e-4


@pytest.mark.timeout(300)
def test_a_run_that_is_killed_in_an_episode_ends_as_one_that_was_not(recipe, tmp_path, monkeypatch):
    path, sign = recipe(), tmp_path / "sign"
    whole = run(path, "runs=whole", cwd=tmp_path)
    assert whole.code == 0, whole.err
    monkeypatch.setenv("EGPO_TEST_SIGN", str(sign))
    process, folder = start(path, "runs=killed", cwd=tmp_path), tmp_path / "killed/talk"
    assert becomes_true(lambda: len(metrics(folder)) >= 2)
    size = sign.stat().st_size
    assert becomes_true(lambda: sign.stat().st_size > size)
    time.sleep(0.01)
    process.kill()
    Finished(process)
    assert len(metrics(folder)) < 5
    again = run(path, "runs=killed", "--resume", cwd=tmp_path)
    assert again.code == 0, again.err
    one, other = contents(tmp_path / "whole/talk"), contents(folder)
    assert differing(one, other) == []
