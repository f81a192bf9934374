"""Episodes in the page: turns, calls, results, the user's words and changes of state, in a real browser."""

import json

import pytest

from egpo.environments import Environment, EnvironmentHost, EpisodeLimits
from egpo.evals.evaluate import Evaluation, Exam, Origin, judge_responses, write_evaluation
from egpo.evals.figures import figures_of
from egpo.evals.responses import Response
from egpo.reports import write_report
from egpo.reports.episode_json import MOST_CHARS, encode_episode
from egpo.reports.response_json import encode_groups
from egpo.rewards.verdict import Verdict
from egpo.runs import RolloutRecord, TurnSpan, token_spans
from egpo.tasks import Problem, load_task
from egpo.tasks.episodes import environment_row
from tests.environments.playing import call, play
from tests.reports.folders import HOSTILE, write_run


class Echo(Environment):
    """Says everything back, and keeps it in its state."""

    def reset(self, **row):
        self.said, self.left = {}, list(HOSTILE[:3])
        return

    def say(self, text: str) -> str:
        """Say.

        Args:
            text: The text.
        """
        self.said[text] = text
        return text

    def user_turn(self):
        return self.left.pop() if self.left else None

    def state(self):
        return dict(self.said)

    def verdict(self, turns):
        return Verdict(1.0, True, "correct")


def thought(text):
    return f"<think>\nwell\n</think>\n\n{text}"


@pytest.fixture(scope="module")
def episodes():
    """A gold trajectory of the toolbox, one with faults, and one with hostile text everywhere."""
    task = load_task("toolbox", train=8, test=2, max_requests=2, min_requests=2)
    problem = task.problems("train")[0]
    row, gold = environment_row(problem), task.gold_turns(problem)
    host = EnvironmentHost("toolbox")
    faults = [thought(call("nothing", at=1)), "<tool_call>", *gold]
    hostile = [call("say", text=text) for text in HOSTILE] + [f"{text} \U0001f389" for text in HOSTILE]
    echo = {"prompt": [{"role": "user", "content": HOSTILE[1]}]}
    return [
        play(host, row, gold),
        play(host, row, faults),
        play(EnvironmentHost(Echo), echo, hostile, EpisodeLimits(turns=20)),
    ]


def record(episode, sample, step=1):
    """The rollout of an episode as an engine writes it: every third character of a turn starts a token."""
    tokens, turns, names = [], [], []
    for turn in episode.turns:
        cut = [turn.text[start : start + 3] for start in range(0, len(turn.text), 3)] + [""]
        turns.append(TurnSpan(len(tokens), len(tokens) + len(cut), {"thinking": 0.5, "answer": 0.25}))
        names += ["thinking"] * (len(cut) // 2) + ["answer"] * (len(cut) - len(cut) // 2)
        tokens += cut
    return RolloutRecord(
        input="What is to be done?", output="\n\n".join(turn.text for turn in episode.turns), gts="", step=step,
        score=episode.verdict.reward, acc=episode.verdict.correct, reason=episode.verdict.reason, problem="problem 1",
        sample=sample, advantage=0.5, tokens=tokens, token_entropy=[0.1 * (at % 9) for at in range(len(tokens))],
        token_segment=token_spans(names), episode=json.loads(json.dumps(episode.stored())), turns=tuple(turns),
    )  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory, episodes):
    place = tmp_path_factory.mktemp("runs") / "toolbox"
    run = write_run(place, dumps=(1,), records=[record(one, at) for at, one in enumerate(episodes)])
    problem = Problem("problem 1", ({"role": "user", "content": "q"},), "")
    responses = [Response(0, at, "q", "t", episode=one) for at, one in enumerate(episodes)]
    samples = judge_responses(None, [problem], responses, "toolbox")
    evaluation = Evaluation("model", Exam("toolbox"), figures_of(samples), samples, 0, "digest")
    write_evaluation(run / "evals", "toolbox", evaluation, Origin("model", 1))
    return write_report([run])


@pytest.fixture
def tab(browser, page):
    with browser.opened(page) as tab:
        yield tab
        assert tab.complaints() == []


def texts(tab, selector):
    return tab.evaluate(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")


def test_turns_calls_results_and_changes_are_shown(tab, episodes):
    gold = episodes[0]
    assert texts(tab, ".turn-name")[0].startswith("Turn 1")
    assert tab.count(".turn") == len(gold.turns)
    calls = [one for turn in gold.turns for one in turn.calls]
    assert texts(tab, ".call b") == [one.name for one in calls]
    assert [json.loads(text) for text in texts(tab, ".call code")] == [dict(one.arguments) for one in calls]
    assert texts(tab, ".call .result") == [f"→ {one.result}" for one in calls]
    assert texts(tab, ".by-user .text") == [turn.user for turn in gold.turns if turn.user]
    changes = [path for turn in gold.turns for path in turn.changes]
    assert changes
    assert texts(tab, ".change code") == changes
    shown = ["".join(texts(tab, f".turn:nth-of-type({at + 1}) .token")) for at in range(len(gold.turns))]
    assert shown == [turn.text for turn in gold.turns]
    facts = tab.text(".verdict")
    assert "ending\nfinished" in facts
    assert f"turns\n{len(gold.turns)}" in facts
    assert "entropy, thinking 0.50 nats" in texts(tab, ".turn-name")[0]


def test_faults_are_named_where_they_happened(tab, episodes):
    tab.click("#response-1")
    assert texts(tab, ".fault") == [" unknown_tool"]
    assert "unclosed_call" in texts(tab, ".turn-name")[1]
    assert tab.count(".with-fault") == 1
    assert texts(tab, ".by-tool .text") == [episodes[1].turns[1].messages[0]["content"]]
    assert "faults\nunclosed_call 1, unknown_tool 1" in tab.text(".verdict")


def test_hostile_text_is_shown_and_does_nothing(tab, episodes):
    tab.click("#response-2")
    assert tab.count(".turn") == len(episodes[2].turns)
    results = texts(tab, ".call .result")
    assert results[0] == f"→ {HOSTILE[0]}"
    assert results[2] == f"→ {HOSTILE[2]}"
    assert tab.evaluate("window.pwned") is None
    assert tab.count("#responses img, #responses script") == 0
    assert texts(tab, ".change code")[0] == HOSTILE[0]
    assert texts(tab, ".by-user .text")[0] == HOSTILE[2]


def test_tokens_are_read_across_turns(tab):
    first = tab.count(".turn:nth-of-type(1) .token")
    tab.point_at(".turn:nth-of-type(2) .token")
    assert f"token {first + 1} of" in tab.text("#tooltip")


def test_an_evaluation_shows_the_same_without_tokens(tab, episodes):
    tab.choose("select[aria-label=Source]", "1")
    assert tab.count(".token") == 0
    assert tab.count(".turn") == len(episodes[0].turns)
    assert texts(tab, ".turn > .segment .text") == [turn.text for turn in episodes[0].turns]
    assert texts(tab, ".call b") == [one.name for turn in episodes[0].turns for one in turn.calls]


def test_results_and_changes_are_searched(tab):
    tab.evaluate("document.querySelector('input[type=search]').value = 'there is no tool nothing'")
    tab.evaluate("document.querySelector('input[type=search]').dispatchEvent(new Event('input'))")
    assert tab.count(".option") == 1


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (390, False)])
def test_it_fits_any_width(browser, page, tmp_path, width, dark):
    with browser.opened(page, width=width, dark=dark) as tab:
        tab.click("#response-1")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.click("#response-2")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        tab.screenshot(tmp_path / "page.png")


def test_long_results_are_cut_and_foreign_values_left_out():
    turn = {"text": "a", "calls": [{"name": "f", "arguments": {}, "result": "x" * 9_000}, 3, {}], "changes": {"p": 1}}
    found = encode_episode({"turns": [turn, None, {"text": 3, "messages": "no"}], "reasons": [1], "ending": 2})
    assert len(found["turns"][0]["calls"][0][2]) < MOST_CHARS + 60
    assert found["turns"][0]["calls"][1:] == [["", "{}", "", ""]] * 2
    assert [turn["length"] for turn in found["turns"]] == [1, 0, 0]
    assert (found["faults"], found["ending"], found["text"]) == ({}, "", "a")


def test_the_text_of_an_episode_is_cut_into_its_turns_as_the_script_cuts_it(episodes):
    for at, episode in enumerate(episodes):
        (response,) = encode_groups([record(episode, at)])[0]["responses"]
        units, start = response["text"].encode("utf-16-le", "surrogatepass"), 0
        for found, turn in zip(response["turns"], episode.turns, strict=True):
            piece = units[2 * start : 2 * (start + found["length"])].decode("utf-16-le", "surrogatepass")
            assert piece == turn.text
            start += found["length"]
        assert sum(response["lengths"]) == start
