"""No verb is silent for long: each prints a line after some seconds without output, and none while it prints."""

import sys
import threading

import pytest
from typer.main import get_command

import egpo.cli.main as cli_main
from egpo.cli import silence
from egpo.cli.main import app
from egpo.cli.progress import heartbeat
from egpo.cli.silence import now_doing, ready, watched_verb
from egpo.heartbeat import PERIOD_S
from tests.waiting import becomes_true


def verbs(command, words=()):
    """The words of every verb that can be called."""
    inner = getattr(command, "commands", {})
    for name, one in inner.items():
        yield from verbs(one, (*words, name))
    if not inner:
        yield list(words)


def said(capfd, lines):
    """Keep what was written since, because reading it empties the capture."""
    lines.append(capfd.readouterr().err)
    return "".join(lines)


def test_the_console_script_is_never_silent(monkeypatch, capfd):
    """Whatever a verb does, it is reported until it goes on; the thread ends with the verb."""
    lines = []

    def slow():
        assert becomes_true(lambda: said(capfd, lines).count("egpo report: still working, ") >= 2)

    monkeypatch.setattr(silence, "SILENCE_S", 0.01)
    monkeypatch.setattr(sys, "argv", ["egpo", "report", "runs/a"])
    monkeypatch.setattr(cli_main, "app", slow)
    cli_main.main()
    assert not [thread for thread in threading.enumerate() if thread.name == "egpo heartbeat"]


def test_the_limit_of_silence_is_20_seconds():
    """A heartbeat looks at the clock once a second. That of bars comes first, so that there are no two lines."""
    assert PERIOD_S + 1 < silence.SILENCE_S
    assert silence.SILENCE_S + 1 < 20


def test_a_verb_says_what_it_is_doing(capfd):
    lines = []
    with watched_verb(["push", "runs/a"], silence_s=0.01):
        now_doing("uploading 3 files")
        assert becomes_true(lambda: "egpo push: uploading 3 files, " in said(capfd, lines))


def test_output_postpones_the_line(capfd):
    """Each word that is written, on either stream, counts as output."""
    with watched_verb(["train"], silence_s=600):
        beat = silence._beats[0]
        for stream in (sys.stdout, sys.stderr):
            beat._last = 0.0
            print("step 1", file=stream)
            assert beat._last > 0
    assert capfd.readouterr() == ("step 1\n", "step 1\n")
    assert "write" not in vars(sys.stdout)
    assert "write" not in vars(sys.stderr)


def test_a_server_that_has_started_is_silent(capfd):
    with watched_verb(["serve"], silence_s=0.01):
        beat = silence._beats[0]
        ready()
        assert not beat._thread.is_alive()


def test_outside_of_a_verb_nothing_happens(capfd):
    now_doing("x")
    ready()
    assert capfd.readouterr() == ("", "")


def test_a_verb_works_without_threads(monkeypatch):
    def fail(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with watched_verb(["recipes"]):
        assert not silence._beats


def test_an_error_ends_the_lines():
    with pytest.raises(ZeroDivisionError), watched_verb(["report"]):
        raise ZeroDivisionError
    assert not silence._beats


@pytest.mark.parametrize("label", ["loading", "reading rows"])
def test_a_bar_in_a_log_file_has_its_own_lines(label, capfd):
    """They are printed by the stream that the verb watches: the verb adds none."""
    with watched_verb(["eval"], silence_s=600), heartbeat(label) as beat:
        outer = silence._beats[0]
        outer._last = 0.0
        beat._say("line")
        assert outer._last > 0
    assert capfd.readouterr().err == "line\n"


class ContinuedError(Exception):
    """The slow part of a verb went on after its line was printed."""


SLOW_PARTS = {
    "audit episodes": ("f", "egpo.audits.audit_episodes", "playing the episodes of f again"),
    "audit rewards": ("f", "egpo.audits.audit_rewards", "judging the rows of f"),
    "audit sandbox": ("", "egpo.rewards.sandbox.audit.audit", "still working"),
    "board": ("f", "egpo.boards.board_file.load_board", "reading f"),
    "compare": ("a b", "egpo.comparisons.comparison.compare_runs", "comparing"),
    "convert hardgen": ("f --out m", "egpo.data.convert", "converting f"),
    "convert messages": ("f --out m", "egpo.data.convert", "converting f"),
    "convert parquet": ("f --out m", "egpo.data.export_messages", "converting f"),
    "convert xlam": ("f --out m", "egpo.data.convert", "converting f"),
    "demo": ("--fast --out m", "egpo.demos.demo.run_demo", "still working"),
    "doctor": ("", "egpo.machine_checks.run_checks", "still working"),
    "eval bfcl": ("m", "egpo.evals.bfcl.targets.find_targets", "still working"),
    "eval models": ("m --task countdown", "egpo.evals.targets.local_targets", "still working"),
    "merge": ("a --out m", "egpo.merges.places.find_checkpoint", "reading a"),
    "plan": ("countdown_tiny", "egpo.plans.step_plan.plan_recipe", "reading the model's settings"),
    "prepare bfcl": ("--out m", "egpo.tasks.preparation.prepare", "preparing the data of bfcl"),
    "prepare code": ("--out m", "egpo.tasks.preparation.prepare", "preparing the data of code"),
    "prepare countdown": ("--out m", "egpo.tasks.preparation.prepare", "preparing the data of countdown"),
    "prepare function-calling": ("--out m", "egpo.tasks.preparation.prepare", "preparing the data of function-calling"),
    "prepare gsm8k": ("--out m", "egpo.tasks.preparation.prepare", "preparing the data of gsm8k"),
    "prepare mixed": ("--out m", "egpo.tasks.preparation.prepare", "preparing the data of mixed"),
    "probe": ("--model m --task countdown", "egpo.probes.subject.find_subject", "still working"),
    "push": ("a --dry-run", "egpo.pushes.pushed_model.find_pushed_model", "still working"),
    "report": ("a b", "egpo.reports.write_report", "writing a report about 2 runs"),
    "results": ("a", "egpo.comparisons.results_table.read_results", "reading the runs in a"),
    "run": ("countdown_tiny", "egpo.experiments.pipeline.run_experiments", "still working"),
    "serve": ("m", "egpo.evals.targets.find_model", "still working"),
    "sft": ("cold_start", "egpo.local.sft.session.sft", "still working"),
    "train": ("countdown_tiny", "egpo.engines.train", "still working"),
}
"""Of every verb that may take long: other words, a function that may take long, and what is printed meanwhile."""
QUICK = {"config", "new", "recipes"}
"""Verbs that only read and write recipes."""


def test_every_verb_has_a_slow_part_or_is_quick():
    found = {" ".join(words) for words in verbs(get_command(app)) if words[0] not in QUICK}
    assert found == set(SLOW_PARTS)


@pytest.mark.parametrize("verb", SLOW_PARTS)
def test_a_slow_part_of_a_verb_is_reported(verb, monkeypatch, capfd, tmp_path):
    """The part goes on only after the line was printed."""
    words, part, what = SLOW_PARTS[verb]
    lines, wanted = [], f"egpo {verb.split()[0]}: {what}, "

    def slow(*args, **options):
        assert becomes_true(lambda: wanted in said(capfd, lines)), "".join(lines)
        raise ContinuedError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(silence, "SILENCE_S", 0.01)
    monkeypatch.setattr(part, slow)
    monkeypatch.setattr(sys, "argv", ["egpo", *verb.split(), *words.split()])
    with pytest.raises(ContinuedError):
        cli_main.main()
