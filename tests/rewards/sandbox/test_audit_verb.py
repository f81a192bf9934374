"""`egpo audit sandbox`."""

import json

import pytest
import typer
from typer.testing import CliRunner

from egpo.cli.audit import audit_sandbox
from egpo.rewards.sandbox import audit
from egpo.rewards.sandbox.audit import ATTEMPTS


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command()(audit_sandbox)
    return app


@pytest.fixture
def three_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each kind; the rest is tested in test_escapes.py."""
    wanted = ("read a host file", "fork bomb", "exit with code 0 during a test")
    monkeypatch.setattr(audit, "ATTEMPTS", [attempt for attempt in ATTEMPTS if attempt.name in wanted])


def test_contained(app: typer.Typer, works: None, three_attempts: None) -> None:
    result = CliRunner().invoke(app, ["--tier", "bubblewrap", "--json"])
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert (answer["tier"], answer["got_through"], len(answer["attempts"])) == ("bubblewrap", 0, 3)


def test_an_attempt_that_gets_through_is_exit_code_1(app: typer.Typer, three_attempts: None) -> None:
    result = CliRunner().invoke(app, ["--tier", "limits"])
    assert result.exit_code == 1
    assert "NO" in result.stdout
    assert "not contained" in result.stdout


@pytest.mark.parametrize("options", [[], ["--no-cgroup"]])
def test_memory_is_measured(app: typer.Typer, works: None, monkeypatch: pytest.MonkeyPatch, options: list[str]) -> None:
    """What the host's memory does meanwhile is everybody's on a busy machine: the numbers are there, and no more."""
    wanted = [attempt for attempt in audit.HOLDS_MEMORY if attempt.name == "anonymous files"]
    monkeypatch.setattr(audit, "HOLDS_MEMORY", wanted)
    result = CliRunner().invoke(app, ["--tier", "bubblewrap", "--memory", "--programs", "2", "--json", *options])
    (row,) = json.loads(result.stdout)["attempts"]
    assert "PermissionError" in row["happened"]
    assert row["bound_mb"] == 512
    assert ("address space" in json.loads(result.stdout)["protection"]) >= bool(options)
