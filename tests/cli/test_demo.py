"""`egpo demo` as a user meets it. What it does is tested in tests/demos."""

import pytest
from typer.testing import CliRunner

from egpo.cli.main import app, main


def test_help_says_how_long_it_takes_and_shows_an_example():
    shown = CliRunner().invoke(app, ["demo", "--help"], terminal_width=120).output
    assert "about four minutes on two cores" in " ".join(shown.split())
    assert "Example:" in shown
    assert "--fast" in shown
    assert "--model smollm2-135m" in shown


def test_a_folder_that_holds_something_else_ends_with_code_2(tmp_path, monkeypatch, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    monkeypatch.setattr("sys.argv", ["egpo", "demo", "--fast", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert "files that no demo wrote" in capsys.readouterr().err
