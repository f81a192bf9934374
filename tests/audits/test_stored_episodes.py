"""Stored episodes, played again: the same, or told where they differ; code from outside runs only if it is named."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from egpo.audits import audit_episodes, audit_rewards
from egpo.cli.audit import audit_app
from egpo.environments import Environment, EnvironmentHost
from egpo.errors import InputError
from egpo.evals.evaluate import judge_responses
from egpo.evals.responses import Response, write_samples
from egpo.rewards.verdict import Verdict
from egpo.runs import RolloutRecord, write_dump
from egpo.tasks import load_task
from egpo.tasks.episodes import environment_row
from tests.environments.playing import call, play

BROKEN = {
    "environment": "toolbox", "row": {"prompt": []}, "turns": [{"text": 3}], "limits": {}, "deterministic": True,
    "ending": "finished", "verdict": {"reward": 1.0, "correct": True, "reason": "r"}, "tags": ["a", "b"],
}  # fmt: skip
GUESS = "tests.audits.test_stored_episodes:Guess"


class Guess(Environment):
    """A word to guess."""

    def reset(self, word="tea", **row):
        self.word, self.guessed = word, False
        return "guess"

    def guess(self, word: str) -> str:
        """Guess.

        Args:
            word: The word.
        """
        self.guessed = word == self.word
        return "right" if self.guessed else "wrong"

    def verdict(self, turns):
        return Verdict(float(self.guessed), self.guessed, "guessed" if self.guessed else "not_guessed")


class Dice(Guess):
    deterministic = False


@pytest.fixture(scope="module")
def toolbox():
    task = load_task("toolbox", train=12, test=4, max_requests=2)
    host = EnvironmentHost("toolbox")
    return task, [play(host, environment_row(one), task.gold_turns(one)) for one in task.problems("train")]


def line(record):
    return {"output": "x", "score": record.verdict.reward, "episode": record.stored()}


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line(record)) + "\n" for record in records))
    return path


def run(*words):
    return CliRunner().invoke(audit_app, ["episodes", *map(str, words)], env={"COLUMNS": "140"})


def test_rollouts_and_evaluations_of_a_run_are_played_again(tmp_path, toolbox):
    task, records = toolbox
    fields = {"input": "", "output": "", "gts": "", "score": 1.0, "acc": True, "reason": "", "problem": "p"}
    for step in (2, 10):
        rows = [RolloutRecord(**fields, step=step, sample=at, episode=one.stored()) for at, one in enumerate(records)]
        (tmp_path / "rollouts").mkdir(exist_ok=True)
        write_dump(tmp_path / "rollouts" / f"step_{step}.jsonl", rows)
    responses = [Response(at, 0, "", "", episode=one) for at, one in enumerate(records)]
    (tmp_path / "evals").mkdir()
    write_samples(tmp_path / "evals" / "e.jsonl", judge_responses(task, task.problems("train"), responses, "toolbox"))
    (tmp_path / "evals" / "server_answers.jsonl").write_text('{"key": "k", "text": "t"}\n')
    audit = audit_episodes([tmp_path])
    assert (audit.num_same, audit.num_different, audit.num_single) == (36, 0, 0)
    assert audit.environments == {"toolbox": 36}
    assert audit_episodes([tmp_path / "rollouts"], limit=5).num_episodes == 5
    done = run(tmp_path)
    assert done.exit_code == 0, done.output
    assert "36 episodes were played again: 36 as recorded, 0 differ" in done.output


def test_a_difference_is_told_with_its_place(tmp_path, toolbox):
    _, records = toolbox
    changed = replace(records[1], verdict=Verdict(0.0, False, "wrong_[red]state"))
    path = write(tmp_path / "e.jsonl", [records[0], changed, records[2]])
    audit = audit_episodes([path])
    assert (audit.num_same, audit.num_different) == (2, 1)
    (one,) = audit.different
    assert "line 2" in one.where
    assert one.differences[0].startswith("verdict: ")
    done = run(path)
    assert done.exit_code == 1
    assert "wrong_[red]state" in done.output
    told = json.loads(run(path, "--json").stdout)
    assert (told["same"], told["different"]) == (2, 1)
    assert told["differences"][0]["environment"] == "toolbox"


def test_an_environment_that_has_changed_is_found(tmp_path, toolbox):
    """The state that the tools leave behind is part of the record."""
    _, records = toolbox
    value = line(records[0])
    turn = next(turn for turn in value["episode"]["turns"] if "changes" in turn or "calls" in turn)
    turn["calls"][0]["result"] = "something else"
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps(value) + "\n")
    (one,) = audit_episodes([path]).different
    assert any("something else" in text for text in one.differences)


def test_code_from_outside_runs_only_if_it_is_named(tmp_path):
    with EnvironmentHost(GUESS, num_workers=1) as host:
        record = play(host, {"prompt": [], "word": "milk"}, [call("guess", word="milk"), "milk"])
    path = write(tmp_path / "e.jsonl", [record] * 3)
    audit = audit_episodes([path])
    assert (audit.num_same, audit.left_out, audit.not_named) == (0, {"not_named": 3}, {GUESS})
    assert f"--environment {GUESS}" in run(path).output.replace("\n", "")
    named = audit_episodes([path], environments=[GUESS])
    assert (named.num_same, named.num_different, named.left_out.total()) == (3, 0, 0)


def test_what_cannot_be_played_again_is_counted_and_left_out(tmp_path, toolbox):
    _, records = toolbox
    name = "tests.audits.test_stored_episodes:Dice"
    with EnvironmentHost(name, num_workers=1) as host:
        dice = play(host, {"prompt": []}, ["done"])
    long = replace(
        records[0], turns=tuple(replace(turn, changes={"a": ("x" * 300_000, 1)}) for turn in records[0].turns)
    )
    broken = replace(records[0], ending="failed", verdict=Verdict(0.0, False, "environment_error", failed=True))
    path = write(tmp_path / "e.jsonl", [dice, dice, long, broken, records[0]])
    with path.open("a") as file:
        file.write('{"output": "a single response"}\n')
    audit = audit_episodes([path], environments=[name])
    assert audit.left_out == {"not_deterministic": 2, "cut": 1, "failed": 1}
    assert (audit.num_same, audit.num_different, audit.num_single) == (1, 0, 1)
    done = run(path)
    assert "2 left out: the environment is not deterministic" in done.output
    assert "1 records are not episodes" in done.output


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('{"output": "x"}\n', "there are no episodes"),
        ('{"episode": 3}\n', "is not the stored record of an episode"),
        ('{"episode": {"environment": "toolbox"}}\n', "is not the stored record of an episode"),
        ('{"episode": {"environment": "toolbox", "row": {}, "turns": [{"text": 3}], "verdict": {}}}\n', "episode"),
        (f'{{"episode": {json.dumps({**BROKEN, "limits": {"more": 1}})}}}\n', "the record of the episode is broken"),
        (f'{{"episode": {json.dumps({**BROKEN, "limits": {"turns": 0}})}}}\n', "turns=0 is too small"),
        ("{\n", "JSON"),
    ],
)
def test_bad_files_are_told_in_one_line(tmp_path, content, why):
    path = tmp_path / "e.jsonl"
    path.write_text(content)
    with pytest.raises(InputError, match=why) as caught:
        audit_episodes([path])
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_audit_of_rewards_names_this_one(tmp_path, toolbox):
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps(line(toolbox[1][0]) | {"gts": "", "data_source": "toolbox"}) + "\n")
    with pytest.raises(InputError, match=r"line 1: the record is an episode.*egpo audit episodes"):
        audit_rewards(path, workers=0)
    assert audit_rewards(path, reward="stored", workers=0).ours.rows == 1


def test_a_folder_without_episodes(tmp_path):
    with pytest.raises(InputError, match="there are no episodes"):
        audit_episodes([tmp_path])
    with pytest.raises(InputError, match="no such file"):
        audit_episodes([tmp_path / "nothing.jsonl"])
