"""Episodes under evaluation: figures over episodes, stored records that can be replayed, limits, failures."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from egpo.api import evaluate as evaluate_model
from egpo.config.sections.training import EpisodeSettings
from egpo.environments import EnvironmentHost, EpisodeRecord, replay
from egpo.environments.records import MOST_STORED_CHARS
from egpo.errors import EgpoError, InputError
from egpo.evals.evaluate import Exam, Origin, as_json_value, evaluate, judge_responses, load_exam, write_evaluation
from egpo.evals.local_model import LocalModel
from egpo.evals.responses import Response, Sampling, read_samples
from egpo.local.sampling import episode_rows
from egpo.tasks import load_task
from egpo.tasks.episodes import environment_row
from tests.environments.playing import call, play
from tests.local.conftest import load, model_folder  # noqa: F401  (fixtures)
from tests.local.sampling.talking import Talk

pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
TASK = "tests.local.sampling.talking:Talking"
ENDS = tuple(range(3, 33))


@pytest.fixture(autouse=True)
def _talk_here(monkeypatch):
    use(monkeypatch, Talk)


def use(monkeypatch, kind):
    host = EnvironmentHost(kind)
    monkeypatch.setattr(episode_rows, "host_of", lambda task, problem: host)


def exam(n=2, max_tokens=160, ks=(1, 2), **sampling):
    return load_exam(Exam(TASK, sampling=Sampling(n=n, max_tokens=max_tokens, **sampling), ks=ks))


@pytest.fixture
def model(load):  # noqa: F811
    episodes = EpisodeSettings(max_turn_tokens=12)
    return lambda **more: LocalModel("random", load(), stop_tokens=ENDS, **{"episodes": episodes, **more})


def test_figures_are_over_episodes_and_the_verdicts_are_the_environments(model):
    found = evaluate(model(), exam())
    figures = found.figures
    assert (figures.num_problems, figures.num_responses, figures.num_failed) == (4, 8, 0)
    records = [EpisodeRecord.from_stored(sample.episode) for sample in found.samples]
    assert [sample.acc for sample in found.samples] == [record.verdict.correct for record in records]
    assert figures.accuracy.value == sum(record.verdict.correct for record in records) / 8
    assert figures.pass_at_k[2].value >= figures.pass_at_k[1].value
    assert figures.turns.value == sum(len(record.turns) for record in records) / 8
    assert figures.endings == Counter(record.ending for record in records)
    assert figures.endings["finished"] >= 4
    assert figures.readable_frac is None
    assert figures.reasons == {"drawn": 8}


def test_a_stored_episode_is_played_again_to_the_same_end(model, tmp_path):
    found = evaluate(model(), exam())
    write_evaluation(tmp_path, "e", found, Origin("random"))
    stored = read_samples(tmp_path / "e.jsonl")
    assert stored == list(found.samples)
    for sample in stored:
        record = EpisodeRecord.from_stored(sample.episode)
        assert replay(record, EnvironmentHost(Talk)).differences == ()
        assert sample.output == "\n\n".join(turn.text for turn in record.turns)


def test_the_batch_does_not_change_an_episode(model):
    by_one, at_once = evaluate(model(rows_at_once=1), exam()), evaluate(model(), exam())
    assert [sample.episode for sample in by_one.samples] == [sample.episode for sample in at_once.samples]


def test_limits_are_those_of_the_recipe_or_of_the_options(model):
    limited = model(episodes=EpisodeSettings(max_turns=2, max_turn_tokens=12))
    found = evaluate(limited, exam())
    assert found.figures.endings == {"turn_limit": 4, "finished": 4}
    assert as_json_value(found, Origin("m"))["episode_limits"]["turns"] == 2
    asked = evaluate(limited, exam(max_turns=1, max_turn_tokens=3))
    assert {len(sample.episode["turns"]) for sample in asked.samples} == {1}
    assert max(sample.num_tokens for sample in asked.samples) <= 3
    assert as_json_value(asked, Origin("m"))["sampling"]["max_turns"] == 1
    with pytest.raises(InputError, match="max_turns=0 is not allowed"):
        Sampling(max_turns=0)


def test_single_responses_have_no_figures_of_episodes(model):
    single = load_exam(Exam("tests.evals.sum_task:Sums", {"count": 2}, sampling=Sampling(n=1, max_tokens=4)))
    value = as_json_value(evaluate(model(), single), Origin("m"))
    assert not {"turns", "calls", "endings", "faults", "episode_limits"} & set(value)
    assert "max_turns" not in value["sampling"]


class Breaks(Talk):
    """Fails for one of the problems, or for all."""

    which = ("a",)

    def reset(self, ground_truth="", **row):
        if ground_truth in self.which:
            raise OSError("the disk is gone")
        return super().reset(ground_truth=ground_truth, **row)


class BreaksAlways(Breaks):
    which = ("a", "bb ccc", "a longer prompt than the others", "dd")


def test_a_failed_environment_is_not_a_wrong_answer(model, monkeypatch):
    use(monkeypatch, Breaks)
    found = evaluate(model(), exam())
    failed = [sample for sample in found.samples if sample.failed]
    assert {sample.problem for sample in failed} == {"a"}
    assert found.figures.failures == {"environment_reset": 2}
    assert found.figures.accuracy.num_problems == 3
    use(monkeypatch, BreaksAlways)
    with pytest.raises(EgpoError, match=r"the environment failed in all 8 episodes .*the disk is gone"):
        evaluate(model(), exam())


class Wordy(Talk):
    """Its `reset` says more than the problem does."""

    def reset(self, ground_truth="", **row):
        super().reset(ground_truth=ground_truth, **row)
        return "x" * (150 if ground_truth == "a" else 0)


def test_prompts_are_measured_with_what_the_environment_says_first(model, monkeypatch):
    use(monkeypatch, Wordy)
    found = evaluate(model(), exam(max_tokens=120))
    assert found.num_left_out == 1
    assert {sample.problem for sample in found.samples} == {"bb ccc", "a longer prompt than the others", "dd"}


def test_what_is_stored_is_bounded_and_a_cut_record_says_so():
    host = EnvironmentHost("toolbox")
    task = load_task("toolbox", train=4, test=1)
    problem = task.problems("train")[0]
    record = play(host, environment_row(problem), task.gold_turns(problem))
    whole = record.stored()
    assert replace(record, tools=()) == EpisodeRecord.from_stored(json.loads(json.dumps(whole)))
    assert len(json.dumps(whole)) < 3_000
    long = replace(
        record, turns=tuple(replace(turn, changes={"a": ("x" * 9_000, "y" * 200_000)}) for turn in record.turns)
    )
    stored = long.stored()
    assert stored["cut"]
    assert len(json.dumps(stored)) < 10_000
    assert [turn["text"] for turn in stored["turns"]] == [turn.text for turn in record.turns]
    many = replace(
        record, turns=tuple(replace(turn, changes={str(i): (i, i) for i in range(40_000)}) for turn in record.turns)
    )
    assert len(json.dumps(many.stored())) < MOST_STORED_CHARS
    with pytest.raises(InputError, match="the record was cut"):
        EpisodeRecord.from_stored(stored)
    for broken in ({}, {"row": 1}, {**whole, "turns": [{}]}, {**whole, "more": 1}, [], None):
        with pytest.raises(InputError, match=r"not the (stored )?record of an episode"):
            EpisodeRecord.from_stored(broken)


def test_a_record_with_broken_calls_failures_and_strange_values_comes_back(tmp_path):
    host = EnvironmentHost("toolbox")
    task = load_task("toolbox", train=1, test=1, max_requests=2, min_requests=2)
    row = environment_row(task.problems("train")[0])
    texts = ["<tool_call>", call("nothing"), "\ud800 then \u2028", call("files") + call("files", x=1)]
    record = play(host, row, texts)
    again = EpisodeRecord.from_stored(json.loads(json.dumps(record.stored())))
    assert again == replace(record, tools=())
    assert replay(again, host).is_same
    samples = judge_responses(task, task.problems("train"), [Response(0, 0, "p", "t", episode=record)], "toolbox")
    assert samples[0].reason == record.verdict.reason
    assert EpisodeRecord.from_stored(samples[0].episode) == replace(record, tools=())


def test_the_packaged_model_on_toolbox(tmp_path):
    """The command as a user gives it: template, tools, worlds and verdicts are the real ones."""
    found = evaluate_model(
        "egpo-tiny", "toolbox", task_settings={"tools": "signatures"}, problems=4, n=2, max_turns=3, out=tmp_path
    )
    samples = found.samples
    assert len(samples) == 8
    for sample in samples:
        record = EpisodeRecord.from_stored(sample.episode)
        assert len(record.turns) <= 3
        assert record.limits["turns"] == 3
        assert replay(record).is_same
