import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from egpo.environments.bfcl.interpreter import VARIABLE, _home, bfcl_python, data_folder
from egpo.errors import EgpoError, InputError


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """No checkout, and an empty cache."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(VARIABLE, raising=False)


def test_offline_nothing_is_made(tmp_path):
    with pytest.raises(InputError, match="BFCL's environment is missing"):
        bfcl_python(offline=True)
    assert not (tmp_path / "cache").exists()


def test_an_interpreter_by_name_goes_first(monkeypatch):
    monkeypatch.setenv(VARIABLE, sys.executable)
    assert str(bfcl_python(offline=True)) == sys.executable
    monkeypatch.setenv(VARIABLE, "/no/such/python")
    with pytest.raises(InputError, match="no Python interpreter"):
        bfcl_python()


def test_an_environment_that_cannot_be_made_says_what_pip_said(monkeypatch, tmp_path):
    wrong = tmp_path / "requirements.txt"
    wrong.write_text("no-such-package-of-anyone==0\n")
    monkeypatch.setattr("egpo.environments.bfcl.interpreter.REQUIREMENTS", wrong)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    said = []
    with pytest.raises(EgpoError, match="no-such-package-of-anyone"):
        bfcl_python(say=said.append)
    assert "creating BFCL's environment" in said[0]
    # What is half made is not taken for whole.
    with pytest.raises(InputError):
        bfcl_python(offline=True)


def test_an_environment_without_bfcl_is_told():
    from pathlib import Path

    with pytest.raises(EgpoError, match="bfcl-eval is not installed for this Python"):
        data_folder(Path(sys.executable))


def test_two_first_calls_make_it_once_and_what_was_half_made_is_made_anew(monkeypatch, tmp_path):
    """Without packages, so that it takes seconds: `requirements.txt` is empty."""
    nothing = tmp_path / "requirements.txt"
    nothing.write_text("")
    monkeypatch.setattr("egpo.environments.bfcl.interpreter.REQUIREMENTS", nothing)
    half = _home() / "lib" / "left"
    half.parent.mkdir(parents=True)
    half.touch()
    said = []
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: bfcl_python(say=said.append), range(2))
    assert first == second
    assert first.exists()
    assert not half.exists()
    assert sum("creating BFCL's environment" in line for line in said) == 1
