"""`egpo serve` as a user meets it, with a stand-in for vLLM."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

STAND_IN = str(Path(__file__).parents[1] / "serving" / "stand_in.py")


def egpo(*words):
    command = [sys.executable, "-m", "egpo", "serve", "egpo-tiny", "--python", STAND_IN, *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"STAND_IN": "ready"}
    )


def test_serve_says_where_it_answers_and_ends_on_ctrl_c():
    with egpo("--port", "0", "--name", "mine") as server:
        assert "mine is served at http://127.0.0.1:" in server.stdout.readline()
        assert server.stdout.readline().startswith("to evaluate it: egpo eval mine --url http://127.0.0.1:")
        server.send_signal(signal.SIGINT)
        said = server.stderr.read()
    assert server.returncode == 0, said
    assert "server | pids" in said


def test_a_port_in_use_ends_with_code_2():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with egpo("--port", str(port)) as server:
            assert f"egpo: 127.0.0.1:{port}: the port is in use" in server.stderr.read()
    assert server.returncode == 2
