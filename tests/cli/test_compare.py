"""`egpo compare` and `egpo results` as a user meets them."""

import csv
import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from egpo.cli.main import app, main
from tests.comparisons.folders import two_conditions, write_run


@pytest.fixture
def egpo(tmp_path, monkeypatch, capsys):
    """Runs a verb in a folder of its own, at 80 columns: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words):
        monkeypatch.setattr("sys.argv", ["egpo", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            main()
        return left.value.code or 0, *capsys.readouterr()

    return call


@pytest.mark.parametrize("verb", ["compare", "results"])
def test_help_shows_an_example(verb):
    assert "Example:" in CliRunner().invoke(app, [verb, "--help"], terminal_width=120).output


def test_no_word_and_no_interval_is_broken(egpo, tmp_path):
    code, shown, _ = egpo("compare", *two_conditions(tmp_path, seeds=(0, 1), problems=20))
    table = shown.partition("contrast")[2].partition("grpo and egpo are")[0]
    assert (code, "not distinguishable" in table) == (0, True)
    assert re.search(r"-\d\d\.\d to \+\d\d\.\d ", table)


def test_a_table_and_the_verdict_in_words(egpo, tmp_path):
    code, shown, _ = egpo("compare", *two_conditions(tmp_path, seeds=(0, 1, 2), other=0.6))
    assert code == 0
    assert max(map(len, shown.splitlines())) <= 80
    assert "egpo - grpo" in shown
    assert "egpo is better than grpo: difference +" in shown


def test_json_markdown_and_csv(egpo, tmp_path):
    runs = two_conditions(tmp_path)
    code, shown, _ = egpo("compare", *runs, "--json", "--csv", "x.csv", "--out", "kept")
    told = json.loads(shown)
    assert code == 0
    assert told == json.loads((tmp_path / "kept" / "compare.json").read_text())
    assert told["contrasts"][0]["verdict"] == next(csv.DictReader((tmp_path / "x.csv").open()))["verdict"]
    assert egpo("compare", *runs, "--markdown")[1].startswith("### countdown (test), 100 problems")


def test_what_is_not_fair_ends_with_code_2_and_all_differences_or_is_flagged(egpo, tmp_path):
    runs = two_conditions(tmp_path)
    config = runs[1] / "config.yaml"
    config.write_text(config.read_text().replace("1e-06", "3e-06").replace("mode: binary", "mode: graded"))
    code, _, said = egpo("compare", *runs)
    assert code == 2
    assert "setting update.lr: 1e-06 (grpo-0); 3e-06 (egpo-0)" in said
    assert "reward task.settings.mode: binary (grpo-0); graded (egpo-0)" in said
    code, shown, _ = egpo("compare", *runs, "--allow")
    assert code == 0
    assert "Not a fair comparison:" in shown
    code, _, said = egpo("compare", *runs, "--factor", "algorithm", "--factor", "update.lr")
    assert code == 2
    assert "update.lr" not in said


def test_published_figures(egpo):
    code, shown, _ = egpo("compare", "--scores", "GRPO=61.7±1.9x5", "--scores", "EGPO=61.9±0.9x5", "--cases", "200")
    told = " ".join(shown.split())
    assert code == 0
    assert "GRPO and EGPO are not distinguishable: difference +0.2 points [-2.1, +2.5]" in told
    assert "detecting 2.0 points on these cases takes 11 evaluations of each" in told
    assert "do not show the variation between training seeds" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "fewer than two runs to compare"),
        (["nowhere", "here"], "nowhere: no such folder"),
        (["--scores", "A=1"], "fewer than two conditions"),
        (["nowhere", "--scores", "A=1"], "run folders and --scores cannot be combined; give either run folders"),
    ],
)
def test_mistakes_end_with_a_message_and_code_2(egpo, words, message):
    code, _, said = egpo("compare", *words)
    assert code == 2
    assert message in said
    assert "Traceback" not in said


def test_a_place_that_cannot_be_written_is_the_machines_fault(egpo, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, said = egpo("compare", *two_conditions(tmp_path / "runs"), "--out", "file")
    assert code == 1
    assert "cannot be written" in said


def test_the_ledger_is_a_table_a_file_and_a_page(egpo, tmp_path):
    two_conditions(tmp_path / "runs")
    write_run(tmp_path / "runs" / "<b>third</b>")
    code, shown, _ = egpo("results")
    assert code == 0
    assert max(map(len, shown.splitlines())) <= 80
    lines = list(csv.DictReader((tmp_path / "runs" / "results.csv").open()))
    assert [line["name"] for line in lines] == ["<b>third</b>", "egpo-0", "grpo-0"]
    assert lines[0]["status"] == "finished, not evaluated"
    page = (tmp_path / "runs" / "results.html").read_text()
    assert "&lt;b&gt;third&lt;/b&gt;" in page
    assert "<b>third" not in page
    assert json.loads(egpo("results", "runs", "--json", "--out", "elsewhere")[1])[1]["name"] == "egpo-0"
    assert (tmp_path / "elsewhere" / "results.html").is_file()
    assert egpo("results", "nowhere")[0] == 2


def test_torch_is_not_imported(tmp_path):
    runs = [str(run) for run in two_conditions(tmp_path / "runs")]
    for words in (["compare", *runs, "--out", str(tmp_path / "runs")], ["results", str(tmp_path / "runs")]):
        code = (
            f"import sys; sys.argv = {['egpo', *words]!r}\n"
            "try:\n    from egpo.cli.main import main; main()\nexcept SystemExit: pass\n"
            "assert not {'torch', 'transformers', 'pyarrow'} & set(sys.modules), 'heavy'"
        )
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
