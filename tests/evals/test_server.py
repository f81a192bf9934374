"""Evaluation of served models, against a real server that answers, errs, stalls, babbles and dies."""

import json
import threading
from itertools import count

import pytest

from egpo.errors import EgpoError, InputError
from egpo.evals.evaluate import Exam, evaluate, load_exam
from egpo.evals.responses import Sampling
from egpo.evals.server import ServedModel, Server
from egpo.evals.server_requests import AnswerCache, RetryPolicy
from tests.evals.served import completion, served

QUICK = RetryPolicy(attempts=3, timeout_s=20, first_wait_s=0.01, longest_wait_s=0.02)
TASK = "tests.evals.sum_task:Sums"


def exam(n=2, count=6, **sampling):
    return load_exam(Exam(TASK, {"count": count}, sampling=Sampling(n=n, **sampling), ks=(1,)))


@pytest.fixture
def ask(tmp_path):
    """Evaluates the server's model, with one cache a test."""

    def call(server, asked=None, retries=QUICK, concurrency=4, **settings):
        watched = []
        with AnswerCache.open(tmp_path / "answers.jsonl") as cache:
            model = ServedModel(Server.at(server.url, retries=retries, concurrency=concurrency, **settings), "m", cache)
            found = evaluate(model, asked or exam(), lambda *place: watched.append(place))
        assert watched[-1][1] == found.figures.num_responses
        return found

    return call


def right(body, attempt):
    return 200, completion(str(int(body["messages"][-1]["content"].split()[0]) + 1))


def test_answers_are_judged_and_their_entropy_is_unknown(ask):
    with served(right) as server:
        found = ask(server, exam(temperature=0.5, top_p=0.9, max_tokens=33), api_key="secret")
    figures = found.figures
    assert (figures.accuracy.value, figures.num_responses, figures.num_failed) == (1.0, 12, 0)
    assert figures.entropy == {}
    assert figures.length.value == 7
    assert figures.truncated_frac == 0
    sent = server.bodies[0]
    assert (sent["model"], sent["temperature"], sent["top_p"], sent["max_tokens"]) == ("m", 0.5, 0.9, 33)
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert len({body["seed"] for body in server.bodies}) == 12
    assert [(sample.problem, sample.sample) for sample in found.samples][:3] == [
        ("test 0", 0),
        ("test 0", 1),
        ("test 1", 0),
    ]


def test_questions_are_under_way_together_and_not_too_many(ask):
    together = threading.Barrier(3, timeout=20)

    def wait_for_two_others(body, attempt):
        together.wait()
        return right(body, attempt)

    with served(wait_for_two_others) as server:
        ask(server, concurrency=3)
    assert server.most_at_once == 3


def test_nothing_is_asked_twice(ask):
    with served(right) as server:
        first = ask(server)
        again = ask(server)
        assert len(server.bodies) == 12
        assert again == first
        ask(server, exam(n=3))
        assert len(server.bodies) == 18
        ask(server, exam(temperature=0.3))
        assert len(server.bodies) == 30


def test_a_question_that_meets_an_error_is_asked_again(ask):
    refusals = {0: (500, b"oops"), 1: (429, {"error": "slow down"})}
    with served(lambda body, attempt: refusals.get(attempt) or right(body, attempt)) as server:
        found = ask(server)
    assert found.figures.accuracy.value == 1.0
    assert found.figures.num_failed == 0
    assert len(server.bodies) == 36


GARBAGE = {
    "html": b"<html>Bad gateway</html>",
    "deep": b"[" * 100_000,
    "no choices": {"choices": []},
    "null text": completion(None),
    "numbers": {"choices": [{"message": {"content": 5}}]},
    "list": [1, 2],
    "not utf-8": b"\xff\xfe{}",
    "nothing": b"",
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_a_failure_and_no_wrong_answer(ask, garbage):
    def answer(body, attempt):
        return (200, garbage) if body["messages"][-1]["content"] == "2 + 1" else right(body, attempt)

    with served(answer) as server:
        found = ask(server)
        assert found.figures.failures == {"server_garbage": 2}
        assert found.figures.accuracy.value == 1.0
        assert found.figures.accuracy.num_problems == 5
        server.answer = right
        mended = ask(server)
    assert mended.figures.num_failed == 0
    assert mended.figures.accuracy.num_problems == 6


def test_a_stalled_question_fails_alone(ask):
    def answer(body, attempt):
        return None if body["messages"][-1]["content"] == "2 + 1" else right(body, attempt)

    with served(answer) as server:
        found = ask(server, retries=RetryPolicy(timeout_s=2, first_wait_s=0.01))
    assert found.figures.failures == {"server_timeout": 2}
    assert found.figures.accuracy.num_problems == 5


def test_a_question_that_breaks_the_connection_fails_alone(ask):
    def answer(body, attempt):
        return None if body["messages"][-1]["content"] == "2 + 1" else right(body, attempt)

    with served(answer) as server:
        server.released.set()  # nothing is held back: the connection ends without a word
        found = ask(server)
    assert found.figures.failures == {"server_broke_off": 2}
    assert found.figures.accuracy.num_problems == 5


def test_a_refused_question_fails_alone_and_is_not_repeated(ask):
    def answer(body, attempt):
        return (400, b"too long") if body["messages"][-1]["content"] == "2 + 1" else right(body, attempt)

    with served(answer) as server:
        found = ask(server)
    assert found.figures.failures == {"server_refused": 2}
    assert len(server.bodies) == 12


def test_a_server_that_only_errs_is_given_up_with_its_words(ask):
    with served(lambda body, attempt: (500, b"out of memory")) as server:
        with pytest.raises(EgpoError, match=r"stopped after 0 of 60 responses.*out of memory"):
            ask(server, exam(n=10))
        assert len(server.bodies) <= 3 * (8 + 4)


def test_a_server_that_refuses_everything_is_quoted(ask):
    refused = pytest.raises(EgpoError, match=r"stopped after 0 of 12 responses.*no such thing")
    with served(lambda body, attempt: (400, b"no such thing")) as server, refused:
        ask(server)


def test_a_server_that_dies_loses_nothing_and_the_same_command_goes_on(ask, tmp_path):
    numbers = count()

    def answer(body, attempt):
        if next(numbers) == 5:
            server.die()
        return right(body, attempt)

    with served(answer) as server:
        with pytest.raises(EgpoError, match=r"stopped after \d+ of 12 responses") as raised:
            ask(server, concurrency=1)
        assert "run the same command again" in str(raised.value)
        kept = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
        assert len(kept) >= 5
        port = server.http.server_address[1]
    with served(right, port) as server:
        found = ask(server)
        assert len(server.bodies) == 12 - len(kept)
    assert found.figures.accuracy.value == 1.0


def test_no_server_at_all(ask):
    with served(right) as server:
        server.http.socket.close()
        with pytest.raises(EgpoError, match=r"stopped after 0 of 12 responses \(no connection"):
            ask(server)
        with pytest.raises(InputError, match="check that the server is running"):
            Server.at(server.url).only_model()


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_name_ends_at_once(ask, status):
    with served(lambda body, attempt: (status, b"unknown model")) as server:
        with pytest.raises(InputError, match=rf"{status} 'unknown model'.*--url"):
            ask(server, concurrency=1)
        assert len(server.bodies) == 1


def test_thinking_that_the_server_took_out_is_put_back(ask):
    whole = completion("7", reasoning_content="three and four")
    cut = completion(None, reasoning="three and")
    cut["choices"][0]["finish_reason"] = "length"
    with served(lambda body, attempt: (200, whole if body["messages"][-1]["content"] == "0 + 1" else cut)) as server:
        samples = ask(server, exam(n=1, count=2)).samples
    assert samples[0].output == "<think>\nthree and four</think>\n\n7"
    assert (samples[1].output, samples[1].finished) == ("<think>\nthree and", False)


def test_a_lone_surrogate_goes_through(ask):
    with served(lambda body, attempt: (200, b'{"choices": [{"message": {"content": "\\ud800"}}]}')) as server:
        first, again = ask(server), ask(server)
    assert first.samples[0].output == "\ud800"
    assert first.samples == again.samples
    assert first.figures.truncated_frac is None
    assert first.figures.length is None


def test_the_model_is_asked_for_when_there_is_one():
    with served(right) as server:
        assert Server.at(f"{server.url}/v1/").only_model() == "tiny"
        server.models = ["a", "b"]
        with pytest.raises(InputError, match="the server lists 2 models instead of one; name one in the command: a, b"):
            Server.at(server.url).only_model()


@pytest.mark.parametrize("url", ["localhost:8000", "http://", "http://host:port", "ftp://host", ""])
def test_what_is_no_address(url):
    with pytest.raises(InputError, match="is not an address"):
        Server.at(url)


@pytest.mark.parametrize("url", ["http://me:secret@host:8000/v1", "https://secret@host", "http://host/v1?key=secret"])
def test_a_secret_in_the_address_is_refused_and_not_shown(url):
    with pytest.raises(InputError, match="--api-key-env") as caught:
        Server.at(url)
    assert "secret" not in str(caught.value)


def test_waits_grow_with_jitter_and_heed_the_server():
    retries = RetryPolicy(first_wait_s=1, longest_wait_s=8)
    waits = [[retries.wait_s(attempt) for _ in range(200)] for attempt in range(6)]
    for attempt, found in enumerate(waits):
        longest = min(8, 2**attempt)
        assert longest / 2 <= min(found) < max(found) <= longest
    assert retries.wait_s(0, asked_for_s=5) == 5
    assert retries.wait_s(0, asked_for_s=500) == 8


def test_a_cut_last_line_of_the_cache_is_forgotten(ask, tmp_path):
    with served(right) as server:
        ask(server)
        path = tmp_path / "answers.jsonl"
        path.write_bytes(path.read_bytes()[:-9])
        ask(server)
        assert len(server.bodies) == 13
    assert len([json.loads(line) for line in path.read_text().splitlines()]) == 12


def test_a_damaged_cache_names_its_line(ask, tmp_path):
    (tmp_path / "answers.jsonl").write_text('{"key": "a", "text": "b"}\n{"key": "a"}\n')
    with served(right) as server, pytest.raises(InputError, match=r"answers.jsonl, line 2"):
        ask(server)


def test_two_processes_do_not_share_a_cache(tmp_path):
    with (
        AnswerCache.open(tmp_path / "answers.jsonl"),
        pytest.raises(InputError, match="another process"),
        AnswerCache.open(tmp_path / "answers.jsonl"),
    ):
        pass
