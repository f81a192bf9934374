"""A supervised run: it learns, it is the same twice, and what interrupts it leaves no trace."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from egpo.config import SftConfig, load_config
from egpo.errors import ConfigError, EgpoError, InputError, RunInterruptedError, forget_warnings
from egpo.local.checkpoints.checkpoint import Checkpoints, SaveError
from egpo.local.sft import session as sessions
from egpo.local.sft import sft_run
from egpo.local.sft.session import open_quietly, sft
from tests.local.device import WORDS
from tests.local.runs import contents

ROWS = [
    {"messages": [{"role": "user", "content": f"say {word}"}, {"role": "assistant", "content": word[::-1]}]}
    for word in ("abc", "xyz", "lmno", "pq", "hello", "world", "left", "right")
]


@pytest.fixture
def settings(model_folder, write_rows, tmp_path):
    """`settings("a", *overrides)`: a config of the run named `a`, eight steps of three examples."""
    path = write_rows(ROWS)

    def config(name, *overrides):
        words = [
            f"name={name}", f"runs={tmp_path}/runs", f"model.path={model_folder()}", *WORDS,
            f"data.path={path}", "update.lr=1e-3", "update.batch_tokens=100", "update.micro_tokens=64",
            "epochs=4", "checkpoints.every=2", "validation.every=3", "data.eval_frac=0.2",
        ]  # fmt: skip
        return load_config(None, [*words, *overrides], SftConfig)

    return config


def metrics(config):
    lines = (Path(config.runs) / config.name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def left_by(config):
    return contents(Path(config.runs) / config.name)


def test_it_learns_what_it_is_told(settings):
    config = settings("a", "epochs=60", "update.lr=5e-3", "update.batch_tokens=1000", "checkpoints.every=0",
                      "validation.every=0", "data.eval_frac=0")  # fmt: skip
    folder = sft(config)
    losses = [line["train/loss"] for line in metrics(config)]
    assert losses[0] > 4
    assert losses[-1] < 0.3
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), open_quietly(config).policy.tokenizer
    prompt = tokenizer.apply_chat_template(ROWS[4]["messages"][:1], add_generation_prompt=True, return_tensors="pt")
    said = model.generate(**prompt, max_new_tokens=8, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(said) == "olleh<|im_end|>"


def test_the_evaluation_loss_comes_first_last_and_every_so_often(settings):
    config = settings("a")
    sft(config)
    lines = metrics(config)
    total = len(lines) - 1
    assert [line["step"] for line in lines] == list(range(total + 1))
    due = {0, total, *range(3, total, 3)}
    assert {line["step"] for line in lines if "val/loss" in line} == due
    assert lines[1]["train/perplexity"] == pytest.approx(torch.tensor(lines[1]["train/loss"]).exp().item(), rel=1e-5)


def test_a_period_of_0_evaluates_never(settings):
    config = settings("a", "validation.every=0", "epochs=1")
    sft(config)
    assert not [line for line in metrics(config) if "val/loss" in line]


def test_rows_held_out_are_not_trained_on(settings):
    data = open_quietly(settings("a", "data.eval_frac=0.3")).data
    train, held_out = set(data.train.row_E.tolist()), set(data.evaluation.row_E.tolist())
    assert not train & held_out
    assert train | held_out == set(range(len(ROWS)))
    assert len(held_out) == 3


def test_an_evaluation_file_is_one_of_its_own(settings, write_rows):
    path = write_rows(ROWS[:2], "eval.jsonl")
    data = open_quietly(settings("a", "data.eval_frac=0", f"data.eval_path={path}")).data
    assert (len(data.train), len(data.evaluation)) == (len(ROWS), 2)


def test_the_same_seed_is_the_same_run_and_another_is_not(settings):
    sft(settings("a"))
    sft(settings("b"))
    sft(settings("c", "seed=1"))
    assert metrics(settings("a")) == metrics(settings("b"))
    assert metrics(settings("a")) != metrics(settings("c"))


def test_the_learning_rate_is_the_schedule_s_at_each_step(settings):
    config = settings("a", "update.schedule=linear")
    sft(config)
    rates = [line["actor/lr"] for line in metrics(config) if "actor/lr" in line]
    assert rates == pytest.approx([1e-3 * (1 - step / len(rates)) for step in range(len(rates))])
    assert len(rates) > 2


@pytest.mark.parametrize("stop_after", [0, 1, 4, 5])
def test_a_run_that_was_cut_off_ends_in_the_same_bits(settings, monkeypatch, stop_after):
    whole, cut = settings("whole", "update.schedule=cosine"), settings("cut", "update.schedule=cosine")
    sft(whole)
    real = sessions.sft_step

    def dying(run, number):
        if number == stop_after:
            raise RuntimeError("the machine went away")
        return real(run, number)

    monkeypatch.setattr(sessions, "sft_step", dying)
    with pytest.raises(RuntimeError, match="went away"):
        sft(cut)
    monkeypatch.undo()
    sft(cut, resume=True)
    assert left_by(cut) == left_by(whole)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 138)])
def test_a_signal_ends_the_run_after_the_step_and_resume_goes_on(settings, monkeypatch, signum, code):
    whole, stopped = settings("whole"), settings("stopped")
    sft(whole)
    real, calls = sft_run.accumulate, iter(range(100))

    def interrupted(*arguments):
        if next(calls) == 2:
            os.kill(os.getpid(), signum)
        return real(*arguments)

    monkeypatch.setattr(sft_run, "accumulate", interrupted)
    with pytest.raises(
        RunInterruptedError, match=r"after step 3, which is saved; continue with: egpo sft .*--resume"
    ) as end:
        sft(stopped)
    assert end.value.exit_code == code
    monkeypatch.undo()
    sft(stopped, resume=True)
    assert metrics(stopped) == metrics(whole)


def test_a_finished_run_that_is_resumed_has_nothing_left_to_do(settings):
    config = settings("a")
    folder = sft(config)
    before = left_by(config)
    assert sft(config, resume=True) == folder
    assert left_by(config) == before


def test_resume_from_goes_back_and_takes_the_same_steps_again(settings):
    config = settings("a", "checkpoints.keep_last=9")
    sft(config)
    before = left_by(config)
    sft(config, resume_from=2)
    assert left_by(config) == before
    with pytest.raises(InputError, match="no checkpoint of step 3"):
        sft(config, resume_from=3)


def test_another_config_or_other_data_is_no_resumption(settings, write_rows):
    sft(settings("a"))
    with pytest.raises(ConfigError, match=r"update.lr: 0.001 -> 0.002"):
        sft(settings("a", "update.lr=2e-3"), resume=True)
    write_rows(ROWS[:-1])
    with pytest.raises(InputError, match="the data has changed since the run started"):
        sft(settings("a"), resume=True)


def test_the_best_checkpoint_is_that_of_the_lowest_evaluation_loss(settings):
    config = settings("a", "update.lr=0.3", "validation.every=1", "checkpoints.every=1", "checkpoints.keep_last=1")
    sft(config)
    losses = {line["step"]: line["val/loss"] for line in metrics(config) if line["step"]}
    best = min(losses, key=losses.get)
    kept = {path.name for path in (Path(config.runs) / "a/checkpoints").glob("global_step_*")}
    assert kept == {f"global_step_{best}", f"global_step_{max(losses)}"}


@pytest.mark.filterwarnings("always::egpo.errors.EgpoWarning")
def test_a_save_that_fails_costs_a_warning_and_the_last_one_the_run(settings, monkeypatch, capsys):
    real = Checkpoints.save

    def full_disk(self, snapshot, export):
        if snapshot.step in full_at:
            raise SaveError("no space left", where="disk", fix="make room")
        real(self, snapshot, export)

    monkeypatch.setattr(Checkpoints, "save", full_disk)
    forget_warnings()
    full_at = {4}
    sft(settings("a"))
    assert (
        "warning: no space left; training continues, and the latest checkpoint is from step 2"
        in capsys.readouterr().out
    )
    assert "no space left" in (Path(settings("a").runs) / "a/health.jsonl").read_text()
    full_at = {8}
    with pytest.raises(SaveError):
        sft(settings("b"))


@pytest.fixture
def failing_saves(monkeypatch):
    """`failing_saves(4, errors)`: the save of step 4 raises one error after the other, then it works."""
    real = Checkpoints.save

    def fail(step, errors):
        left = list(errors)

        def save(self, snapshot, export):
            if snapshot.step == step and left:
                raise left.pop(0)
            real(self, snapshot, export)

        monkeypatch.setattr(Checkpoints, "save", save)
        forget_warnings()

    return fail


def full_disk():
    return SaveError("no space left", where="disk", fix="make room")


def test_a_run_that_its_callback_stops_does_not_end_unsaved_in_silence(settings, failing_saves):
    failing_saves(4, [full_disk(), full_disk()])
    with pytest.raises(SaveError, match="no space left"):
        sft(settings("a"), on_step=lambda report: report.step == 4)


@pytest.mark.filterwarnings("always::egpo.errors.EgpoWarning")
def test_an_error_of_the_run_is_shown_even_if_its_state_cannot_be_saved(settings, failing_saves, capsys):
    def broken(report):
        assert report.step < 3

    failing_saves(3, [full_disk()])
    with pytest.raises(EgpoError, match="AssertionError") as caught:
        sft(settings("a"), on_step=broken)
    assert "saved" not in str(caught.value)
    said = capsys.readouterr().out
    assert "warning: no space left; the latest checkpoint is from step 2" in said
    assert "training continues" not in said


@pytest.mark.filterwarnings("always::egpo.errors.EgpoWarning")
def test_a_run_that_ends_does_not_say_that_it_continues(settings, failing_saves, capsys):
    """It learns at its end that the checkpoint in the background was not written."""

    def broken(report):
        assert report.step < 4

    failing_saves(4, [full_disk(), full_disk()])
    with pytest.raises(EgpoError, match="AssertionError"):
        sft(settings("a"), on_step=broken)
    said = capsys.readouterr().out
    assert "warning: no space left; the latest checkpoint is from step 2" in said
    assert "training continues" not in said


def test_a_bug_in_the_checkpoint_before_does_not_cost_the_newest_state(settings, failing_saves):
    """The run is about to end when it learns of the error in the background."""
    failing_saves(4, [ZeroDivisionError("a bug")])
    with pytest.raises(ZeroDivisionError):
        sft(settings("a"), on_step=lambda report: report.step == 4)
    assert (Path(settings("a").runs) / "a/checkpoints/global_step_4/actor/manifest.json").is_file()


def test_a_recipe_that_fails_leaves_no_folder(settings):
    config = settings("a", "data.max_tokens=3")
    with pytest.raises(InputError, match="no row of the file can be learned"):
        sft(config)
    assert not Path(config.runs).exists()


def test_random_weights_come_from_the_seed(settings):
    def weight(*overrides):
        return open_quietly(settings("a", "model.init=random", *overrides)).policy.head_VD

    assert torch.equal(weight(), weight())
    assert not torch.equal(weight(), weight("seed=1"))
