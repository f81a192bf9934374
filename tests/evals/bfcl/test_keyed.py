"""A server that wants a key: it gets it, and nobody else does."""

import json
import socket
import struct

import httpx
import pytest
from typer.testing import CliRunner

from egpo.cli.main import app
from egpo.environments.bfcl.interpreter import VARIABLE
from egpo.evals.bfcl.targets import find_target, keyless_address
from egpo.evals.server import Server
from tests.evals.bfcl.gold_server import serving
from tests.evals.bfcl.test_official import PYTHON, needs_bfcl

KEY = "sk-of-gold-0123456789"
SPY = "(lambda data: __import__('pathlib').Path('seen').write_bytes(open('/proc/self/environ', 'rb').read()))"


def command(url, tmp_path, *words):
    asked = ["eval", "bfcl", url, "--tokenizer", "egpo-tiny", "--categories", "multi_turn_base", "--cases", "1"]
    return CliRunner().invoke(app, [*asked, "--out", str(tmp_path / "evals"), *words])


@needs_bfcl
def test_the_server_is_sent_the_key_and_neither_a_file_nor_the_models_calls_see_it(tmp_path, monkeypatch):
    """The model's first call writes down the environment of the process that evaluates it."""
    monkeypatch.setenv(VARIABLE, str(PYTHON))
    monkeypatch.setenv("GOLD_KEY", KEY)
    call = json.dumps({"name": SPY, "arguments": {"data": "x"}})
    spying = iter([f"<tool_call>\n{call}\n</tool_call>"])
    with serving(lambda prompt: next(spying, "Done."), key=KEY) as (url, prompts):
        done = command(url, tmp_path, "--api-key-env", "GOLD_KEY")
    assert done.exit_code == 0, done.output
    assert prompts
    assert KEY not in done.output
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"job.json", "bfcl.log", "seen"} <= {path.name for path in files}
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_without_the_key_it_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.delenv("GOLD_KEY", raising=False)
    with serving(lambda prompt: "No.", key=KEY) as (url, _):
        refused = command(url, tmp_path)
        unset = command(url, tmp_path, "--api-key-env", "GOLD_KEY")
    assert "401 Unauthorized" in str(refused.exception)
    assert "the environment variable GOLD_KEY is not set" in str(unset.exception)


def test_a_model_that_is_not_listed_is_asked_for_with_the_key():
    with serving(lambda prompt: "yes", key=KEY) as (url, _):
        target = find_target(url, "silver", "egpo-tiny", "latest", KEY)
    assert target.served_name == "silver"
    assert KEY not in repr(target)


def test_a_server_without_a_key_is_asked_where_it_is():
    with keyless_address(Server.at("http://x")) as url:
        assert url == "http://x/v1"


def test_only_who_knows_the_way_passes_and_only_to_what_bfcl_asks():
    with (
        serving(lambda prompt: 429, key=KEY) as (upstream, _),
        keyless_address(Server.at(upstream, api_key=KEY)) as url,
    ):
        assert httpx.get(f"{url}/models").json()["data"][0]["id"] == "gold"
        assert httpx.post(f"{url}/completions", json={"prompt": "p", "model": "m"}).status_code == 429
        bare = url.rsplit("/", 2)[0]
        for closed in (f"{url}/files", f"{url}/models/../files", f"{bare}/v1/models", f"{bare}/other/v1/models"):
            assert httpx.get(closed).status_code == 404
        assert httpx.post(f"{url}/models").status_code == 404
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/models")


@pytest.mark.parametrize("key", ["sk-of\ngold", "sk-of-göld", "sk-of\x7fgold"])
def test_a_key_that_no_header_can_hold_is_refused_and_not_shown(key, tmp_path, monkeypatch):
    """The client's own error is `Illegal header value`, with the key."""
    monkeypatch.setenv("GOLD_KEY", key)
    refused = command("http://127.0.0.1:9", tmp_path, "--api-key-env", "GOLD_KEY")
    assert "the environment variable GOLD_KEY is not a valid API key" in str(refused.exception)
    assert "sk-of" not in f"{refused.output}{refused.exception}"


@pytest.mark.parametrize("length", ["-1", "x", "4000000000", "9" * 5000])
@pytest.mark.parametrize(("place", "status"), [("completions", b"413"), ("files", b"404")])
def test_a_caller_cannot_make_it_wait_for_a_body_or_hold_one_of_any_size(length, place, status, capfd):
    with keyless_address(Server.at("http://127.0.0.1:9", api_key=KEY)) as url:
        head = f"POST {httpx.URL(url).path}/{place} HTTP/1.1\r\nContent-Length: {length}\r\n\r\n"
        assert _said_to(url, head).split()[1] == status
    assert capfd.readouterr().err == ""


def test_callers_that_leave_are_not_told_on_the_screen(capfd):
    """BFCL's process is killed where a user interrupts it."""
    with keyless_address(Server.at("http://127.0.0.1:9", api_key=KEY)) as url:
        for words in ("GET /", f"POST {httpx.URL(url).path}/completions HTTP/1.1\r\nContent-Length: 9\r\n\r\n{{"):
            _said_to(url, words, leaves=True)
        assert httpx.get(f"{url}/models").status_code == 502
    assert capfd.readouterr().err == ""


def _said_to(url, words, *, leaves=False):
    address = httpx.URL(url)
    with socket.create_connection((address.host, address.port), timeout=10) as caller:
        caller.sendall(words.encode())
        if leaves:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, at once
            return b""
        return caller.recv(1000)


def test_a_server_that_is_gone_is_an_answer_that_bfcls_client_tries_again():
    with keyless_address(Server.at("http://127.0.0.1:9", api_key=KEY)) as url:
        assert httpx.get(f"{url}/models").status_code == 502
