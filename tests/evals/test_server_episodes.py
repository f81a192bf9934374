"""Episodes of served models, against a real server that calls tools, talks, errs and is strict."""

import json
import threading
from collections import Counter

import pytest

from egpo.environments import EpisodeRecord, replay
from egpo.errors import EgpoError
from egpo.evals.evaluate import Exam, evaluate, load_exam
from egpo.evals.responses import Sampling
from egpo.evals.server import ServedModel, Server
from egpo.evals.server_requests import AnswerCache, RetryPolicy
from egpo.tool_calls.answers import read_answer
from tests.evals.served import completion, served

QUICK = RetryPolicy(attempts=2, timeout_s=20, first_wait_s=0.01, longest_wait_s=0.02)
SETTINGS = {"max_requests": 2, "min_requests": 2, "thinking": False, "train": 8, "test": 8}


def exam(n=1, problems=4, settings=None, **sampling):
    chosen = SETTINGS | (settings or {})
    return load_exam(Exam("toolbox", chosen, num_problems=problems, sampling=Sampling(n=n, **sampling), ks=(1,)))


@pytest.fixture
def ask(tmp_path):
    def call(server, paper=None, **settings):
        with AnswerCache.open(tmp_path / "answers.jsonl") as cache:
            model = ServedModel(Server.at(server.url, retries=QUICK, concurrency=4), "m", cache, **settings)
            return evaluate(model, paper or exam())

    return call


class Gold:
    """A server that plays the gold trajectories, as a server with parsers does: calls with ids, and no text.

    It reads from the conversation where it is, and refuses what OpenAI's servers refuse.
    """

    def __init__(self, paper, *, parses=True, strict=True):
        self.parses, self.strict = parses, strict
        self.gold = {problem.messages[-1]["content"]: paper.task.gold_turns(problem) for problem in paper.problems}
        self.ids = Counter()
        self.lock = threading.Lock()

    def __call__(self, body, attempt):
        if self.strict and (fault := protocol_fault(body["messages"])):
            return 400, {"error": {"message": fault}}
        asked = next(message["content"] for message in body["messages"] if message["role"] == "user")
        said = sum(message["role"] == "assistant" for message in body["messages"])
        text = self.gold[asked][said]
        calls = read_answer(text).calls
        if not (calls and self.parses):
            return 200, completion(text)
        with self.lock:
            self.ids["next"] += 1
            number = self.ids["next"]
        told = [
            {"id": f"id-{number}-{place}", "type": "function",
             "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments)) if call.arguments else ""}}
            for place, call in enumerate(calls)
        ]  # fmt: skip
        return 200, completion(None, tool_calls=told)


def protocol_fault(messages):
    """What OpenAI's servers say of a conversation in which calls and tool messages do not fit; "" if they do."""
    waiting = []
    for message in messages:
        if message["role"] == "tool":
            if message.get("tool_call_id") not in waiting:
                return "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            waiting.remove(message["tool_call_id"])
        elif waiting:
            return f"tool_call_ids did not have response messages: {waiting}"
        else:
            waiting = [call["id"] for call in message.get("tool_calls") or []]
    return ""


def test_gold_trajectories_through_a_server_are_all_correct(ask):
    paper = exam(n=2)
    with served(Gold(paper)) as server:
        found = ask(server, paper)
    figures = found.figures
    assert (figures.accuracy.value, figures.num_responses, figures.num_failed) == (1.0, 8, 0)
    assert figures.endings == {"finished": 8}
    assert figures.faults == {}
    assert figures.calls.value >= 2
    assert server.bodies[0]["tools"][0]["type"] == "function"
    for sample in found.samples:
        record = EpisodeRecord.from_stored(sample.episode)
        assert replay(record).is_same
        assert sample.num_tokens == 7 * len(record.turns)


def test_a_server_that_leaves_calls_in_the_text(ask):
    """As one without a parser: they are read as in every other answer."""
    paper = exam()
    with served(Gold(paper, parses=False, strict=False)) as server:
        found = ask(server, paper)
    assert found.figures.accuracy.value == 1.0
    tools = [message for body in server.bodies for message in body["messages"] if message["role"] == "tool"]
    assert tools
    assert all("tool_call_id" in message for message in tools)


def test_a_strict_server_gets_results_of_calls_in_text_as_words_of_the_user(ask):
    paper = exam()
    with served(Gold(paper, parses=False)) as server:
        found = ask(server, paper)
    assert (found.figures.num_failed, found.figures.accuracy.value) == (0, 1.0)
    last = server.bodies[-1]["messages"]
    assert "tool" not in {message["role"] for message in last}


def test_tools_that_are_in_the_prompt_are_not_sent_again(ask):
    paper = exam(settings={"tools": "signatures"})
    with served(lambda body, attempt: (200, completion("no"))) as server:
        ask(server, paper)
    assert "tools" not in server.bodies[0]


def test_a_server_that_answers_without_calls(ask):
    """Each answer is the assistant's turn: the user goes on, then the episode is over, and the verdict is wrong."""
    with served(lambda body, attempt: (200, completion("I cannot."))) as server:
        found = ask(server)
    assert found.figures.accuracy.value == 0
    assert found.figures.num_failed == 0
    assert found.figures.calls.value == 0
    assert found.figures.endings == {"finished": 4}


def calls(ids, name, arguments):
    return [{"id": one, "function": {"name": name, "arguments": arguments}} for one in ids]


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ({"text": "<tool_call>{"}, "unclosed_call"),
        ({"text": None, "tool_calls": calls("a", "nothing", "{}")}, "unknown_tool"),
        ({"text": None, "tool_calls": calls("ab", "f", "{")}, "malformed_call"),
        ({"text": None, "tool_calls": calls("abcdefghi", "f", "{}")}, "too_many_calls"),
    ],
)
def test_faults_of_the_model_are_answered_under_the_rules_of_the_protocol(ask, message, fault):
    """Every call has its tool message, even if none of them was run."""

    def answer(body, attempt):
        if told := protocol_fault(body["messages"]):
            return 400, {"error": {"message": told}}
        return 200, completion(**message)

    with served(answer) as server:
        found = ask(server, exam(max_turns=3, problems=2))
    assert (found.figures.num_failed, found.figures.endings) == (0, {"turn_limit": 2})
    assert found.figures.faults[fault] >= 6
    assert max(len(body["messages"]) for body in server.bodies) >= 5


def test_thinking_that_the_server_took_out_is_put_back_and_goes_back(ask):
    with served(lambda body, attempt: (200, completion("No.", reasoning_content="well"))) as server:
        found = ask(server)
    first = found.samples[0].episode["turns"][0]
    assert first["text"] == "<think>well</think>\n\nNo."
    later = next(body for body in server.bodies if len(body["messages"]) > 2)["messages"]
    assert later[1] == {"role": "assistant", "content": "No.", "reasoning_content": "well"}


def test_an_answer_that_was_cut_off_runs_nothing(ask):
    def cut(body, attempt):
        told = completion('<tool_call>\n{"name": "files", "arguments": {}}\n</tool_call>')
        told["choices"][0]["finish_reason"] = "length"
        return 200, told

    with served(cut) as server:
        found = ask(server, exam(max_turns=2, max_tokens=50, max_turn_tokens=20))
    assert found.figures.faults == {"cut_off": 8}
    assert {body["max_tokens"] for body in server.bodies} == {20}


def test_the_tokens_of_a_whole_episode_are_limited(ask):
    with served(lambda body, attempt: (200, completion("<tool_call>"))) as server:
        found = ask(server, exam(max_tokens=20))
    assert found.figures.endings == {"token_limit": 4}
    assert {body["max_tokens"] for body in server.bodies} == {20, 13, 6}


def test_a_conversation_that_outgrows_the_context_ends_at_the_limit_of_tokens(ask):
    def answer(body, attempt):
        if len(body["messages"]) > 4:
            return 400, {"error": {"message": "This model's maximum context length is 128 tokens."}}
        return 200, completion("<tool_call>")

    with served(answer) as server:
        found = ask(server)
    assert (found.figures.num_failed, found.figures.endings) == (0, {"token_limit": 4})


def test_nothing_is_asked_twice(ask):
    paper = exam(n=2)
    with served(Gold(paper)) as server:
        first = ask(server, paper)
        count = len(server.bodies)
        again = ask(server, paper)
        assert len(server.bodies) == count
    assert again.samples == first.samples


def test_an_evaluation_that_broke_off_goes_on_where_it_was(ask):
    paper = exam()
    gold, num_answers = Gold(paper), Counter()

    def dies(body, attempt):
        num_answers["all"] += 1
        if num_answers["all"] == 7:
            server.die()
            return None
        return gold(body, attempt)

    with served(dies) as server, pytest.raises(EgpoError, match="it continues with the answers in"):
        ask(server, paper)
    port = int(server.url.rpartition(":")[2])
    with served(gold, port) as again:
        found = ask(again, paper)
    assert found.figures.accuracy.value == 1.0
    whole = sum(len(sample.episode["turns"]) for sample in found.samples)
    assert len(again.bodies) < whole


def test_a_turn_without_an_answer_fails_its_episode_and_no_other(ask):
    paper = exam()
    gold, first = Gold(paper), paper.problems[0].messages[-1]["content"]

    def refuses_one(body, attempt):
        asked = next(message["content"] for message in body["messages"] if message["role"] == "user")
        if asked == first and len(body["messages"]) > 2:
            return 422, {"error": "no"}
        return gold(body, attempt)

    with served(refuses_one) as server:
        found = ask(server, paper)
    assert found.figures.failures == {"server_refused": 1}
    assert found.figures.accuracy.value == 1.0
    assert found.figures.accuracy.num_problems == 3


@pytest.mark.parametrize("told", ["f", [3], [{}], [{"function": None}], [{"function": {"name": 1}}], {"function": 1}])
def test_calls_that_are_none_are_the_servers_fault(ask, told):
    answered = served(lambda body, attempt: (200, completion("x", tool_calls=told)))
    with answered as server, pytest.raises(EgpoError, match="`tool_calls` are not calls"):
        ask(server)
