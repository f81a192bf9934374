"""What a report is made of and where it goes; what it says to bad input."""

import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from egpo.cli.main import app
from egpo.errors import InputError
from egpo.reports import render_report, write_report
from egpo.runs.folder import RunFolder
from tests.reports.folders import HOSTILE, group_records, note, write_metrics, write_run


def embedded(page, name):
    return json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page)[1])


def test_one_file_that_loads_nothing(tmp_path):
    page = render_report([write_run(tmp_path / "a", notes=[note()])]).decode()
    assert not re.findall(r"<link|<iframe|<object|@import|url\(", page)
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"<(?!script type=\"application/json\")[^>]*\ssrc=", page)


def test_hostile_text_stands_in_no_markup(tmp_path):
    page = render_report([write_run(tmp_path / "a", notes=[note()])]).decode()
    assert page.count("<script") == page.count("</script>")
    for text in HOSTILE[:4]:
        assert text not in page
    # What the page's script reads is what the model wrote.
    groups = embedded(page, "responses-0-2")
    assert [response["text"] for response in groups[0]["responses"]] == [r.output for r in group_records(12)]


def test_one_run_keeps_its_own_report_and_several_have_theirs_beside_them(tmp_path):
    a, b = write_run(tmp_path / "runs" / "a"), write_run(tmp_path / "runs" / "b")
    assert write_report([a]) == a / "report.html"
    assert write_report([a, a]) == a / "report.html"
    assert write_report([a, b]) == tmp_path / "runs" / "report.html"
    assert write_report([a, b], tmp_path / "x.html") == tmp_path / "x.html"


def test_a_run_that_goes_on_is_shown_as_far_as_it_is(tmp_path):
    """A line that is being written does not count yet; the page rendered again shows more."""
    run = write_run(tmp_path / "a", steps=5, dumps=())
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "critic/sc')
    page = render_report([run]).decode()
    assert "5 of 100" in page
    assert embedded(page, "chart-data")["runs"][0]["curves"]["critic/score/mean"]["x"] == [1, 2, 3, 4, 5]
    assert "write the page again" in page
    (run / "metrics.jsonl").unlink()
    write_metrics(RunFolder(run), range(101), 100)
    assert "write the page again" not in render_report([run]).decode()


def test_informative_groups_are_those_that_do_not_agree(tmp_path):
    curves = embedded(render_report([write_run(tmp_path / "a")]).decode(), "chart-data")["runs"][0]["curves"]
    assert set(curves["groups/informative_frac"]["y"]) == {0.75}


def test_runs_of_one_name_are_told_apart(tmp_path):
    runs = [write_run(tmp_path / place / "tiny") for place in ("a", "b")]
    names = [run["name"] for run in embedded(render_report(runs).decode(), "chart-data")["runs"]]
    assert names == ["a/tiny", "b/tiny"]


def test_only_settings_that_differ_are_shown(tmp_path):
    runs = [write_run(tmp_path / name, estimator=name) for name in ("grpo", "egpo")]
    section = re.search(r'id="settings".*?</section>', render_report(runs).decode(), re.DOTALL)[0]
    assert re.findall(r"<code>(.*?)</code>", section) == ["algorithm.estimator"]
    assert 'id="settings"' not in render_report([runs[0]]).decode()


def test_a_rule_that_spoke_of_two_runs_stands_once_and_dangers_first(tmp_path):
    notes = [note("entropy_falling", "warning"), note()]
    runs = [write_run(tmp_path / name, notes=notes) for name in ("a", "b")]
    section = re.search(r'id="health".*?</section>', render_report(runs).decode(), re.DOTALL)[0]
    rules = re.findall(r"</span> <code>(.*?)</code>", section)
    assert rules == ["kl_high", "entropy_falling"]
    assert section.count("<code>update.lr</code>") == 2


def test_the_probe_is_a_histogram(tmp_path):
    run = write_run(tmp_path / "a")
    (run / "evals").mkdir()
    (run / "evals" / "probe.json").write_text(json.dumps({"pass_rates": {"p": 0, "q": 0.05, "r": 0.95, "s": 1.0}}))
    page = render_report([run]).decode()
    assert "0 1, &lt;.1 1, &lt;.2 0" in page
    assert "&lt;1 1, 1 1" in page


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda path: None, "no such folder"),
        (lambda path: path.mkdir(), "not a run folder"),
        (lambda path: write_run(path / "inner"), "give the runs inside the folder"),
        (lambda path: path.write_text("x"), "no such folder"),
    ],
)
def test_a_folder_that_is_no_run(tmp_path, prepare, message):
    prepare(tmp_path / "x")
    with pytest.raises(InputError, match=message):
        write_report([tmp_path / "x"])
    assert not list(tmp_path.rglob("report.html"))


def test_a_damaged_line_is_named(tmp_path):
    run = write_run(tmp_path / "a")
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*lines[:3], '{"step": 3, "criti\n', *lines[4:]]))
    with pytest.raises(InputError, match=r"metrics.jsonl, line 4: the line is not JSON"):
        render_report([run])


def test_a_place_that_cannot_be_written(tmp_path):
    run = write_run(tmp_path / "a")
    with pytest.raises(InputError, match="--out"):
        write_report([run], tmp_path / "nowhere" / "report.html")


def test_the_command(tmp_path):
    run = write_run(tmp_path / "a")
    done = CliRunner().invoke(app, ["report", str(run)])
    assert done.output.strip() == str(run / "report.html")
    assert (run / "report.html").stat().st_size > 10_000


def test_neither_torch_nor_numpy_is_imported(tmp_path):
    code = (
        "import sys; from pathlib import Path; from egpo.reports import write_report; "
        f"write_report([Path({str(write_run(tmp_path / 'a'))!r})]); "
        "assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("budget_mb", [0.3, 1.0, 5.0])
def test_the_file_keeps_its_budget_and_says_what_is_left_out(tmp_path, budget_mb):
    """The rollouts of forty steps take more than twice the largest of these budgets."""
    records = [r for number in range(6) for r in group_records(1, ("wörd " * 2000,) * 3, problem=f"p{number}")]
    run = write_run(tmp_path / "long", steps=40, dumps=range(1, 41), records=records)
    page = write_report([run], budget_mb=budget_mb)
    assert page.stat().st_size <= 1e6 * budget_mb
    assert page.stat().st_size > 0.3e6 * budget_mb
    text = page.read_text()
    assert f"Not included in this page, which may take {budget_mb:g} MB" in text
    assert re.search(r"<li>long: \d+ of 40 recorded steps", text)
    assert bool(re.search(r"\d+ of the \d+ problems of the kept steps", text)) == (budget_mb < 5)


def test_a_page_that_holds_everything_says_nothing_of_it(tmp_path):
    assert "Not included in this page" not in render_report([write_run(tmp_path / "a")]).decode()


def test_responses_that_are_too_large_are_left_out_and_named(tmp_path):
    run = write_run(tmp_path / "a", dumps=(1,), records=group_records(1, ("x" * 400_000,)))
    page = render_report([run], 0.3).decode()
    assert len(page.encode()) <= 300_000
    assert "do not fit into 0.3 MB" in page


def test_a_budget_that_is_too_small(tmp_path):
    run = write_run(tmp_path / "a")
    with pytest.raises(InputError, match="larger --budget"):
        render_report([run], 0.01)


def test_the_budget_is_an_option(tmp_path):
    run = write_run(tmp_path / "a")
    assert CliRunner().invoke(app, ["report", str(run), "--budget", "0.2"]).exit_code == 0
    assert CliRunner().invoke(app, ["report", str(run), "--budget", "0"]).exit_code == 2
