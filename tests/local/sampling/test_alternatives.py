"""The likeliest tokens that are recorded while sampling: right, bounded, and without any effect on the training."""

import json

import pytest
import torch

from egpo.local.rollouts import Alternatives
from egpo.local.sampling.alternatives import LEAST_ENTROPY, likeliest, record_alternatives, record_in_graph
from egpo.local.sampling.choose import NUM_POSITIONS, Sampling, choose, entropy, truncate
from egpo.local.sampling.sample import sample
from tests.local.device import ON_GPU
from tests.local.runs import contents, differing, run, write_recipe
from tests.local.sampling.test_sample import TASK, Draws, Rollout, drawn

LIMITS = [{}, {"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.8}, {"min_p": 0.1}, {"temperature": 0.0}]


def with_alternatives(policy, count, **settings):
    settings = {"n": 3, "max_response_tokens": 24} | settings
    return sample(policy, TASK, TASK.problems("train"), Rollout(**settings), Draws(1), alternatives=count)


def test_responses_are_the_same_with_and_without(load):
    policy = load()
    plain, recorded = drawn(policy), with_alternatives(policy, 4)
    assert recorded.texts == plain.texts
    assert plain.alternatives is None
    for name in ("response_BT", "logp_BT", "entropy_BT", "mask_BT"):
        assert torch.equal(getattr(plain, name), getattr(recorded, name))


def test_recorded_probabilities_are_those_of_the_sampled_distribution(load):
    """The probability of a sampled token that is among the likeliest is that of its recorded log-probability."""
    rollouts = with_alternatives(load(), 4)
    checked = 0
    for row, tokens in enumerate(rollouts.responses()):
        for position, found in rollouts.alternatives.of_row(row, len(tokens)).items():
            probabilities = [probability for _, probability in found]
            assert probabilities == sorted(probabilities, reverse=True)
            assert float(rollouts.entropy_BT[row, position]) >= LEAST_ENTROPY
            for token, probability in found:
                if token == tokens[position]:
                    checked += 1
                    assert probability == pytest.approx(float(rollouts.logp_BT[row, position].exp()), abs=1e-5)
    assert checked


@pytest.mark.parametrize("limits", LIMITS)
def test_alternatives_follow_temperature_and_truncation(limits):
    sampling = Sampling(**limits)
    logits_RV = torch.randn(6, 40, generator=torch.Generator().manual_seed(0)) * 2
    token_RK, probability_RK = likeliest(logits_RV, sampling, 8)
    whole_RV = torch.softmax(logits_RV / (sampling.temperature or 1.0), -1)
    expected_RV = truncate(whole_RV, sampling) if sampling.truncates else whole_RV
    assert torch.allclose(probability_RK, expected_RV.sort(-1, descending=True).values[:, :8])
    assert torch.allclose(expected_RV.gather(1, token_RK), probability_RK)
    choice = choose(logits_RV, torch.full((6,), 0.5), sampling)
    assert torch.allclose(choice.entropy_R, entropy(expected_RV), atol=1e-5)


@pytest.mark.parametrize("record", ["plain", "graph"])
def test_the_positions_of_highest_entropy_stay(record):
    """Both ways of recording keep the same positions: as many as there are places, by entropy."""
    generator = torch.Generator().manual_seed(3)
    tables = Alternatives.empty(3, NUM_POSITIONS, 4, torch.device("cpu"))
    entropies = torch.rand(2, 100, generator=generator) * 3
    for position in range(100):
        logits_RV = torch.randn(2, 50, generator=generator)
        row_R, entropy_R = torch.tensor([0, 1]), entropies[:, position]
        if record == "plain":
            record_alternatives(tables, row_R, position, logits_RV, entropy_R, Sampling())
        else:
            where_R, live_R = torch.full((2,), position), torch.ones(2, dtype=torch.int32)
            record_in_graph(tables, row_R, where_R, live_R, logits_RV, entropy_R, Sampling())
    for row in range(2):
        highest = entropies[row].topk(NUM_POSITIONS).indices.sort().values.tolist()
        assert list(tables.of_row(row, 100)) == highest


def test_rows_that_have_ended_record_nothing_in_a_graph():
    tables = Alternatives.empty(3, NUM_POSITIONS, 2, torch.device("cpu"))
    row_R, live_R = torch.tensor([0, 1]), torch.tensor([1, 0], dtype=torch.int32)
    entropy_R = torch.full((2,), 2.0)
    record_in_graph(tables, row_R, torch.zeros(2), live_R, torch.randn(2, 9), entropy_R, Sampling())
    assert list(tables.of_row(0, 5)) == [0]
    assert tables.of_row(1, 5) == {}


def test_a_vocabulary_smaller_than_the_number_of_alternatives():
    tables = Alternatives.empty(1, NUM_POSITIONS, 20, torch.device("cpu"))
    record_alternatives(tables, torch.tensor([0]), 0, torch.zeros(1, 3), torch.tensor([1.1]), Sampling())
    assert len(tables.of_row(0, 1)[0]) == 3


def test_positions_past_the_end_are_left_out():
    tables = Alternatives.empty(1, NUM_POSITIONS, 2, torch.device("cpu"))
    for position in (0, 7):
        record_alternatives(tables, torch.tensor([0]), position, torch.zeros(1, 9), torch.tensor([2.0]), Sampling())
    assert list(tables.of_row(0, 5)) == [0]


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """The same recipe twice, without and with alternatives, in processes of their own."""
    from tests.local.conftest import build_model, build_tokenizer

    place = tmp_path_factory.mktemp("runs")
    build_model("qwen3").save_pretrained(place / "model")
    build_tokenizer().save_pretrained(place / "model")
    recipe = write_recipe(place / "recipe.yaml", place / "model")
    for count in (0, 3):
        words = [f"name=k{count}", f"runs={place / 'runs'}", "steps=4", f"rollout.alternatives={count}"]
        done = run(recipe, *words, cwd=place)
        assert done.code == 0, done.err
    return place / "runs"


def test_training_is_the_same_with_and_without(two_runs):
    """Metrics and checkpoints, byte for byte; only the rollouts differ, by what was recorded."""
    one, other = (contents(two_runs / name) for name in ("k0", "k3"))
    assert "metrics.jsonl" in one
    assert any(name.endswith(".safetensors") for name in one)
    assert {name.split("/")[0] for name in differing(one, other)} == {"rollouts"}


def test_the_dump_of_a_run_holds_them(two_runs):
    lines = [json.loads(line) for line in (two_runs / "k3" / "rollouts" / "step_4.jsonl").read_text().splitlines()]
    found = [entry for line in lines for entry in line.get("token_alternatives", ())]
    assert found
    for token, sampled, pairs in found:
        assert 0 <= token < 6
        assert -1 <= sampled < len(pairs) <= 3
    first = json.loads((two_runs / "k0" / "rollouts" / "step_4.jsonl").read_text().splitlines()[0])
    assert "token_alternatives" not in first


@pytest.mark.skipif(ON_GPU, reason="the sizes of a run on a CPU")
def test_steps_that_are_not_written_record_none(two_runs):
    from egpo.config import load_config

    config = load_config(two_runs.parent / "recipe.yaml", ["steps=7", "watch.rollouts_every=3"])
    assert [step for step in range(1, 8) if config.writes_rollouts(step)] == [1, 3, 6, 7]
