"""One call for every reward, with values as hosts hand them over."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egpo.errors import InputError
from egpo.rewards import DATA_SOURCES, REWARDS, reasons_of, score
from egpo.rewards.batch import BATCH_REASONS
from egpo.rewards.plain_values import MAX_DEPTH, plain
from egpo.tasks import load_task

CALLS = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
THOUGHT = "<think>so</think>\n\n"
PUZZLE = {"numbers": [3, 5, 7], "target": 22}
SOLVED = f"{THOUGHT}<answer>3 * 5 + 7</answer>"
TRUTHS = {"tool_calls": CALLS, "countdown": json.dumps(PUZZLE), "gsm8k": "18", "math": "18", "code": '{"assert": "x"}'}
TEXT_REWARDS = [(source, kind) for source, kind in DATA_SOURCES.items() if kind not in ("code", "hybrid")]


@pytest.mark.parametrize("name", ["countdown", "gsm8k", "function_calling", "mixed", "code"])
def test_a_row_that_a_task_writes_scores_as_the_task_judges(name):
    task = load_task(name, train=4, test=2)
    source = task.generated_data_source
    for problem in task.problems("train"):
        for text in (task.gold(problem), "nothing of the kind"):
            assert score(source, text, problem.ground_truth, dict(problem.extra)) == task.judge(problem, text)


@pytest.mark.parametrize(("source", "kind"), TEXT_REWARDS)
@given(text=st.text())
def test_a_verdict_has_a_documented_reason_and_text_never_raises(source, kind, text):
    verdict = score(source, text, TRUTHS[kind])
    assert verdict.reason in reasons_of(source)
    assert verdict.correct == (verdict.reason == "correct")


@pytest.mark.parametrize("source", ["", "gsm8", "openai/GSM8K", "hybrid"])
def test_an_unknown_data_source_is_told_the_nearest(source):
    with pytest.raises(InputError, match=r"unknown data source .*(did you mean|choose from)"):
        score(source, "", "18")


@pytest.mark.parametrize(
    "wrap",
    [
        str,
        str.encode,
        np.str_,
        np.array,
        lambda text: np.array(text, dtype=object),
        lambda text: np.array([text], dtype=object),
        lambda text: [text],
        lambda text: np.array([[text]]),
        lambda text: [np.array(text.encode())],
    ],
)
def test_text_comes_in_many_wrappings(wrap):
    assert score(wrap("gsm8k"), wrap("#### 18"), wrap("18")).correct
    assert score(wrap("countdown"), wrap(SOLVED), wrap(json.dumps(PUZZLE))).correct
    assert score(wrap("math"), wrap(r"\boxed{18}"), wrap("18")).correct
    assert score(wrap("bfcl"), wrap(CALLS), wrap(CALLS), {"mode": wrap("plain")}).correct


@pytest.mark.parametrize("number", [18, 18.0, np.int64(18), np.float32(18), np.array(18), torch.tensor(18), [18]])
def test_a_number_comes_in_many_wrappings(number):
    assert score("gsm8k", "#### 18", number).correct
    assert not score("gsm8k", "#### 19", number).correct


@pytest.mark.parametrize(
    "truth",
    [
        PUZZLE,
        {"nums": [3, 5, 7], "target": 22},
        {"numbers": np.array([3, 5, 7]), "target": np.int64(22)},
        {"numbers": torch.tensor([3.0, 5.0, 7.0]), "target": 22.0},
        np.array(PUZZLE, dtype=object),
        {"numbers": np.array([np.array(3), torch.tensor(5), 7], dtype=object), "target": [22][0]},
    ],
)
def test_a_countdown_puzzle_comes_in_many_wrappings(truth):
    assert score("countdown", SOLVED, truth).reward == 1.0


@pytest.mark.parametrize(
    "truth", ["", "{", "[3, 5]", "{}", None, 5, {"numbers": "35", "target": 8}, {"numbers": [3.5], "target": 1}]
)
def test_what_is_no_puzzle_is_the_users_mistake(truth):
    with pytest.raises(InputError, match="countdown ground truth"):
        score("countdown", SOLVED, truth)


@pytest.mark.parametrize("source", ["gsm8k", "math", "code", "countdown"])
@pytest.mark.parametrize("truth", [None, float("nan"), [], {}])
def test_a_missing_ground_truth_is_an_error_and_not_a_zero(source, truth):
    with pytest.raises(InputError):
        score(source, "#### 18\n```python\n1\n```", truth)


def test_settings_of_a_row_come_from_extra_info():
    assert score("function_calling", CALLS, CALLS).reason == "no_thinking"
    assert score("function_calling", CALLS, CALLS, {"mode": "plain"}).correct
    assert score("function_calling", CALLS, CALLS, '{"mode": "plain"}').correct
    assert score("function_calling", CALLS, CALLS, np.array({"mode": np.array("plain")}, dtype=object)).correct
    assert score("gsm8k", "#### 18", "18", {"mode": "shaped"}).reward == pytest.approx(1.1)
    assert score("countdown", SOLVED.replace(THOUGHT, ""), PUZZLE, {"mode": "binary"}).reward == 1.0
    assert score("gsm8k", "#### 18", "18", {"mode": None}).reward == 1.0
    assert score("gsm8k", "#### 18", "18", {"mode": np.array(np.nan, dtype="f4"), "num_turns": None}).reward == 1.0
    for no_mode in (3, ["plain", "shaped"], {}):
        with pytest.raises(InputError, match=r"extra_info\.mode"):
            score("function_calling", CALLS, CALLS, {"mode": no_mode})
    with pytest.raises(InputError, match="did you mean `plain`"):
        score("function_calling", CALLS, CALLS, {"mode": "plian"})


@pytest.mark.parametrize("tags", [("[", "]"), ["[", "]"], '["[", "]"]', np.array(["[", "]"])])
def test_tags_of_a_row_are_a_pair(tags):
    extra = {"tags": tags}
    assert score("countdown", "[so]<answer>3 * 5 + 7</answer>", PUZZLE, extra).parts["thinking"] > 0
    assert score("function_calling", f"[so]{CALLS}", CALLS, extra).correct
    for no_pair in (["<think>"], ["", "]"], ["[", "[["], [1, 2], 3, "{}"):
        with pytest.raises(InputError, match="pair of tags"):
            score("countdown", SOLVED, PUZZLE, {"tags": no_pair})


def test_tools_refine_the_reason_and_an_empty_list_says_nothing():
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}]
    asked = CALLS.replace('"a": 1', '"b": 1')
    for form in (tools, json.dumps(tools), np.array(tools, dtype=object)):
        assert score("bfcl", asked, CALLS, {"mode": "plain", "tools": form}).reason == "unknown_argument"
    for nothing in ("[]", [], "", None):
        assert score("bfcl", asked, CALLS, {"mode": "plain", "tools": nothing}).reason == "wrong_arguments"


KEYS = ["numbers", "target", "name", "arguments", "assert", "inputs", "outputs", "mode", "tools", "tags", "ability"]
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=12), st.binary(max_size=6),
    st.sampled_from(["math", "code", "plain", "18", "{}", CALLS, json.dumps(PUZZLE), '{"assert": "x"}']),
    st.sampled_from([np.array(3), np.float32("nan"), object()]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner), max_leaves=8
)


@pytest.mark.parametrize("source", sorted(DATA_SOURCES))
@settings(max_examples=60)
@given(truth=VALUES, extra=st.one_of(st.none(), VALUES, st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3)))
def test_whatever_stands_in_a_row_is_judged_or_refused(source, truth, extra):
    with suppress(InputError):
        assert score(source, "#### 18", truth, extra).reason in reasons_of(source)


def test_a_response_that_is_no_text_is_an_error():
    for response in (None, 3, ["a", "b"], {"a": 1}):
        with pytest.raises(InputError, match="solution_str"):
            score("gsm8k", response, "18")


def test_extra_info_that_is_no_mapping_is_an_error():
    for extra in ("[1]", "{", 3, [1, 2]):
        with pytest.raises(InputError, match="extra_info"):
            score("gsm8k", "#### 18", "18", extra)
    for nothing in (None, {}, "", "{}", [None]):
        assert score("gsm8k", "#### 18", "18", nothing).correct


def test_plain_values():
    nested = torch.nested.nested_tensor([torch.tensor([1, 2]), torch.tensor([3])], layout=torch.jagged)
    value = {b"k": (np.int64(1), torch.tensor([[2]]), nested, memoryview(b"x"), {"s"}), "none": None}
    assert plain(value) == {"k": [1, [[2]], [[1, 2], [3]], "x", ["s"]], "none": None}
    deep = []
    for _ in range(MAX_DEPTH + 2):
        deep = [deep]
    with pytest.raises(InputError, match="nested deeper"):
        plain(deep)


def test_rewards_are_light():
    heavy = {"torch", "numpy", "verl", "rich", "pyarrow"}
    code = "import sys, egpo.rewards, egpo.verl.reward; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())


def test_the_page_lists_every_data_source_and_every_reason():
    page = (Path(__file__).resolve().parents[2] / "docs/rewards/README.md").read_text(encoding="utf-8")
    rows = {
        tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in page.splitlines() if line[:3] == "| `"
    }
    for source, kind in DATA_SOURCES.items():
        assert any(f"`{source}`" in row[0] and f"`{kind}`" == row[1].strip() for row in rows if len(row) > 1), source
    expected = {
        (f"`{kind}`", f"`{name}`", text)
        for kind, k in REWARDS.items()
        if kind != "hybrid"
        for name, text in k.reasons.items()
    }
    expected |= {("any", f"`{name}`", text) for name, text in BATCH_REASONS.items()}
    listed = {
        tuple(c.strip() for c in line.strip("| ").split(" | ")) for line in page.splitlines() if line.count(" | ") == 2
    }
    assert expected <= listed, sorted(expected - listed)


def test_a_mode_that_the_reward_does_not_know_is_an_error_in_every_kind():
    texts = {"tool_calls": CALLS, "countdown": SOLVED, "gsm8k": "#### 18", "math": r"\boxed{18}", "code": "none"}
    for kind, truth in TRUTHS.items():
        with pytest.raises(InputError, match="unknown mode `bogus`"):
            score("function_calling" if kind == "tool_calls" else kind, texts[kind], truth, {"mode": "bogus"})
        for mode in REWARDS[kind].modes:
            score("function_calling" if kind == "tool_calls" else kind, texts[kind], truth, {"mode": mode})
    assert score("math", r"\boxed{18}", "18", {"mode": "binary"}).correct


def test_tags_hold_for_every_kind():
    extra = {"tags": ["[", "]"]}
    assert score("gsm8k", "[#### 7", "7", extra).reason == "unclosed_thinking"
    assert score("math", r"[\boxed{7}]\boxed{18}", "18", extra).correct
    for kind in ("gsm8k", "math"):
        with pytest.raises(InputError, match="pair of tags"):
            score(kind, "", "18", {"tags": ["["]})


def test_what_else_stands_in_extra_info_is_not_looked_at():
    assert score("gsm8k", "#### 18", "18", {"mod": "shaped", "split": "train", "tools": "not JSON"}).reward == 1.0
