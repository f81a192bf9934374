"""The problems that verl reads are those of the local engine, and its reward is the task's own."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from egpo.assets import resolve_model
from egpo.data.readers import read_records
from egpo.data.rows import read_rows
from egpo.errors import InputError
from egpo.runs.folder import RunFolder
from egpo.tasks import load_task
from egpo.tasks.episodes import environment_row
from egpo.verl.episode_player import EpisodeSpec
from egpo.verl.launch import task_reward
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.problems import measured_problems, write_problems
from egpo.verl.launch.translation import data_settings
from egpo.verl.reward import compute_score
from tests.verl.launch.recipes import small

OUTSIDE = '''
from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem

class Echo:
    """Say the word."""
    def __init__(self, words=("one", "two", "three", "four")):
        self.words = words
    def problems(self, split):
        made = [Problem(word, ({"role": "user", "content": word},), word, extra={word: 1}) for word in self.words]
        return made if split == "train" else made[:2]
    def prompt(self, problem):
        return [dict(message) for message in problem.messages]
    def judge(self, problem, text):
        return Verdict(float(text == problem.key), text == problem.key, "said" if text == problem.key else "other")
    def gold(self, problem):
        return problem.key
'''


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(resolve_model("egpo-tiny"))


def written(config, tmp_path, tokenizer):
    task = load_task(config.task.name, **config.task.settings)
    places = VerlPlaces(RunFolder(tmp_path))
    measured = measured_problems(config, places, task, tokenizer)
    write_problems(measured, places.data)
    return task, measured.files


def test_the_files_hold_the_tasks_own_problems_in_its_own_order(tmp_path, tokenizer):
    config = small("validation.problems=3", 'task.settings.prompt_format="Make {target} from {numbers}."')
    task, files = written(config, tmp_path, tokenizer)
    train, test = list(read_rows(files.train)), list(read_rows(files.test))
    assert [row.prompt for row in train] == [tuple(task.prompt(problem)) for problem in task.problems("train")]
    assert [row.ground_truth for row in test] == [problem.ground_truth for problem in task.problems("test")[:3]]


def test_the_same_recipe_gives_the_same_bytes(tmp_path, tokenizer):
    digests = [written(small(), tmp_path / name, tokenizer)[1].digests for name in ("a", "b")]
    assert digests[0] == digests[1]
    assert digests[0] != written(small("task.settings.seed=1"), tmp_path / "c", tokenizer)[1].digests


def test_no_prompt_is_longer_than_verl_is_told(tmp_path, tokenizer):
    task, files = written(small(), tmp_path, tokenizer)
    lengths = [
        len(tokenizer.apply_chat_template(task.prompt(problem), add_generation_prompt=True, return_dict=False))
        for split in ("train", "test")
        for problem in task.problems(split)
    ]
    assert files.longest_prompt == max(lengths)
    _, limited = written(small(f"rollout.max_prompt_tokens={max(lengths) + 5}"), tmp_path, tokenizer)
    assert limited.longest_prompt == max(lengths) + 5


def test_a_limit_that_leaves_too_few_prompts_for_a_step(tmp_path, tokenizer):
    """verl divides by its steps per epoch, which would be 0."""
    with pytest.raises(
        InputError, match=r"0 of 32 train prompts have 3 tokens or fewer, and 4 are needed; raise the limit"
    ):
        written(small("rollout.max_prompt_tokens=3"), tmp_path, tokenizer)


@pytest.mark.parametrize("mode", ["binary", "shaped"])
def test_the_reward_in_verl_is_the_one_here(tmp_path, tokenizer, mode):
    """Through the row as verl hands it over: the same score for right, wrong and broken answers."""
    task, files = written(small(f"task.settings.mode={mode}"), tmp_path, tokenizer)
    for problem, row in zip(task.problems("train"), read_rows(files.train), strict=True):
        for text in (task.gold(problem), "<answer>1 + 1</answer>", "nothing", "<think>x</think> <answer>"):
            there = compute_score(row.data_source, text, row.ground_truth, dict(row.extra), mode=files.mode)
            here = task.judge(problem, text)
            assert (there["score"], there["acc"], there["reason"]) == (here.reward, here.correct, here.reason)


def test_a_task_from_outside_judges_itself(tmp_path, tokenizer, monkeypatch):
    (tmp_path / "echo_task.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    config = small("task.name=echo_task:Echo", "task.settings={}")
    _, files = written(config, tmp_path / "run", tokenizer)
    assert (files.data_source, files.mode) == (None, None)
    rows = list(read_rows(files.train))
    assert [row.data_source for row in rows] == ["echo_task:Echo"] * 4
    place = {"split": "train", "index": 2}
    right = task_reward.compute_score("", "three", "", place, task="echo_task:Echo", settings="{}")
    wrong = task_reward.compute_score("", "two", "", place, task="echo_task:Echo", settings="{}")
    assert (right["score"], right["acc"], right["reason"]) == (1.0, 1.0, "said")
    assert (wrong["score"], wrong["acc"], wrong["reason"]) == (0.0, 0.0, "other")


def test_rows_of_episodes_have_their_environment_and_their_agent_loop(tmp_path, tokenizer):
    """What the agent loop gets is what the embedded engine gives the environment."""
    words = ("task.name=toolbox", "task.settings={train: 8, test: 4}", "rollout.episodes.history=keep")
    task, files = written(small(*words), tmp_path, tokenizer)
    assert files.episodes
    records = [record.value for record in read_records(files.train)]
    assert {record["agent_name"] for record in records} == {"egpo"}
    specs = [EpisodeSpec.from_row(record["extra_info"]) for record in records]
    assert [(spec.environment, spec.row) for spec in specs] == [
        ("toolbox", environment_row(problem)) for problem in task.problems("train")
    ]
    settings = {one.key: one.value for one in data_settings(small(*words), files)}
    assert settings["algorithm.egpo.episodes.max_turns"] == 8
    assert not [key for key in settings if key.startswith("reward.")], "the environment judges"


def test_the_prompt_of_an_episode_has_its_tools(tmp_path, tokenizer):
    """The chat template lists them: its prompts are longer than the messages alone, and those too long are left out."""
    words = ("task.name=toolbox", "task.settings={train: 12, test: 4}", "rollout.episodes.history=keep")
    task, files = written(small(*words), tmp_path, tokenizer)
    alone = [
        len(tokenizer.apply_chat_template(task.prompt(problem), add_generation_prompt=True, return_dict=False))
        for split in ("train", "test")
        for problem in task.problems(split)
    ]
    assert files.longest_prompt > max(alone) + 100
    limit = files.longest_prompt - 1
    _, limited = written(small(*words, f"rollout.max_prompt_tokens={limit}"), tmp_path / "limited", tokenizer)
    kept = [len(list(read_rows(file))) for file in (limited.train, limited.test)]
    assert sum(kept) < 16
    settings = {one.key: one.value for one in data_settings(small(f"rollout.max_prompt_tokens={limit}"), limited)}
    assert settings["data.filter_overlong_prompts"] is False


def test_a_template_that_knows_no_tools_is_refused_before_anything_starts(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("egpo-tiny"))
    refusal = "{%- if message.role == 'tool' %}{{ raise_exception('no such role') }}{%- endif %}"
    tokenizer.chat_template = (
        "{%- for message in messages %}" + refusal + "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
        "{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n{%- endif %}"
    )
    recipe = small("task.name=toolbox", "task.settings={train: 8, test: 4}", "rollout.episodes.history=keep")
    with pytest.raises(InputError, match="the chat template refuses a conversation with tool: no such role"):
        written(recipe, tmp_path, tokenizer)


def test_too_few_problems_for_a_step(tmp_path, tokenizer):
    with pytest.raises(InputError, match="32 problems are fewer than one step needs"):
        written(small("rollout.prompts=64"), tmp_path, tokenizer)


def test_nothing_is_written_to_validate_on_where_nothing_is_validated(tmp_path, tokenizer):
    _, files = written(small("validation.every=0"), tmp_path, tokenizer)
    assert files.test is None
    assert [path.name for path in Path(files.train).parent.iterdir()] == ["train.parquet"]
