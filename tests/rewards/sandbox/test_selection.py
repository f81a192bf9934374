"""Which sandbox is in force."""

import subprocess

import pytest

from egpo.errors import EgpoError, InputError
from egpo.rewards.sandbox import (
    Limits,
    SandboxJob,
    Scripts,
    choose_sandbox,
    require_sandbox,
    sandbox_status,
    selection,
    working_sandbox,
)


def test_bubblewrap_is_the_default_and_works(monkeypatch: pytest.MonkeyPatch, works: None) -> None:
    monkeypatch.delenv("EGPO_SANDBOX", raising=False)
    assert choose_sandbox().tier == "bubblewrap"
    status = sandbox_status()
    assert status.ok
    assert status.detail.startswith("bubblewrap 0.")
    assert require_sandbox(limits=Limits(wall_s=1.0)).limits.wall_s == 1.0


def test_the_weak_tier_is_taken_only_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EGPO_SANDBOX", "limits")
    status = sandbox_status()
    assert (status.tier, status.ok) == ("limits", True)
    assert "NO SECURITY BOUNDARY" in status.detail


def test_no_bubblewrap_is_an_error_and_not_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EGPO_SANDBOX", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EgpoError, match=r"not installed.*apt-get") as caught:
        require_sandbox()
    assert caught.value.exit_code == 1
    assert not isinstance(caught.value, InputError)


def test_the_bubblewrap_that_was_tried_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch, works: None) -> None:
    job = SandboxJob("print(1)", Scripts((b"",)))
    found = require_sandbox("bubblewrap")
    monkeypatch.setenv("PATH", "/nowhere")
    assert found.run(job).outcomes[0].output == b"1\n"
    missing = choose_sandbox("bubblewrap")
    assert not sandbox_status("bubblewrap").ok
    assert "not installed" in missing.run(job).failure


def test_the_sandbox_is_tried_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    status = selection.SandboxStatus("bubblewrap", False, "does not work", "mend it")
    monkeypatch.setattr(selection, "_tried", lambda sandbox: tried.append(sandbox) or status)
    selection._tried_once.cache_clear()
    for _ in range(3):
        with pytest.raises(EgpoError, match=r"does not work.*mend it"):
            working_sandbox("bubblewrap")
    selection._tried_once.cache_clear()
    assert len(tried) == 1


def test_an_old_bubblewrap_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "bubblewrap_version", lambda executable: (0, 6, 1))
    assert "0.6.1 is too old" in sandbox_status("bubblewrap").detail


def test_a_bubblewrap_that_cannot_make_namespaces_says_so(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "bwrap"
    message = "bwrap: No permissions to create new namespace"
    fake.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.9.0 && exit\necho "{message}" >&2\nexit 1\n')
    fake.chmod(0o755)
    assert subprocess.run([fake, "--version"], capture_output=True, text=True).stdout == "bubblewrap 0.9.0\n"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    status = sandbox_status("bubblewrap")
    assert not status.ok
    assert message in status.detail
    assert "max_user_namespaces" in status.fix


def test_packages_are_importable_where_they_are_named(tmp_path, monkeypatch: pytest.MonkeyPatch, works: None) -> None:
    (tmp_path / "handy.py").write_text("answer = 42")
    (tmp_path / "handy.py").chmod(0o644)
    tmp_path.chmod(0o755)
    job = SandboxJob("import handy\nprint(handy.answer)", Scripts((b"",)))
    assert choose_sandbox("bubblewrap").run(job).outcomes[0].code == 1
    monkeypatch.setenv("EGPO_SANDBOX_PACKAGES", str(tmp_path))
    for tier in ("bubblewrap", "limits"):
        assert choose_sandbox(tier).run(job).outcomes[0].output == b"42\n"
    monkeypatch.setenv("EGPO_SANDBOX_PACKAGES", str(tmp_path / "missing"))
    with pytest.raises(InputError, match="missing"):
        choose_sandbox("bubblewrap")


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://host:8080", "http://host:8080/run_code"),
        ("http://host:8080/", "http://host:8080/run_code"),
        ("https://host/a/run_code", "https://host/a/run_code"),
    ],
)
def test_a_url_names_a_service(given: str, url: str) -> None:
    assert choose_sandbox(given).url == url


@pytest.mark.parametrize(
    ("tier", "advice"),
    [
        ("bubblewarp", "`bubblewrap`"),
        ("http", "give the URL of the service, `http://HOST:PORT/run_code`"),
        ("https", "`http://HOST:PORT/run_code`"),
        ("none", "choose from `bubblewrap`, `http://HOST:PORT/run_code`, `limits`"),
    ],
)
def test_an_unknown_tier_is_the_users_mistake(tier: str, advice: str) -> None:
    with pytest.raises(InputError, match=advice) as caught:
        choose_sandbox(tier)
    assert "`http`" not in caught.value.faults[0].fix, "that would be refused in turn"


def test_a_service_that_is_not_there() -> None:
    status = sandbox_status("http://127.0.0.1:9/run_code")
    assert not status.ok
    assert "127.0.0.1:9" in status.detail
