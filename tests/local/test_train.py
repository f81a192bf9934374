"""Whole runs: what they leave, how they go on, how they end, and what they say to bad input."""

import json
import re
import resource
import signal
import time

import pytest
from transformers import AutoModelForCausalLM

from egpo.config import load_config
from egpo.errors import EgpoError, InputError
from egpo.local.train import train
from egpo.runs.dump import read_dump
from egpo.runs.health import read_notes
from egpo.runs.metrics import read_metrics
from egpo.runs.trackers import OPENERS, Tracker
from tests.local.conftest import build_model, build_tokenizer
from tests.local.runs import Finished, contents, differing, run, start, write_recipe

# A model that writes random bytes has no thinking to find, and says so.
pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")


@pytest.fixture
def recipe(model_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_recipe(tmp_path / "recipe.yaml", model_folder())


def trained(recipe, *overrides, **options):
    return train(load_config(recipe, overrides), **options)


def test_a_run_leaves_what_the_layout_says(recipe, tmp_path):
    model = trained(recipe)
    folder = tmp_path / "runs" / "tiny"
    assert model.resolve() == folder / "checkpoints/global_step_8/actor/huggingface"
    assert AutoModelForCausalLM.from_pretrained(model).num_parameters() > 0
    lines = read_metrics(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(9))
    validated = [line["step"] for line in lines if any(name.startswith("val-core/") for name in line)]
    assert validated == [0, 3, 6, 8]
    assert not [name for line in lines for name in line if "timing" in name or "throughput" in name]
    assert [line["step"] for line in read_metrics(folder / "timings.jsonl")] == list(range(9))
    dumped = {int(path.stem.removeprefix("step_")) for path in (folder / "rollouts").iterdir()}
    assert dumped == {1, 2, 4, 6, 8}
    provenance = json.loads((folder / "provenance.json").read_text())
    assert provenance["seed"] == 0
    assert set(provenance["data"]) == {"train", "test"}
    assert load_config(folder / "config.yaml") == load_config(recipe)


def test_trackers_get_a_table_of_samples_with_every_dump(recipe, tmp_path, monkeypatch):
    tables = []
    keeping = Tracker("wandb", lambda *_: None, lambda: None, lambda step, table: tables.append((step, table)))
    monkeypatch.setitem(OPENERS, "wandb", lambda _: keeping)
    trained(recipe, "steps=3", "watch.trackers=[wandb]", "watch.samples=4")
    assert [(step, len(table.rows)) for step, table in tables] == [(1, 4), (2, 4), (3, 4)]
    step, table = tables[-1]
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    dumped = {(one.problem, one.sample): one for one in read_dump(tmp_path / f"runs/tiny/rollouts/step_{step}.jsonl")}
    for row in rows:
        same = dumped[row["problem"], row["sample"]]
        assert (row["response"], row["reward"], row["advantage"]) == (same.output, same.score, same.advantage)


def test_samples_without_a_tracker_that_shows_them_are_refused(recipe):
    with pytest.raises(InputError, match=r"`samples` is set, but no tracker takes a table; add one of wandb"):
        load_config(recipe, ["watch.samples=4", "watch.trackers=[tensorboard]"])


def test_a_dump_shows_what_was_sampled(recipe, tmp_path):
    trained(recipe, "steps=1")
    records = read_dump(tmp_path / "runs/tiny/rollouts/step_1.jsonl")
    assert len(records) == 6
    for record in records:
        assert "".join(record.tokens) == record.output
        assert len(record.tokens) == len(record.token_entropy) == 6
        assert record.input.startswith("<|im_start|>user\nwrite ")
        assert {span.name for span in record.token_segment} <= {"thinking", "answer"}
    assert sorted(record.sample for record in records) == [0, 0, 1, 1, 2, 2]


def test_other_seeds_give_other_runs(recipe, tmp_path):
    trained(recipe, "steps=2")
    trained(recipe, "steps=2", "name=other", "seed=1")
    one, other = (read_metrics(tmp_path / "runs" / name / "metrics.jsonl") for name in ("tiny", "other"))
    assert one != other


def test_resumed_from_any_checkpoint_it_ends_in_the_same_bits(recipe, tmp_path):
    """In one process: all state is in the checkpoint, none in the process."""
    keep = ("checkpoints.keep_last=8", "checkpoints.every=1")
    trained(recipe, *keep)
    whole = contents(tmp_path / "runs/tiny")
    for step in (1, 4, 7):
        trained(recipe, *keep, resume_from=step)
        assert contents(tmp_path / "runs/tiny") == whole


@pytest.mark.parametrize(
    "overrides",
    [
        ("model.lora={rank: 2}", "algorithm.estimator=grpo"),
        ("model.dtype=bfloat16",),
        ("update.kl=0.1",),
        ("update.kl=0.1", "update.kl_in=reward", "algorithm.constant_groups=replace"),
    ],
    ids=["lora", "bfloat16", "kl", "refills"],
)
def test_every_kind_of_state_is_restored(recipe, tmp_path, overrides):
    if "lora" in overrides[0]:
        pytest.importorskip("peft")
    overrides = (*overrides, "steps=4", "checkpoints.keep_last=4")
    trained(recipe, *overrides)
    whole = contents(tmp_path / "runs/tiny")
    trained(recipe, *overrides, resume_from=2)
    assert contents(tmp_path / "runs/tiny") == whole


def test_steps_may_be_added_while_the_schedule_is_constant(recipe, tmp_path):
    constant = "update.schedule=constant"
    trained(recipe, constant, "steps=2")
    trained(recipe, constant, "steps=4", resume=True)
    assert read_metrics(tmp_path / "runs/tiny/metrics.jsonl")[-1]["step"] == 4
    trained(recipe, "name=linear", "steps=2")
    with pytest.raises(InputError, match=r"steps: 2 -> 4"):
        trained(recipe, "name=linear", "steps=4", resume=True)


def test_a_run_that_is_done_says_so(recipe, tmp_path, capsys):
    trained(recipe, "steps=1")
    before = contents(tmp_path / "runs/tiny")
    trained(recipe, "steps=1", resume=True)
    assert "all 1 steps were done before, and nothing is left to do: " in capsys.readouterr().out
    assert contents(tmp_path / "runs/tiny") == before


def test_a_failure_in_the_middle_of_a_step_keeps_the_steps_before_it(recipe, tmp_path):
    task = "task.name=tests.local.run_tasks:Breaks"
    with pytest.raises(
        InputError, match=r"the task's `prompt` raised ZeroDivisionError: .* \(run_tasks\.py, line \d+\)"
    ):
        trained(recipe, task, "checkpoints.every=0", "validation.every=0")
    steps = [path.name for path in (tmp_path / "runs/tiny/checkpoints").glob("global_step_*")]
    assert len(steps) == 1
    assert steps != ["global_step_8"]


LONG = ("steps=40", "checkpoints.every=0", "checkpoints.keep_best=0", "checkpoints.keep_last=1")


@pytest.fixture(scope="module")
def uninterrupted(model_folder, tmp_path_factory):
    """What a long run leaves that nobody stops."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    done = run(write_recipe(folder / "recipe.yaml", model_folder()), *LONG, cwd=folder)
    assert done.code == 0, done.err
    return contents(folder / "runs/tiny")


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_a_run_in_good_order(recipe, tmp_path, uninterrupted, signum, code):
    process = start(recipe, *LONG, cwd=tmp_path)
    metrics = tmp_path / "runs/tiny/metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") > 4):
        time.sleep(0.005)
    process.send_signal(signum)
    ended = Finished(process)
    assert ended.code == code, (ended.err, ended.out)
    said = re.search(r"stopped after step (\d+), which is saved; continue with: egpo train (\S+) --resume\n", ended.err)
    assert said, ended.err
    assert (tmp_path / "runs/tiny/checkpoints/latest_checkpointed_iteration.txt").read_text() == said[1]
    assert read_metrics(metrics)[-1]["step"] == int(said[1])
    assert "Traceback" not in ended.err
    resumed = run(said[2], "--resume", cwd=tmp_path)
    assert resumed.code == 0, resumed.err
    assert differing(contents(tmp_path / "runs/tiny"), uninterrupted) == []


def limited_file_size():
    """Metrics fit, weights do not: what a full disk does to a save."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))


def test_a_full_disk_during_a_save_does_not_end_the_run(recipe, tmp_path):
    first = run(recipe, "steps=2", "update.schedule=constant", cwd=tmp_path)
    assert first.code == 0, first.err
    folder = tmp_path / "runs/tiny"
    before = contents(folder / "checkpoints")
    words = (recipe, "steps=5", "update.schedule=constant", "--resume")
    limited = run(*words, cwd=tmp_path, preexec_fn=limited_file_size)
    assert limited.code == 1
    assert "the checkpoint of step 5 could not be written (" in limited.err
    assert "File too large" in limited.err
    assert "warning: the checkpoint of step 4 could not be written" in limited.out
    assert "training continues, and the latest checkpoint is from step 2" in limited.out
    assert contents(folder / "checkpoints") == before
    assert "save_4" in {note.rule for note in read_notes(folder / "health.jsonl")}
    again = run(*words, cwd=tmp_path)
    assert again.code == 0, again.err


def test_a_disk_without_room_is_found_before_training(recipe, monkeypatch, tmp_path):
    monkeypatch.setattr("egpo.local.training.preflight.room_for", lambda root, need: 0)
    with pytest.raises(InputError, match="the disk has room for 0; free some space"):
        trained(recipe)
    assert not (tmp_path / "runs").exists()


# Bad input


def test_a_recipe_that_fails_leaves_no_folder(recipe, tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        trained(recipe, "model.path=./nowhere")
    assert not (tmp_path / "runs").exists()


def test_a_model_directory_that_is_not_one(recipe, tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "todo.txt").write_text("x")
    with pytest.raises(InputError, match=r"it has no config.json \(it holds todo.txt\)"):
        trained(recipe, f"model.path={tmp_path / 'notes'}")


@pytest.mark.parametrize("part", ["model.safetensors", "tokenizer.json"])
def test_a_model_directory_that_is_half_there(recipe, tmp_path, part):
    build_model("qwen3").save_pretrained(tmp_path / "half")
    build_tokenizer().save_pretrained(tmp_path / "half")
    (tmp_path / "half" / part).unlink()
    with pytest.raises(InputError, match="the folder is complete"):
        trained(recipe, f"model.path={tmp_path / 'half'}")


def test_weights_that_were_cut_off(recipe, tmp_path):
    build_model("qwen3").save_pretrained(tmp_path / "cut")
    build_tokenizer().save_pretrained(tmp_path / "cut")
    (tmp_path / "cut/model.safetensors").write_bytes(b"\0" * 100)
    with pytest.raises(InputError, match="the folder is complete"):
        trained(recipe, f"model.path={tmp_path / 'cut'}")


def test_a_tokenizer_without_a_chat_template(recipe, tmp_path):
    build_model("qwen3").save_pretrained(tmp_path / "plain")
    tokenizer = build_tokenizer()
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path / "plain")
    with pytest.raises(InputError, match="no chat template"):
        trained(recipe, f"model.path={tmp_path / 'plain'}")


def test_a_tokenizer_without_a_pad_token_trains(recipe, tmp_path):
    """Nothing is padded that a model sees."""
    build_model("qwen3").save_pretrained(tmp_path / "unpadded")
    tokenizer = build_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "unpadded")
    trained(recipe, f"model.path={tmp_path / 'unpadded'}", "steps=1")


def test_a_prompt_longer_than_the_context_is_found_before_training(recipe, tmp_path):
    with pytest.raises(InputError, match=r"do not fit the model's context of 256.*max_prompt_tokens=6"):
        trained(recipe, "rollout.max_response_tokens=250")
    assert not (tmp_path / "runs").exists()


def test_a_task_without_problems(recipe):
    with pytest.raises(InputError, match="no problems in the split `train`"):
        trained(recipe, "task.name=tests.local.run_tasks:Empty")
    with pytest.raises(InputError, match=r"no problems in the split `test`.*validation.every=0"):
        trained(recipe, "task.name=tests.local.run_tasks:Untested")
    trained(recipe, "task.name=tests.local.run_tasks:Untested", "validation.every=0", "steps=1")


def test_a_run_folder_of_another_config(recipe):
    trained(recipe, "steps=1")
    with pytest.raises(InputError, match="already contains a run; continue that run with --resume"):
        trained(recipe, "steps=1")
    with pytest.raises(InputError, match=r"update.lr: 0.001 -> 0.002"):
        trained(recipe, "steps=1", "update.lr=0.002", resume=True)


def test_a_corrupt_checkpoint_is_named_and_the_one_before_it_offered(recipe, tmp_path):
    trained(recipe, "steps=4", "update.schedule=constant")
    weights = tmp_path / "runs/tiny/checkpoints/global_step_4/actor/huggingface/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    before = contents(tmp_path / "runs/tiny")
    offer = "continue from an earlier checkpoint: egpo train runs/tiny/config.yaml --resume-from 2"
    with pytest.raises(InputError, match=f"model.safetensors: the file has .* bytes, but .* were written; {offer}"):
        trained(recipe, "steps=4", "update.schedule=constant", resume=True)
    assert contents(tmp_path / "runs/tiny") == before
    trained("runs/tiny/config.yaml", resume_from=2)
    with pytest.raises(InputError, match="no checkpoint of step 3; steps with a checkpoint: 2, 4"):
        trained("runs/tiny/config.yaml", resume_from=3)


def test_metrics_with_a_hole_are_not_gone_on_from(recipe, tmp_path):
    trained(recipe, "steps=2")
    metrics = tmp_path / "runs/tiny/metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text(lines[0] + lines[2])
    with pytest.raises(EgpoError, match="no line for step 1"):
        trained(recipe, "steps=2", resume=True)


@pytest.mark.parametrize(
    ("file", "line"), [("metrics.jsonl", "garbage\n"), ("timings.jsonl", "[]\n"), ("health.jsonl", "1\n")]
)
def test_records_that_cannot_be_gone_on_from_cost_no_checkpoint(recipe, tmp_path, file, line):
    every = ("steps=2", "checkpoints.every=1", "checkpoints.keep_last=2")
    trained(recipe, *every)
    folder = tmp_path / "runs/tiny"
    (folder / file).write_text(line)
    with pytest.raises(InputError, match=re.escape(f"{file}, line 1")):
        trained(recipe, *every, resume_from=1)
    assert [(folder / f"checkpoints/global_step_{step}").is_dir() for step in (1, 2)] == [True, True]


def test_there_is_no_run_to_resume(recipe):
    with pytest.raises(InputError, match="there is no run to resume"):
        trained(recipe, resume=True)
