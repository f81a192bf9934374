"""How long the weights may take; the transfer itself is in test_patches.py, where verl is."""

import pytest

from egpo.errors import InputError
from egpo.verl.cpu.patches import DEFAULT_S, timeout_s


@pytest.mark.parametrize(("text", "seconds"), [("600", 600.0), ("0.5", 0.5), ("", DEFAULT_S)])
def test_the_environment_sets_the_limit(monkeypatch, text, seconds):
    monkeypatch.setenv("EGPO_WEIGHTS_TIMEOUT_S", text)
    assert timeout_s() == seconds


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_what_is_no_time_is_refused_with_its_place(monkeypatch, text):
    monkeypatch.setenv("EGPO_WEIGHTS_TIMEOUT_S", text)
    with pytest.raises(InputError, match=f"EGPO_WEIGHTS_TIMEOUT_S: `{text}` is not a number of seconds"):
        timeout_s()
