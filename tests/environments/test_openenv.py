"""The client of OpenEnv servers, against a real server of the package `openenv-core` on loopback."""

import json
import socket
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from egpo.environments import EnvironmentHost, Episode, EpisodeLimits, EpisodeThreads, replay
from egpo.environments.web_sockets import WebSocket
from egpo.errors import InputError
from egpo.rewards.verdict import Verdict
from tests.environments.playing import call, play
from tests.waiting import becomes_true

PYTHON = Path(__file__).resolve().parents[2] / ".env-openenv/bin/python"
pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="OpenEnv's environment is not built (make test builds it)")
ROW = {"prompt": [{"role": "user", "content": "Count. "}], "goal": 5}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answers(url, server):
    assert server.poll() is None, "the server ended"
    try:
        return httpx.get(f"{url}/health", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def running(kind):
    port = free_port()
    server = subprocess.Popen([PYTHON, Path(__file__).with_name("openenv_server.py"), str(port), kind])
    url = f"http://127.0.0.1:{port}"
    try:
        assert becomes_true(lambda: answers(url, server), 120)
        yield url
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="module")
def counter():
    with running("counter") as url:
        yield url


def test_an_episode_on_a_real_server(counter):
    with EnvironmentHost("openenv", {"url": counter}) as host:
        assert not host.deterministic
        episode = Episode(host, ROW)
        start = episode.start()
        assert start.messages[-1]["content"] == 'Count. {"total": 0, "note": "Reach 5."}'
        (tool,) = start.tools
        assert tool["function"]["name"] == "step"
        assert tool["function"]["parameters"]["required"] == ["number"]
        assert "Add a number" in tool["function"]["description"]
        assert json.loads(episode.assistant(call("step", number=2)).messages[0]["content"]) == {"total": 2}
        assert episode.assistant(call("step", number="two")).turn.calls[0].fault == "wrong_type"
        turn = episode.assistant(call("step", number=-1)).turn
        assert (turn.calls[0].fault, json.loads(turn.calls[0].result)) == ("tool_error", {"error": "negative"})
        outcome = episode.assistant(call("step", number=3) + call("step", number=3))
        assert outcome.ending == "done"
        assert [one.fault for one in outcome.turn.calls] == ["", "call_after_end"]
        assert outcome.turn.changes["step_count"] == (1, 2)
        record = episode.record()
        assert record.verdict == Verdict(1.0, True, "correct")
        with pytest.raises(InputError, match="cannot be replayed"):
            replay(record)


def test_sessions_are_apart_and_run_side_by_side(counter):
    with EnvironmentHost("openenv", {"url": counter}) as host, EpisodeThreads(4) as threads:
        episodes = [Episode(host, {**ROW, "goal": 7}) for _ in range(3)]
        assert [one.result().ending for one in [threads.start(episode) for episode in episodes]] == ["", "", ""]
        for add, totals in (((1, 2, 3), [1, 2, 3]), ((6, 1, 1), [7, 3, 4])):
            steps = [threads.assistant(e, call("step", number=n)) for e, n in zip(episodes, add, strict=True)]
            results = [json.loads(step.result().messages[0]["content"])["total"] for step in steps]
            assert results == totals
        for episode in episodes:
            episode.stop()
        assert [episode.record().verdict.correct for episode in episodes] == [True, False, False]


def test_the_http_routes_forget_the_state(counter):
    """The reason for the WebSocket: each request to /step gets a new instance. If this fails, OpenEnv has changed."""
    with httpx.Client(trust_env=False) as client:
        client.post(f"{counter}/reset", json={}).raise_for_status()
        totals = [client.post(f"{counter}/step", json={"action": {"number": 2}}).json() for _ in range(2)]
    assert [one["observation"]["total"] for one in totals] == [2, 2]


def test_more_sessions_than_the_server_allows_are_failures(counter):
    with EnvironmentHost("openenv", {"url": counter}) as host:
        episodes = [Episode(host, ROW) for _ in range(5)]
        endings = [episode.start().ending for episode in episodes]
        assert endings == ["", "", "", "", "failed"]
        assert "max_concurrent_envs" in episodes[-1].record().fault
        for episode in episodes[:4]:
            episode.stop()


def test_a_step_that_hangs_and_a_server_that_dies_are_failures():
    with running("counter") as url, EnvironmentHost("openenv", {"url": url}) as host:
        record = play(host, ROW, [call("step", number=99)], EpisodeLimits(call_s=1.0))
        assert record.verdict == Verdict(0.0, False, "environment_timeout", failed=True)
        record = play(host, ROW, [call("step", number=98)], EpisodeLimits(call_s=20.0))
        assert record.verdict == Verdict(0.0, False, "environment_died", failed=True)
        record = play(host, ROW, [])
        assert record.verdict.reason == "environment_reset"
        assert "there is no OpenEnv server at" in record.fault


def test_a_server_of_mcp_tools():
    with running("tools") as url, EnvironmentHost("openenv", {"url": url}) as host:
        episode = Episode(host, {"prompt": ROW["prompt"]})
        start = episode.start()
        assert [tool["function"]["name"] for tool in start.tools] == ["add_note"]
        outcome = episode.assistant(call("add_note", text="milk"))
        assert "1 notes" in outcome.messages[0]["content"]
        assert "2 notes" in episode.assistant(call("add_note", text="tea")).messages[0]["content"]
        assert episode.assistant(call("add_note")).turn.calls[0].fault == "missing_argument"
        episode.stop()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "localhost:80"}, "is not an address; give http"),
        ({"url": "http://127.0.0.1:1", "reward": "mean"}, "reward='mean' is not allowed"),
        ({}, "missing a required argument: 'url'"),
        ({"url": "http://127.0.0.1:1", "port": 3}, "unexpected keyword argument 'port'.*; it takes: url"),
    ],
)
def test_settings_that_make_no_sense_are_one_line(settings, said):
    with pytest.raises(InputError, match=said):
        EnvironmentHost("openenv", settings)


def test_something_that_is_not_a_web_socket_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ConnectionError, match="offers no WebSocket"):
            WebSocket(f"ws://127.0.0.1:{server.getsockname()[1]}/ws", 5.0)
        with pytest.raises(TimeoutError):
            WebSocket(f"ws://127.0.0.1:{server.getsockname()[1]}/ws", 0.2)


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536, 300_000])
def test_messages_of_every_length_come_back(size):
    """Against the server of the package `websockets`, which also sends pings."""
    code = (
        "import asyncio, sys, websockets\n"
        "async def echo(c):\n    async for m in c:\n        await c.ping()\n"
        "        await c.send([m[: len(m) // 2], m[len(m) // 2 :]] if m else m)\n"
        "async def main():\n    async with websockets.serve(echo, '127.0.0.1', 0, max_size=None) as s:\n"
        "        print(s.sockets[0].getsockname()[1], flush=True); await asyncio.Future()\n"
        "asyncio.run(main())"
    )
    server = subprocess.Popen([PYTHON, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        connection = WebSocket(f"ws://127.0.0.1:{int(server.stdout.readline())}/", 20.0)
        text = ("é{" * size)[:size]
        assert connection.ask(text, 20.0) == text
        assert connection.ask("again", 20.0) == "again"
        connection.close()
    finally:
        server.kill()
        server.wait()
