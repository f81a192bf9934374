import pytest

from egpo.verl.launch.command import cluster_access


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_without_a_token_or_a_cluster_nothing_is_added(home):
    assert cluster_access("head:6379") == {}
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("secret")
    assert cluster_access(None) == {}


def test_a_token_that_is_there_is_shown(home, monkeypatch):
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("secret")
    assert cluster_access("head:6379") == {"RAY_AUTH_MODE": "token"}
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert cluster_access("head:6379") == {}
