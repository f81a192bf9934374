"""Episodes of outside classes: TRL's shapes unchanged, faults of the model, failures of environments, isolation."""

import gc
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egpo.environments import (
    Environment,
    EnvironmentFailedError,
    EnvironmentHost,
    Episode,
    EpisodeLimits,
    EpisodeRecord,
    EpisodeThreads,
    load_environment,
    replay,
)
from egpo.environments.episodes import ENDINGS, MODEL_FAULTS, seeded_row
from egpo.environments.protocol import FAULT_REASONS, tool_names
from egpo.environments.sessions import LocalSession
from egpo.errors import EgpoError, InputError
from egpo.rewards.tool_calls.judge import REASONS
from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem
from egpo.tasks.episodes import _HOSTS, environment_of, environment_row, host_of
from tests.environments.playing import call, play
from tests.waiting import all_end

HERE = "tests.environments.trl_classes"
PROMPT = [{"role": "user", "content": "Go."}]
ROW = {"prompt": PROMPT}
SHORT = EpisodeLimits(call_s=1.0)
PIECES = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "add", "arguments": {"number": 1}}', "\n",
    "[add(number=2)]", '<tool_call>{"name": "add", "arguments": {"number": 0}}</tool_call>', '{"name"',
    "add(number=1)", "\ud800", "\0",
    '<tool_call>{"name": "end", "arguments": {}}</tool_call>', "[TOOL_CALLS]", "é", '{"number": 1e999}',
)  # fmt: skip


@pytest.fixture(scope="module")
def guess():
    with EnvironmentHost(f"{HERE}:GuessEnv", num_workers=1) as host:
        yield host


@pytest.fixture(scope="module")
def misbehaving():
    with EnvironmentHost(f"{HERE}:Misbehaving", num_workers=2) as host:
        yield host


def test_a_class_of_trl_runs_unchanged(guess):
    episode = Episode(guess, {**ROW, "word": "milk"})
    start = episode.start()
    assert start.messages == ({"role": "user", "content": "Go.\nThe word has 4 letters."},)
    assert [tool["function"]["name"] for tool in start.tools] == ["guess"]
    assert episode.assistant(call("guess", word="tea")).messages[0]["content"] == "wrong"
    outcome = episode.assistant(f"<think>\nIt is milk.\n</think>\n\n{call('guess', word='milk', hard=None)}")
    assert outcome.messages == ({"role": "tool", "name": "guess", "content": "right"},)
    assert outcome.goes_on
    # After its end, TRL's examples raise: an observation.
    assert json.loads(episode.assistant(call("guess", word="milk")).messages[0]["content"]) == {"error": "Game over."}
    outcome = episode.assistant("It was milk.")
    assert (outcome.ending, outcome.messages) == ("finished", ())
    record = episode.record()
    assert record.verdict == Verdict(1.0, True, "scored")
    assert record.reasons == {"tool_error": 1}
    assert PROMPT == [{"role": "user", "content": "Go."}], "the row is not changed"


@dataclass
class EqualTask:
    """A task that is compared by its fields, as users write them: it has no hash."""

    environment: str = f"{HERE}:GuessEnv"


@dataclass(slots=True)
class SlottedTask:
    """A task without room for weak references."""

    environment: str = f"{HERE}:GuessEnv"


@pytest.mark.parametrize("kind", [EqualTask, SlottedTask])
def test_a_task_that_cannot_be_hashed_has_hosts_of_its_own(kind):
    one, other, problem = kind(), kind(), Problem("a", PROMPT, "")
    assert one == other
    assert host_of(one, problem) is host_of(one, problem)
    assert host_of(one, problem) is not host_of(other, problem)


def test_the_workers_of_a_task_end_with_it():
    task = EqualTask()
    host = host_of(task, Problem("a", PROMPT, ""))
    episode = Episode(host, {**ROW, "word": "milk"})
    assert not episode.start().ending
    (worker,) = host._workers
    key = id(task)
    del task
    gc.collect()
    assert key not in _HOSTS
    assert not host._workers
    assert not worker.is_usable


def test_a_reward_function_of_trl_gets_the_instance():
    with EnvironmentHost(f"{HERE}:IncrementEnv", reward=f"{HERE}:counted_at_the_end", num_workers=1) as host:
        row = {**ROW, "target": 5}
        assert play(host, row, [call("increment", step=2), call("increment", step=3.0), "5"]).verdict.correct
        assert play(host, row, [call("increment", step=2), "2"]).verdict == Verdict(0.0, False, "scored")


def test_an_environment_without_a_reward_is_refused():
    with pytest.raises(InputError, match="IncrementEnv` gives no reward; add `get_reward"):
        EnvironmentHost(f"{HERE}:IncrementEnv")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"{HERE}:NoTools", "has no tools"),
        (f"{HERE}:NoReset", "has no method `reset`"),
        (f"{HERE}:GuesEnv", "did you mean `GuessEnv`"),
        ("no_such_module:A", "there is no module `no_such_module`"),
        ("toolbx", "unknown environment `toolbx`"),
        ("missing.py:A", "there is no file `missing.py`"),
    ],
)
def test_an_environment_that_cannot_be_loaded_is_one_line(name, said):
    with pytest.raises(InputError, match=said) as caught:
        load_environment(name)
    assert "\n" not in str(caught.value)


def test_a_tool_without_a_docstring_is_one_line():
    with (
        EnvironmentHost(f"{HERE}:NoDocstring") as host,
        pytest.raises(InputError, match="the tool `act` has no schema"),
    ):
        Episode(host, ROW)


BROKEN = {
    "<tool_call>\n{'name': 'guess'}\n</tool_call>": "malformed_call",
    '<tool_call>\n{"name": "guess", "arguments": {"word": "te': "unclosed_call",
    'guess(word="tea")': "bare_call",
    '<think>\nI wonder... {"name"': "thinking_not_closed",
    '[guess(word="tea")] as you see': "text_after_list",
    call("guess", word="tea") * 9: "too_many_calls",
}


@pytest.mark.parametrize("text", BROKEN, ids=list(BROKEN.values()))
def test_a_text_that_cannot_be_run_is_an_observation_and_a_reason(guess, text):
    episode = Episode(guess, ROW)
    episode.start()
    outcome = episode.assistant(text)
    assert outcome.goes_on
    assert outcome.turn.fault == BROKEN[text]
    assert outcome.turn.calls == ()
    assert [message["role"] for message in outcome.messages] == ["tool"]
    assert json.loads(outcome.messages[0]["content"]) == {"error": MODEL_FAULTS[BROKEN[text]]}
    assert episode.reasons == {BROKEN[text]: 1}
    episode.stop()


def test_a_text_that_was_cut_off_runs_nothing(guess):
    episode = Episode(guess, ROW)
    episode.start()
    outcome = episode.assistant(call("guess", word="tea") + "\nand", cut_off=True)
    assert (outcome.turn.fault, outcome.turn.calls) == ("cut_off", ())
    assert episode.assistant("no closing tag", opened=True).turn.fault == "thinking_not_closed"
    episode.stop("token_limit")
    record = episode.record()
    assert (record.ending, record.verdict.correct) == ("token_limit", False)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (call("shout", word="tea"), "unknown_tool"),
        (call("reset", word="tea"), "unknown_tool"),
        (call("get_reward"), "unknown_tool"),
        (call("_told", word="tea"), "unknown_tool"),
        (call("__init__"), "unknown_tool"),
        (call("guess"), "missing_argument"),
        (call("guess", word="tea", loud=True), "unknown_argument"),
        (call("guess", word=5), "wrong_type"),
        (call("guess", word="tea", hard="yes"), "wrong_type"),
        (call("guess", word=None), "wrong_type"),
    ],
)
def test_a_call_that_does_not_fit_its_tool_is_not_run(guess, text, fault):
    record = play(guess, ROW, [text, "done"])
    assert [one.fault for one in record.turns[0].calls] == [fault]
    assert "error" in json.loads(record.turns[0].calls[0].result)
    assert record.reasons == {fault: 1}
    assert not record.verdict.failed


def test_each_of_several_calls_has_its_own_result(guess):
    record = play(
        guess, {**ROW, "word": "tea"}, [call("guess", word="a") + call("x") + call("guess", word="tea"), "ok"]
    )
    assert [message["content"] for message in record.turns[0].messages] == [
        "wrong",
        '{"error": "there is no tool x"}',
        "right",
    ]
    assert record.verdict.correct


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("reset raises", "environment_reset"),
        ("reset returns a number", "environment_reset"),
        ("reward text", "environment_fault"),
    ],
)
def test_an_environment_that_fails_is_never_a_wrong_answer(misbehaving, mode, reason):
    record = play(misbehaving, {**ROW, "mode": mode}, ["hello"])
    assert (record.ending, record.verdict) == ("failed", Verdict(0.0, False, reason, failed=True))
    assert record.fault
    assert "\n" not in record.fault
    assert reason in FAULT_REASONS


def test_a_reward_that_is_not_a_number_leaves_the_episode_out(misbehaving):
    assert play(misbehaving, {**ROW, "mode": "reward nan"}, ["hello"]).verdict.failed


@pytest.mark.parametrize("what", ["disconnect", "bug", "exit"])
def test_an_exception_that_no_argument_can_repair_is_a_failure(misbehaving, what):
    record = play(misbehaving, ROW, [call("act", what=what), "done"])
    assert (record.ending, record.verdict.reason, record.verdict.failed) == ("failed", "environment_fault", True)
    assert "trl_classes.py, line" in record.fault


def test_an_exception_of_a_tool_is_an_observation_as_in_trl(misbehaving):
    record = play(misbehaving, ROW, [call("act", what="raise"), "done"])
    assert (record.ending, record.verdict.failed) == ("finished", False)
    assert record.turns[0].calls[0].raised.startswith("LookupError at trl_classes.py, line")


@pytest.mark.parametrize(
    ("what", "shown"),
    [
        ("object", "<object object>"),
        ("nan", "nan"),
        ("bytes", "b'\\xff\\x00'"),
        ("surrogate", "\\ud800"),
        ("none", "null"),
        ("nested", '{"a": [1, 2.5, null, true, "é"]}'),
        ("plain", "done plain"),
    ],
)
def test_any_result_becomes_text(misbehaving, what, shown):
    record = play(misbehaving, ROW, [call("act", what=what), "done"])
    assert record.turns[0].calls[0].result == shown
    assert EpisodeRecord.from_json(record.to_json()) == record
    record.to_json().encode()


def test_a_result_of_ten_megabytes_is_cut(misbehaving):
    record = play(misbehaving, ROW, [call("act", what="big"), "done"], EpisodeLimits(result_chars=100))
    result = record.turns[0].calls[0].result
    assert result == "x" * 100 + "\n[cut: 100 of 10,000,000 characters are shown]"
    assert record.reasons == {"result_cut": 1}
    assert record.ending == "finished"


@pytest.mark.parametrize("what", ["hang", "spin", "die"])
def test_a_hang_or_a_crash_is_a_failure_and_blocks_nobody(what):
    """The other sessions of the same worker go on while one hangs; only a crash ends them, as failures."""
    with EnvironmentHost(f"{HERE}:Misbehaving", num_workers=1) as host, EpisodeThreads(4) as threads:
        others = [Episode(host, ROW, EpisodeLimits(call_s=20.0)) for _ in range(2)]
        guilty = Episode(host, ROW, SHORT)
        for episode in (*others, guilty):
            assert threads.start(episode).result(60).ending == ""
        began = time.monotonic()
        waiting = threads.assistant(guilty, call("act", what=what))
        if what != "die":
            for episode in others:
                assert threads.assistant(episode, call("act", what="a")).result(20).messages[0]["content"] == "done a"
        assert waiting.result(20).ending == "failed"
        assert time.monotonic() - began < 15
        reason = "environment_died" if what == "die" else "environment_timeout"
        assert guilty.record().verdict == Verdict(0.0, False, reason, failed=True)
        for episode in others:
            outcome = threads.assistant(episode, "finished").result(20)
            assert outcome.ending == ("failed" if what == "die" else "finished")
        assert play(host, ROW, [call("act", what="b"), "done"]).verdict.reward == 1.0, (
            "a new worker serves new sessions"
        )


def test_a_reset_that_hangs_is_a_failure():
    with EnvironmentHost(f"{HERE}:Misbehaving", num_workers=1) as host:
        record = play(host, {**ROW, "mode": "reset hangs"}, [], EpisodeLimits(reset_s=0.5))
        assert record.verdict == Verdict(0.0, False, "environment_timeout", failed=True)


def test_no_process_is_left_behind():
    host = EnvironmentHost(f"{HERE}:Misbehaving", num_workers=2)
    episodes = [Episode(host, ROW, SHORT) for _ in range(3)]
    for episode in episodes:
        episode.start()
    episodes[0].assistant(call("act", what="hang"))
    pids = [worker.pid for worker in host._workers]
    assert len(pids) == 2
    host.close()
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_rollouts_share_no_state(misbehaving):
    """Interleaved episodes of the same row see only their own calls, and no row is changed for the next."""
    rng = random.Random(0)
    row = {**ROW, "shared": {"list": [1]}}
    episodes = [Episode(misbehaving, row) for _ in range(6)]
    for episode in episodes:
        episode.start()
    made = {episode: [] for episode in episodes}
    for turn in range(18):
        episode = rng.choice([one for one in episodes if len(made[one]) < 6])
        made[episode].append(f"{turn}")
        episode.assistant(call("act", what=f"{turn}"))
    for episode in episodes:
        seen = json.loads(episode.assistant(call("act", what="items")).messages[0]["content"])
        assert seen == [*made[episode], "items"]
        episode.stop()
    assert row == {**ROW, "shared": {"list": [1]}}


class Greedy(Environment):
    """An environment that changes whatever it is given."""

    seen: list | None = None

    def reset(self, **row):
        self._row = row
        row["things"].append("changed")
        row["prompt"][0]["content"] = "changed"

    def take(self, things: list[str]) -> list[str]:
        """
        Take.

        Args:
            things: Some.
        """
        things.append("changed")
        self._things = things
        return self._row["things"]

    def state(self):
        return {"things": self._row["things"]}

    def verdict(self, turns):
        turns[0].calls[0].arguments["things"] = "changed"
        return Verdict(1.0, True, "correct")


def test_nothing_that_an_environment_changes_reaches_another(monkeypatch):
    row = {**ROW, "things": ["mine"], "seed": 1}
    sessions = [LocalSession(Greedy, {}) for _ in range(2)]
    arguments = {"things": ["given"]}
    for session in sessions:
        session.reset(row)
        assert json.loads(session.call("take", arguments).text) == ["mine", "changed"]
    state = sessions[0].state()
    state["things"].append("from outside")
    assert sessions[0].state() == {"things": ["mine", "changed"]}
    assert row == {**ROW, "things": ["mine"], "seed": 1}
    assert arguments == {"things": ["given"]}


def test_the_turn_limit_ends_an_episode_after_its_calls(guess):
    limits = EpisodeLimits(turns=2)
    record = play(guess, {**ROW, "word": "b"}, [call("guess", word="a"), call("guess", word="b"), "x"], limits)
    assert (record.ending, len(record.turns)) == ("turn_limit", 2)
    assert record.verdict.correct, "the last call was run"


def test_an_episode_that_is_over_takes_no_more_texts(guess):
    episode = Episode(guess, ROW)
    with pytest.raises(EgpoError, match="has not been started"):
        episode.assistant("hello")
    episode.start()
    with pytest.raises(EgpoError, match="has not ended"):
        episode.record()
    with pytest.raises(EgpoError, match="only once"):
        episode.start()
    episode.assistant("hello")
    with pytest.raises(EgpoError, match="the episode is over: finished"):
        episode.assistant("hello")


def test_a_record_replays_to_the_same_verdict(guess):
    texts = [call("guess", word="tea"), "guess()", call("shout"), call("guess", word="milk"), "milk"]
    record = EpisodeRecord.from_json(play(guess, {**ROW, "word": "milk"}, texts).to_json())
    again = replay(record)
    assert again.is_same
    assert again.record == record
    changed = json.loads(record.to_json())
    changed["verdict"]["reward"] = 0.5
    changed["turns"][0]["messages"][0]["content"] = "right"
    different = replay(EpisodeRecord.from_json(json.dumps(changed)), guess).differences
    assert [line.split(":")[0] for line in different] == ["verdict", "turn 0, messages"]


def test_a_record_keeps_the_thinking_tags(guess):
    episode = Episode(guess, {**ROW, "word": "tea"}, tags=("<reason>", "</reason>"))
    episode.start()
    episode.assistant(f"<reason>{call('guess', word='a')}</reason>{call('guess', word='tea')}")
    episode.assistant("done")
    record = EpisodeRecord.from_json(episode.record().to_json())
    assert len(record.turns[0].calls) == 1
    assert replay(record, guess).is_same


def test_an_environment_with_randomness_of_its_own_is_not_replayed():
    with EnvironmentHost(f"{HERE}:OwnRandomness") as host:
        assert not host.deterministic
        record = play(host, ROW, ["hello"])
    assert not record.deterministic
    with pytest.raises(InputError, match="not deterministic"):
        replay(record)


def test_the_seed_is_a_function_of_the_row():
    assert seeded_row({"a": 1}) == seeded_row({"a": 1})
    assert seeded_row({"a": 1})["seed"] != seeded_row({"a": 2})["seed"]
    assert seeded_row({"a": 1, "seed": 5})["seed"] == 5
    with pytest.raises(InputError, match="the column `image` has a object, which is not JSON"):
        seeded_row({"image": object()})


def test_results_do_not_depend_on_how_long_tools_take(tmp_path, monkeypatch):
    """The same texts, with random delays in the tools: the same records."""
    (tmp_path / "slow_env.py").write_text(
        "import random, time\n"
        "class Slow:\n"
        "    def reset(self, **row):\n"
        "        self.total = row['seed']\n"
        "    def add(self, number: int) -> int:\n"
        "        '''\n        Add.\n\n        Args:\n            number: It.\n        '''\n"
        "        time.sleep(random.random() / 20)\n"
        "        self.total += number\n"
        "        return self.total\n"
        "    def get_reward(self):\n"
        "        return float(self.total)\n"
    )
    name = f"{tmp_path / 'slow_env.py'}:Slow"
    records = []
    for num_workers in (1, 2):
        with EnvironmentHost(name, num_workers=num_workers) as host, EpisodeThreads(8) as threads:
            episodes = [Episode(host, {**ROW, "seed": at}) for at in range(8)]
            [start.result() for start in [threads.start(episode) for episode in episodes]]
            for turn in range(3):
                steps = [threads.assistant(e, call("add", number=10**turn)) for e in episodes]
                [step.result() for step in steps]
            for episode in episodes:
                episode.stop()
            records.append([episode.record().to_json() for episode in episodes])
    assert records[0] == records[1]
    assert [json.loads(record)["verdict"]["reward"] for record in records[0]] == [111.0 + at for at in range(8)]


def test_modules_are_found_in_the_order_of_the_host(tmp_path, monkeypatch):
    """setuptools puts older copies of other packages at the end of the path: a worker must not find them first."""
    (tmp_path / "last").mkdir()
    (tmp_path / "last" / "colorsys.py").write_text("raise ImportError('not this one')\n")
    (tmp_path / "rainbow.py").write_text(
        "import colorsys\n\n\nclass Rainbow:\n    def reset(self, **row):\n        return 'look'\n\n"
        '    def look(self) -> str:\n        """Look."""\n        return colorsys.__file__\n\n'
        "    def get_reward(self):\n        return 1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "last")])
    with EnvironmentHost("rainbow:Rainbow", num_workers=1) as host:
        episode = Episode(host, {"prompt": [{"role": "user", "content": "a"}]})
        assert not episode.start().ending
        (called,) = episode.assistant(call("look")).turn.calls
    assert called.result.endswith("colorsys.py")
    assert "last" not in called.result


def test_workers_end_with_a_parent_that_is_killed():
    code = (
        "import time\n"
        "from egpo.environments import EnvironmentHost, Episode\n"
        f"host = EnvironmentHost('{HERE}:Misbehaving', num_workers=1)\n"
        "episode = Episode(host, {'prompt': [{'role': 'user', 'content': 'Go.'}]})\n"
        "episode.start()\n"
        "print(host._workers[0].pid, flush=True)\n"
        f"episode.assistant({call('act', what='spin')!r})\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    assert all_end([worker])


@settings(max_examples=150, deadline=None)
@given(texts=st.lists(st.one_of(st.text(), st.sampled_from(PIECES), st.lists(st.sampled_from(PIECES)).map("".join))))
def test_no_text_of_a_model_raises_or_fails_the_environment(texts):
    episode = Episode(EnvironmentHost(Talkative), ROW, EpisodeLimits(turns=6))
    episode.start()
    for text in texts:
        if episode.ending:
            break
        episode.assistant(text, cut_off=len(text) % 5 == 4, opened=len(text) % 3 == 2)
    episode.stop()
    record = episode.record()
    assert record.ending != "failed"
    assert set(record.reasons) <= set(MODEL_FAULTS)
    record.to_json().encode()
    assert EpisodeRecord.from_json(record.to_json()).transcript() == record.transcript()


@pytest.mark.parametrize("values", [{"turns": 0}, {"call_s": 0}, {"call_s": float("nan")}, {"result_chars": -1}])
def test_limits_that_make_no_sense_are_refused(values):
    with pytest.raises(InputError, match=next(iter(values))):
        EpisodeLimits(**values)


def test_every_reason_of_the_call_reader_is_told_to_the_model():
    own = {"cut_off", "too_many_calls", "call_after_end", "tool_error"}
    assert set(MODEL_FAULTS) - own <= set(REASONS)
    assert "failed" in ENDINGS


class Talkative(Environment):
    """Uses every hook: user turns, tools that change, an end of its own, declared errors."""

    tool_errors = (LookupError,)

    def reset(self, **row):
        self._said, self._total = ["And now?", None], 0

    def tool_schemas(self):
        names = ["add"] if len(self._said) == 2 else ["add", "end"]
        properties = {"add": {"number": {"type": "integer"}}, "end": {}}
        return [{"name": name, "parameters": {"type": "object", "properties": properties[name]}} for name in names]

    def call_tool(self, name, arguments):
        if name == "end":
            self.done = True
            return "bye"
        if arguments["number"] == 0:
            raise LookupError("zero")
        if arguments["number"] < 0:
            raise ValueError("negative")
        self._total += arguments["number"]
        return self._total

    def user_turn(self):
        return self._said.pop(0)

    def state(self):
        return {"total": self._total, "said": {"left": len(self._said)}}

    def verdict(self, turns):
        return Verdict(float(self._total), self._total == 3, "correct", parts={"calls": float(len(turns))})


def talkative():
    return EnvironmentHost(Talkative)


def test_hooks_are_not_tools_and_are_used():
    assert tool_names(Talkative) == []
    episode = Episode(talkative(), ROW)
    assert [tool["name"] for tool in episode.start().tools] == ["add"]
    assert episode.assistant(call("end")).turn.calls[0].fault == "unknown_tool"
    assert episode.assistant(call("add", number=0)).turn.calls[0].fault == "tool_error"
    turn = episode.assistant(call("add", number=3)).turn
    assert turn.changes == {"total": (0, 3)}
    outcome = episode.assistant("Done.")
    assert outcome.messages == ({"role": "user", "content": "And now?"},)
    assert outcome.turn.user == "And now?"
    assert [tool["name"] for tool in episode.tools] == ["add", "end"]
    outcome = episode.assistant(call("end") + call("add", number=1))
    assert outcome.ending == "done"
    assert [one.fault for one in outcome.turn.calls] == ["", "call_after_end"]
    assert episode.record().verdict == Verdict(3.0, True, "correct", parts={"calls": 5.0})


def test_an_undeclared_exception_is_the_environments_fault():
    record = play(talkative(), ROW, [call("add", number=-1)])
    assert (record.ending, record.verdict.reason) == ("failed", "environment_fault")
    assert "ValueError: negative" in record.fault


def test_a_task_may_choose_among_environments_by_row():
    """TRL's dict of factories: the column `environment` names one, and is not passed to `reset`."""
    problem = Problem("k", ({"role": "user", "content": "Go."},), "", extra={"environment": "guess", "word": "tea"})
    task = SimpleNamespace(environment={"guess": f"{HERE}:GuessEnv", "act": f"{HERE}:Misbehaving"})
    assert environment_of(task, problem) == f"{HERE}:GuessEnv"
    assert environment_row(problem) == {"prompt": PROMPT, "word": "tea", "ground_truth": ""}
    assert environment_of(SimpleNamespace(), problem) is None
    with pytest.raises(InputError, match="which is not an environment of the task"):
        environment_of(SimpleNamespace(environment={"act": "x:Y"}), problem)


def test_a_fault_survives_pickling():
    import pickle

    fault = pickle.loads(pickle.dumps(EnvironmentFailedError("gone", "environment_died")))
    assert (str(fault), fault.reason) == ("gone", "environment_died")


def test_loading_an_environment_imports_no_engine():
    code = f"import sys; import egpo.environments as e; e.load_environment('{HERE}:GuessEnv'); " + (
        "assert not {'torch', 'transformers'} & set(sys.modules), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
