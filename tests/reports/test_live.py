"""The page that follows a run: what is served, to whom, and how it ends."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager

import pytest
from typer.testing import CliRunner

from egpo.cli.main import app
from egpo.errors import InputError
from egpo.reports.live import LiveReport, is_allowed_host, live_server
from egpo.runs.folder import RunFolder
from egpo.runs.metrics import MetricStream
from tests.reports.folders import group_records, training_metrics, write_dump, write_run
from tests.waiting import becomes_true


def get(address, path="/", method="GET", **headers):
    """One request; `host` replaces the Host header."""
    place = address.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(place, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    for name, value in ({"Host": place} | headers).items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), dict(answer.getheaders())


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "run", steps=5, dumps=(1,))


@pytest.fixture
def address(run):
    with live_server(LiveReport([run]), port=0) as address:
        yield address


def test_the_page_and_its_version(address):
    status, page, headers = get(address)
    assert status == 200
    assert 'id="live"' in page
    assert "connect-src &#39;self&#39;" in page
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    status, content, _ = get(address, "/version")
    assert status == 200
    assert json.loads(content)["error"] == ""


def test_a_new_step_is_a_new_version_and_a_new_page(address, run):
    first = json.loads(get(address, "/version")[1])["version"]
    assert json.loads(get(address, "/version")[1])["version"] == first
    MetricStream(RunFolder(run).metrics).append(6, training_metrics(6, 12))
    second = json.loads(get(address, "/version")[1])["version"]
    assert second != first
    assert "6 of 100" in get(address)[1]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:80"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_host_and_origin_are_checked(address, headers, status):
    for path in ("/", "/version"):
        found, content, _ = get(address, path, **headers)
        assert found == status
        assert status == 200 or "<html" not in content


def test_its_own_origin_is_allowed(address):
    assert get(address, "/version", Origin=address.rstrip("/"))[0] == 200


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("localhost:8765", True),
        ("LOCALHOST", True),
        ("127.0.0.1:8765", True),
        ("[::1]:8765", True),
        ("[::1]", True),
        ("192.168.0.7:8765", True),
        ("box.lan:8765", True),
        ("evil.example:8765", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_names_of_this_machine(header, allowed):
    assert is_allowed_host(header, "box.lan") == allowed


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_only_reads(address, method):
    assert get(address, "/", method)[0] == 501


@pytest.mark.parametrize("path", ["/../../etc/passwd", "/run/metrics.jsonl", "/version/x", "/%2e%2e/"])
def test_no_file_is_served(address, path):
    assert get(address, path)[0] == 404


def test_it_listens_on_the_loopback_alone(address):
    port = int(address.rstrip("/").rpartition(":")[2])
    with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.2", port), timeout=5):
        pass


def test_a_damaged_line_is_told_and_the_last_page_stays(address, run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write("{broken\n")
    status, content, _ = get(address, "/version")
    assert status == 200
    assert "metrics.jsonl, line 7: the line is not JSON" in json.loads(content)["error"]
    assert "5 of 100" in get(address)[1]


def test_two_servers_on_one_port(run):
    with live_server(LiveReport([run]), port=0) as address:
        port = int(address.rstrip("/").rpartition(":")[2])
        done = CliRunner().invoke(app, ["report", "--live", str(run), "--port", str(port)])
        assert isinstance(done.exception, InputError)
        assert str(done.exception).startswith(f"egpo report --live: port {port} of 127.0.0.1 cannot be used")
        assert "\n" not in str(done.exception)


def test_live_and_out_exclude_each_other(run, tmp_path):
    done = CliRunner().invoke(app, ["report", "--live", str(run), "--out", str(tmp_path / "x.html")])
    assert isinstance(done.exception, InputError)


@contextmanager
def command(*words):
    """`egpo report --live` in a process of its own, and the address that it prints."""
    words = [sys.executable, "-m", "egpo", "report", "--live", *map(str, words)]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        yield process, process.stdout.readline().partition(" ")[0]
    finally:
        process.kill()
        process.communicate()


def test_a_run_folder_that_is_deleted_ends_it_with_one_line(run):
    with command(run, "--port", "0") as (process, address):
        assert get(address)[0] == 200
        shutil.rmtree(run)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 2
        assert len(err.strip().splitlines()) == 2  # the second after "reading RUN ..."
        assert "deleted while it was shown" in err


def test_ctrl_c_ends_it_quietly(run):
    with command(run, "--port", "0") as (process, address):
        assert get(address)[0] == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0
        assert re.fullmatch(r"reading \S+ \.\.\.\negpo: notice: stopping; .*\n", err)


def test_the_page_follows_the_run_and_keeps_what_was_chosen(browser, run, address):
    """New steps, a new chart and new rollouts come in; smoothing and the selected response stay."""
    with browser.opened(address) as tab:
        tab.choose("#smoothing", "5")
        tab.click("#response-2")
        MetricStream(RunFolder(run).metrics).append(6, training_metrics(6, 12) | {"val-core/x/acc/mean@1": 0.5})
        write_dump(RunFolder(run).rollouts_of(6), group_records(6))
        assert becomes_true(lambda: "6 of 100" in tab.text("#overview"))
        assert "at step 6" in tab.evaluate("document.querySelector('#charts .plot').getAttribute('aria-label')")
        assert tab.evaluate("document.querySelector('#smoothing').value") == "5"
        assert "sample 3" in tab.text(".reader h3")
        assert tab.evaluate("[...document.querySelector('[aria-label=Step]').options].map((o) => o.value)") == [
            "1",
            "6",
        ]
        assert tab.complaints(own=address) == []


def test_a_page_opened_before_the_first_step(browser, tmp_path):
    run = write_run(tmp_path / "new", steps=0, dumps=())
    (run / "metrics.jsonl").unlink()
    (run / "timings.jsonl").unlink()
    with live_server(LiveReport([run]), port=0) as address, browser.opened(address) as tab:
        assert "No steps recorded yet" in tab.text("#curves")
        stream = MetricStream(RunFolder(run).metrics)
        stream.append(1, training_metrics(1, 12))
        stream.append(2, training_metrics(2, 12))
        assert becomes_true(lambda: tab.count("#charts .curve .line") > 5)
        assert tab.complaints(own=address) == []


def test_a_page_whose_server_has_ended_says_so(browser, run):
    with ExitStack() as server:
        address = server.enter_context(live_server(LiveReport([run]), port=0))
        with browser.opened(address) as tab:
            assert tab.text("#live") == "This page follows the run."
            server.close()
            assert becomes_true(lambda: "does not answer" in tab.text("#live"))
            assert tab.count("#charts .curve .line") > 5
