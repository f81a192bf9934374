"""`egpo convert` as a user meets it."""

import json
import random

import pytest
from typer.testing import CliRunner

from egpo.cli.convert import VERBS, convert_app
from egpo.errors import InputError
from egpo.tasks.function_calling import draw_conversation
from tests.data.qwen3 import tokenizer


def run(*words):
    return CliRunner().invoke(convert_app, [str(word) for word in words], env={"COLUMNS": "120"})


@pytest.fixture
def raw(tmp_path):
    rng = random.Random(0)
    path = tmp_path / "raw.jsonl"
    path.write_text("".join(json.dumps(draw_conversation(rng)) + "\n" for _ in range(300)))
    return path


@pytest.mark.parametrize("verb", [*VERBS, "parquet"])
def test_every_verb_shows_an_example(verb):
    assert f"egpo convert {verb}" in run(verb, "--help").output


def test_generated_conversations_convert_there_and_back_and_there(tmp_path, raw):
    done = run("hardgen", raw, "--out", tmp_path / "out", "--test-size", 0.1, "--json")
    told = json.loads(done.stdout)
    assert told["read"] == 300 == sum(told["rows"].values()) + sum(told["dropped"].values())
    assert set(told["dropped"]) == {"no_call"}
    assert run("parquet", tmp_path / "out", "--out", tmp_path / "sft").exit_code == 0
    again = json.loads(run("messages", tmp_path / "sft" / "train.jsonl", "--out", tmp_path / "again", "--json").stdout)
    assert again["dropped"] == {}
    assert sum(again["rows"].values()) == told["rows"]["train"]


def test_the_tables_say_what_was_dropped(tmp_path, raw):
    done = run("hardgen", raw, "--out", tmp_path / "out", "--max-samples", 100, "--no-shuffle")
    assert "no assistant turn of the conversation calls a tool" in done.output
    assert "95" in done.output


def test_a_tokenizer_gives_statistics_and_its_own_text(tmp_path, raw):
    tokenizer().save_pretrained(tmp_path / "tokenizer")
    done = run("hardgen", raw, "--out", tmp_path / "a", "--tokenizer", tmp_path / "tokenizer", "--json")
    told = json.loads(done.stdout)
    assert told["tokens"]["train"]["prompt"]["max"] > told["tokens"]["train"]["answer"]["max"] > 10
    assert (
        "tokens per row, test"
        in run("hardgen", raw, "--out", tmp_path / "b", "--tokenizer", tmp_path / "tokenizer").output
    )
    assert run("hardgen", raw, "--out", tmp_path / "c").exit_code == 0
    assert (tmp_path / "a" / "train.parquet").read_bytes() == (tmp_path / "c" / "train.parquet").read_bytes()


def test_a_tokenizer_that_is_none(tmp_path, raw):
    done = run("hardgen", raw, "--out", tmp_path / "out", "--tokenizer", tmp_path)
    assert isinstance(done.exception, InputError)
    assert "the tokenizer cannot be loaded" in str(done.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", sorted(VERBS))
def test_a_missing_file(tmp_path, kind):
    done = run(kind, tmp_path / "absent.jsonl", "--out", tmp_path / "out")
    assert isinstance(done.exception, InputError)
    assert "no such file" in str(done.exception)
    assert not (tmp_path / "out").exists()


def test_the_wrong_verb_names_the_right_one(tmp_path, raw):
    done = run("messages", raw, "--out", tmp_path / "out")
    assert "egpo convert hardgen" in str(done.exception)


@pytest.mark.parametrize(("option", "value"), [("--seed", -1), ("--test-size", 1.5), ("--max-samples", 0)])
def test_a_split_that_cannot_be_is_told_before_the_file_is_read(tmp_path, option, value):
    done = run("xlam", tmp_path / "absent.json", "--out", tmp_path / "out", option, value)
    assert isinstance(done.exception, InputError)
    assert done.exception.exit_code == 2
    assert option in str(done.exception)
