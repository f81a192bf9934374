"""A server that is started, waited for, heard and ended: with stand-ins of its program, in real processes."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

import httpx
import pytest

from egpo.errors import InputError
from egpo.processes import guarded
from egpo.serving.commands import Serving
from egpo.serving.served import served
from tests.evals.served import served as answering_server
from tests.waiting import LIMIT_S, all_end, becomes_true

STAND_IN = str(Path(__file__).with_name("stand_in.py"))


@pytest.fixture
def server(monkeypatch):
    """Serves egpo-tiny by a stand-in that behaves as told; the lines of its log are in the list."""

    def start(how, serving="egpo-tiny", **settings):
        monkeypatch.setenv("STAND_IN", how)
        lines = []
        return served(serving, python=STAND_IN, say=lines.append, **settings), lines

    return start


def pids(lines):
    return [int(pid) for line in lines for pid in re.findall(r"pids (\d+)", line)]


def test_a_model_answers_until_the_block_ends(server):
    start, lines = server("ready")
    with start as found:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", found.url)
        assert httpx.get(f"{found.url}/models").json()["data"] == [{"id": "egpo-tiny"}]
        assert found.model_name == "egpo-tiny"
    assert all_end(pids(lines))
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{found.url}/models")


def test_it_ends_with_the_block_however_that_ends(server):
    start, lines = server("ready")
    with pytest.raises(ZeroDivisionError), start:
        raise ZeroDivisionError
    assert all_end(pids(lines))


def test_one_that_does_not_listen_is_killed_with_its_children(server, monkeypatch):
    monkeypatch.setattr(guarded, "GRACE_S", 0.2)
    start, lines = server("deaf")
    with start:
        pass
    assert len(pids(lines)) == 2
    assert all_end(pids(lines))


PARENT = (
    "import os, time\n"
    "from egpo.processes import guarded\n"
    "from egpo.serving import served\n"
    "guarded.GRACE_S = 0.2\n"
    "tell = lambda line: os.write(1, f'{line}\\n'.encode())\n"  # in one piece: two threads tell
    f"with served.served('egpo-tiny', python={STAND_IN!r}, say=tell) as found: tell(found.url); time.sleep(600)"
)
"""Another process that serves: the signals of a test are not for this one."""


@contextmanager
def parent_of(how, temporary):
    """A process that serves, and the pids of its server."""
    environment = os.environ | {"STAND_IN": how, "TMPDIR": str(temporary)}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        try:
            yield parent, pids(list(takewhile(lambda line: not line.startswith("http"), parent.stdout)))
        finally:
            parent.kill()


def url_is_closed(url):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", httpx.URL(url).port)) != 0


@pytest.mark.parametrize(
    ("how", "signum"),
    [("ready", signal.SIGKILL), ("deaf", signal.SIGKILL), ("ready", signal.SIGTERM), ("deaf", signal.SIGHUP)],
)
def test_a_signal_to_the_parent_ends_the_server_and_leaves_nothing(how, signum, tmp_path):
    with parent_of(how, tmp_path) as (parent, servers):
        assert len(list(tmp_path.iterdir())) == 1
        parent.send_signal(signum)
        assert parent.wait(LIMIT_S) == (-signum if signum == signal.SIGKILL else 128 + signum)
    assert len(servers) == (1 if how == "ready" else 2)
    assert all_end(servers)
    assert becomes_true(lambda: not list(tmp_path.iterdir()))


@pytest.mark.parametrize(
    ("how", "signum"), [("ready", signal.SIGKILL), ("deaf", signal.SIGKILL), ("ready", signal.SIGTERM)]
)
def test_a_signal_to_the_guard_ends_the_server_and_leaves_nothing(server, how, signum, tmp_path, monkeypatch):
    monkeypatch.setattr(guarded, "GRACE_S", 0.2)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    start, lines = server(how)
    with start as found:
        (guard,) = {os.getsid(pid) for pid in pids(lines)}
        os.kill(guard, signum)
        assert becomes_true(lambda: found.process.ended)
        assert all_end(pids(lines))
        assert url_is_closed(found.url)
        assert found.process.last_lines[-1] == f"was ended by {signum.name}"
    assert list(tmp_path.iterdir()) == []


def test_both_the_guard_and_the_parent_killed_end_the_server(tmp_path):
    with parent_of("ready", tmp_path) as (parent, servers):
        (guard,) = map(os.getsid, servers)
        for pid in (guard, parent.pid):
            os.kill(pid, signal.SIGKILL)
    assert all_end(servers)


def fault(start):
    with pytest.raises(InputError) as caught, start:
        pass
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_server_that_ends_says_its_last_words(server):
    start, _ = server("broken")
    message = fault(start)
    assert "the server (vllm) ended after" in message
    assert "\\x1b[31mno memory for the cache" in message
    assert "ended with code 1" in message
    assert "\x1b" not in message


def test_a_vllm_for_gpus_that_finds_none_is_one_line(server):
    start, _ = server("no_gpu")
    message = fault(start)
    assert "it is built for GPUs and finds none" in message
    assert "\n" not in message


def test_a_server_that_never_answers_says_its_last_words(server):
    seconds = []

    def watch(waited):
        """The limit is looked at after this: a slow machine has the time to start the server at all."""
        seconds.append(waited)
        becomes_true(lambda: "loading for ever" in lines)

    start, lines = server("silent", timeout_s=1, watch=watch)
    message = fault(start)
    assert "the server (vllm) did not answer within 1 s (http://127.0.0.1:" in message
    assert "Connection refused); see the last lines of its log:\n" in message
    assert "loading for ever" in message
    assert seconds == sorted(seconds)
    assert seconds
    assert all_end(pids(lines))


def test_a_server_that_answers_only_errors_is_given_up_with_its_status(server, monkeypatch):
    monkeypatch.setattr("egpo.serving.served._ERRORS_S", 1)
    start, lines = server("errors")
    message = fault(start).splitlines()[0]
    assert "the server (vllm) has answered nothing but errors for 1 s (http://127.0.0.1:" in message
    assert "/v1/models: 500 Internal Server Error)" in message
    assert all_end(pids(lines))


def test_a_port_in_use_is_found_before_anything_starts(server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        start, lines = server("ready", Serving("egpo-tiny", "m", port=port))
        assert fault(start) == f"127.0.0.1:{port}: the port is in use; choose another port, or 0 for any free one"
    assert lines == []


@pytest.mark.parametrize(
    ("how", "timeout_s", "end"), [("ready", 120, "ended after"), ("silent", 2, "did not answer within 2 s")]
)
def test_another_s_server_that_took_the_port_meanwhile_is_not_taken_for_ours(server, monkeypatch, how, timeout_s, end):
    with answering_server(lambda body: None) as another:
        another.models = ["egpo-tiny"]
        port = httpx.URL(another.url).port
        monkeypatch.setattr("egpo.serving.served.free_port", lambda host, wanted: port)
        start, lines = server(how, timeout_s=timeout_s)
        assert f"the server (vllm) {end}" in fault(start)
    assert all_end(pids(lines))


def test_a_name_that_is_part_of_another_is_not_served(server):
    start, _ = server("other_name", timeout_s=1)
    assert "did not answer within 1 s" in fault(start)


def test_hosts_that_cannot_be(server):
    assert "no such host" in fault(server("ready", Serving("egpo-tiny", "m", host="no.such.host.invalid"))[0])
    assert "the server cannot listen here" in fault(server("ready", Serving("egpo-tiny", "m", host="192.0.2.1"))[0])


def test_what_is_no_model(server, tmp_path):
    assert "no config.json, so it is not a model; give a folder that `egpo merge` wrote" in fault(
        server("ready", str(tmp_path))[0]
    )
    assert "no such folder" in fault(server("ready", str(tmp_path / "none"))[0])
    (tmp_path / "config.json").write_text("{}")
    assert "the folder has no weights; convert a checkpoint of verl to a model" in fault(
        server("ready", str(tmp_path))[0]
    )
    (tmp_path / "model.safetensors").touch()
    assert "the tokenizer cannot be loaded" in fault(server("ready", str(tmp_path))[0])
