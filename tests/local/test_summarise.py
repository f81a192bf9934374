"""The metrics of episodes: counted from the records, entropies from the tokens of each turn."""

from itertools import product

import pytest

from egpo.config import load_config
from egpo.environments import EnvironmentHost, EpisodeRecord, replay
from egpo.errors import InputError
from egpo.local.models.policy import prompt_tokens
from egpo.local.run import open_run
from egpo.local.sampling import episode_rows
from egpo.local.sampling.prompt_lengths import prompt_lengths
from egpo.local.step import step
from egpo.local.training import preflight
from egpo.local.training.preflight import check_before_training
from egpo.local.training.rl_session import rollout_records
from egpo.local.validate import held_out_problems, validate
from egpo.runs import read_dump, write_dump
from egpo.runs.metric_table import find_metric
from egpo.segments.tags import TokenTexts
from tests.local.device import WORDS
from tests.local.sampling.talking import Talk

pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")


def opened(model_folder, monkeypatch, *overrides):
    host = EnvironmentHost(Talk)
    for module in (episode_rows, preflight):
        monkeypatch.setattr(module, "host_of", lambda task, problem: host)
    words = [
        f"model.path={model_folder('qwen3')}",
        *WORDS,
        "task.name=tests.local.sampling.talking:Talking",
        "rollout.prompts=4",
        "rollout.n=3",
        "rollout.max_response_tokens=150",
        "rollout.episodes.max_turn_tokens=12",
        f"rollout.stop_tokens={list(range(3, 33))}",
        *overrides,
    ]
    return open_run(load_config(overrides=words))


@pytest.mark.parametrize("history", ["keep", "per_turn"])
def test_metrics_of_a_step_of_episodes(model_folder, monkeypatch, history):
    run = opened(model_folder, monkeypatch, f"rollout.episodes.history={history}")
    outcome = step(run, 0)
    metrics, rollouts = outcome.metrics, outcome.batch.rollouts
    records = [episode.record for episode in rollouts.episodes]
    assert metrics["episode/num_turns/mean"] == sum(len(record.turns) for record in records) / 12
    assert metrics["episode/num_turns/max"] == 4
    assert metrics["episode/num_calls/mean"] == 0
    assert sum(value for name, value in metrics.items() if name.startswith("episode/ending/")) == pytest.approx(1)
    cut = sum(record.reasons.get("cut_off", 0) for record in records)
    assert metrics.get("episode/fault/cut_off", 0) == cut / 12
    assert cut
    masks = outcome.measures.segments
    for turn, (name, mask_BT) in product(range(4), {"thinking": masks.thinking_BT, "answer": masks.answer_BT}.items()):
        means = []
        for row, episode in enumerate(rollouts.episodes):
            for span in episode.turns[turn : turn + 1]:
                found = rollouts.entropy_BT[row, slice(*span)][mask_BT[row, slice(*span)]]
                means += [float(found.mean())] if len(found) else []
        expected = pytest.approx(sum(means) / len(means), rel=1e-5) if means else None
        assert metrics.get(f"episode/turn_{turn + 1}/entropy/{name}") == expected
    assert not [name for name in metrics if name.startswith("episode/") and find_metric(name) is None]


@pytest.mark.parametrize("history", ["keep", "per_turn"])
def test_the_rollouts_that_are_written_hold_the_episodes(model_folder, monkeypatch, history, tmp_path):
    run = opened(model_folder, monkeypatch, f"rollout.episodes.history={history}")
    outcome = step(run, 0)
    write_dump(tmp_path / "step_1.jsonl", rollout_records(run, outcome, 1, TokenTexts(run.policy.tokenizer)))
    rollouts = outcome.batch.rollouts
    for row, record in enumerate(read_dump(tmp_path / "step_1.jsonl")):
        episode = EpisodeRecord.from_stored(record.episode)
        assert replay(episode, EnvironmentHost(Talk)).is_same
        assert len(record.turns) == len(episode.turns)
        assert record.num_tokens == int(rollouts.length_B[row]) == len(record.token_entropy)
        assert record.turns[-1].end == record.num_tokens
        for span, turn in zip(record.turns, episode.turns, strict=True):
            assert "".join(record.tokens[span.start : span.end]) == turn.text
            entropies = [
                record.token_entropy[place]
                for one in record.token_segment
                if one.name == "answer"
                for place in range(max(one.start, span.start), min(one.end, span.end))
            ]
            if entropies:
                assert span.entropy["answer"] == pytest.approx(sum(entropies) / len(entropies), abs=2e-4)


def test_single_responses_have_no_metrics_of_episodes(model_folder, monkeypatch):
    run = opened(model_folder, monkeypatch, "task.name=tests.local.test_step:Parity", "rollout.max_response_tokens=12")
    assert not [name for name in step(run, 0).metrics if name.startswith("episode/")]


class Untold(Talk):
    tools_in_prompt = False


def test_a_template_without_tools_is_refused_before_the_first_step(model_folder, monkeypatch):
    run = opened(model_folder, monkeypatch)
    check_before_training(run)
    monkeypatch.setattr(episode_rows, "host_of", lambda task, problem: EnvironmentHost(Untold))
    with pytest.raises(InputError, match="the chat template does not write the tools"):
        check_before_training(run)


LISTING = (
    "{%- if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


@pytest.mark.parametrize("place", ["here", "waits"])
def test_prompts_are_measured_with_the_tools_that_the_template_lists(model_folder, monkeypatch, place):
    run = opened(model_folder, monkeypatch, "rollout.max_response_tokens=100", "rollout.episodes.max_turns=1")
    host = EnvironmentHost(Untold)
    host._place = place
    for module in (episode_rows, preflight):
        monkeypatch.setattr(module, "host_of", lambda task, problem: host)
    run.policy.tokenizer.chat_template = LISTING
    object.__setattr__(run.policy, "context", 4096)
    problems = run.task.problems("train")
    lengths = prompt_lengths(run.policy, run.task, problems, run.config.rollout.episodes)
    bare = [len(prompt) for prompt in prompt_tokens(run.policy, run.task, problems)]
    assert all(length > 100 + short for length, short in zip(lengths, bare, strict=True))
    taken = step(run, 0).batch.rollouts
    measured = dict(zip((problem.key for problem in problems), lengths, strict=True))
    assert [len(prompt) for prompt in taken.prompts] == [measured[problem.key] for problem in taken.problems]
    check_before_training(run)
    object.__setattr__(run.policy, "context", max(lengths) + 99)
    with pytest.raises(InputError, match=f"a prompt of {max(lengths)} tokens"):
        check_before_training(run)


def test_prompts_that_are_too_long_with_their_tools_are_left_out(model_folder, monkeypatch):
    run = opened(model_folder, monkeypatch, "rollout.max_prompt_tokens=60", "rollout.prompts=2")
    assert len(run.stream.take(4)) == 4
    assert len(held_out_problems(run)) == 4
    monkeypatch.setattr(episode_rows, "host_of", lambda task, problem: EnvironmentHost(Wordy))
    keys = {problem.key for problem in run.stream.take(6)}
    assert keys == {"bb ccc", "dd", "a longer prompt than the others"}
    assert {problem.key for problem in held_out_problems(run)} == keys
    run.policy.tokenizer.chat_template = LISTING
    monkeypatch.setattr(episode_rows, "host_of", lambda task, problem: EnvironmentHost(Untold))
    with pytest.raises(InputError, match="all 4 prompts are longer than allowed"):
        run.stream.take(1)
    with pytest.raises(InputError, match="no problems in the split `test`"):
        held_out_problems(run)


class Wordy(Talk):
    def reset(self, ground_truth="", **row):
        super().reset(ground_truth=ground_truth, **row)
        return "x" * (60 if ground_truth == "a" else 0)


def test_validation_is_over_episodes(model_folder, monkeypatch):
    run = opened(model_folder, monkeypatch, "validation.n=2", "validation.temperature=1.0")
    metrics = validate(run)
    accuracy = next(value for name, value in metrics.items() if name.startswith("val-core/"))
    assert 0 < accuracy < 1
    assert accuracy * 8 == round(accuracy * 8), "four problems, two episodes each"
