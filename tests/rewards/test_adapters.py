"""The same rewards as verl and TRL call them."""

import json
import math
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from egpo.errors import EgpoError, EgpoWarning, InputError
from egpo.rewards import DATA_SOURCES, REWARDS, Verdict, reasons_of, score, score_many, trl_reward
from egpo.rewards.named import Sample, scorer_named, verdict_of
from egpo.rewards.sandbox import selection
from egpo.rewards.sandbox.tiers import Bubblewrap
from egpo.rewards.scoring import require_visible_tags, vanishing_tags
from egpo.rewards.trl import completion_text
from egpo.verl.reward import compute_score

CALLS = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
PUZZLE = '{"numbers": [3, 5, 7], "target": 22}'
ROWS = [
    ("function_calling", CALLS, CALLS),
    ("countdown", "<answer>3 * 5 + 7</answer>", PUZZLE),
    ("openai/gsm8k", "#### 18", "18"),
    ("math", r"\boxed{7}", "8"),
    ("code", "no program", '{"assert": "assert f()"}'),
]


# verl


@pytest.mark.parametrize(("source", "text", "truth"), ROWS)
def test_verl_gets_the_verdict_as_numbers(source, text, truth):
    told, verdict = compute_score(source, text, truth), score(source, text, truth)
    assert (told["score"], told["acc"], told["failed"]) == (verdict.reward, float(verdict.correct), 0.0)
    assert (told["reason"], told["judged_by"]) == (verdict.reason, source)
    numbers = {key: value for key, value in told.items() if key not in ("reason", "judged_by")}
    assert all(type(value) is float and math.isfinite(value) for value in numbers.values())
    assert {key for key, value in numbers.items() if key.startswith("reason/") and value} == {
        f"reason/{verdict.reason}"
    }


def test_every_response_of_a_mixed_batch_has_the_same_keys():
    """verl takes the keys of the first response for those of all: another set is a KeyError in the middle of a run."""
    told = [compute_score(*row) for row in ROWS]
    assert len({tuple(one) for one in told}) == 1
    assert {key.removeprefix("reason/") for key in told[0] if key.startswith("reason/")} == {
        name for kind in REWARDS.values() for name in kind.reasons
    }
    columns = {key: np.array([one[key] for one in told]) for key in told[0]}
    assert json.dumps({key: column.tolist() for key, column in columns.items()})


def test_the_reasons_can_be_narrowed():
    narrow = compute_score("gsm8k", "#### 18", "18", reasons=["gsm8k"])
    assert [key for key in narrow if key.startswith("reason/")] == [f"reason/{name}" for name in reasons_of("gsm8k")]
    assert compute_score("gsm8k", "#### 18", "18", reasons="gsm8k") == narrow
    assert not any(key.startswith("reason/") for key in compute_score("gsm8k", "#### 18", "18", reasons=[]))
    with pytest.raises(InputError, match="did you mean `gsm8k`"):
        compute_score("gsm8k", "#### 18", "18", reasons=["gsm8"])


def test_verl_calls_by_keyword_with_objects_of_its_own():
    told = compute_score(
        data_source=np.str_("function_calling"),
        solution_str=CALLS,
        ground_truth=np.array(CALLS, dtype=object),
        extra_info={"mode": np.array("plain"), "index": np.int64(3), "num_turns": None, "rollout_reward_scores": {}},
        reward_router_address=None,
        reward_model_tokenizer=object(),
    )
    assert told["acc"] == 1.0


def test_settings_of_the_run_hold_where_the_row_sets_none():
    assert compute_score("function_calling", CALLS, CALLS, mode="plain")["acc"] == 1.0
    for unset in (None, float("nan"), np.array(None), np.array(np.nan)):
        assert compute_score("function_calling", CALLS, CALLS, {"mode": unset}, mode="plain")["acc"] == 1.0
    assert compute_score("function_calling", CALLS, CALLS, {"mode": "strict_think"}, mode="plain")["acc"] == 0.0


def test_a_failure_of_the_checker_is_said_and_counted(tmp_path, monkeypatch):
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexit 9\n")
    (tmp_path / "bwrap").chmod(0o755)
    died = Bubblewrap(executable=str(tmp_path / "bwrap"))
    monkeypatch.setattr("egpo.rewards.code._default_sandbox", lambda: died)
    with pytest.warns(EgpoWarning, match="sandbox_died"):
        told = compute_score("code", "```python\n1\n```", '{"assert": "assert f()"}')
    assert (told["score"], told["failed"], told["reason/sandbox_died"]) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize("source", ["code", "mixed"])
def test_no_sandbox_ends_the_run_and_does_not_score_zeros(source, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("EGPO_SANDBOX", raising=False)
    selection._tried_once.cache_clear()
    for _ in range(2):
        with pytest.raises(EgpoError, match=r"not installed.*apt-get"):
            compute_score(source, "```python\n1\n```", '{"assert": "assert f()"}', {"ability": "code"})
    selection._tried_once.cache_clear()


def test_the_module_loads_without_verl():
    code = "import sys; sys.modules['verl'] = None; import egpo.verl.reward"
    subprocess.run([sys.executable, "-c", code], check=True)


def tokenizer_with(*tags, special):
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<": 2, "[UNK]": 3}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_tokens([AddedToken(tag, special=special, normalized=False) for tag in tags])
    if special:
        words.add_special_tokens([AddedToken(tag, special=True, normalized=False) for tag in tags])
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]")


def test_a_tag_that_is_a_special_token_is_found_before_the_run():
    tags = REWARDS["tool_calls"].tags
    ordinary = tokenizer_with(*tags, special=False)
    assert vanishing_tags(ordinary, tags) == []
    require_visible_tags(ordinary, "function_calling")
    special = tokenizer_with("<think>", "</think>", special=True)
    assert vanishing_tags(special, ("<think>", "</think>")) == ["<think>", "</think>"]
    with pytest.raises(InputError, match=r"`<think>`, `</think>`.*special token"):
        require_visible_tags(special, "gsm8k")


# TRL


def test_trl_gets_a_list_of_floats():
    reward = trl_reward("countdown")
    done = reward(
        prompts=["p", "p", "p"],
        completions=["<answer>3 * 5 + 7</answer>", "<think>x</think><answer>3 * 5 + 7</answer>", "no"],
        completion_ids=[[1], [2], [3]],
        ground_truth=[PUZZLE] * 3,
        trainer_state=object(),
    )
    assert done == [0.9, 1.0, 0.0]
    assert reward.__name__ == "egpo_countdown"
    assert all(type(value) is float for value in done)


@pytest.mark.parametrize(
    "columns",
    [
        {"ground_truth": ["18", "19"]},
        {"reward_model": [{"ground_truth": "18"}, {"ground_truth": "19"}]},
        {"reward_model": ['{"ground_truth": "18"}', '{"ground_truth": "19"}']},
        {"solution": ["#### 18", "#### 19"]},
        {"answer": ["so #### 18", "so #### 19"]},
        {"ground_truth": [None, None], "answer": ["18", "19"]},
    ],
)
def test_trl_finds_the_ground_truth(columns):
    assert trl_reward("gsm8k")(["p"] * 2, ["#### 18"] * 2, [[1]] * 2, **columns) == [1.0, 0.0]


def test_trl_rows_may_say_their_own_source_ability_and_settings():
    done = trl_reward(mode="plain")(
        prompts=[""] * 4,
        completions=[CALLS, CALLS, "#### 18", r"\boxed{5}"],
        completion_ids=None,
        data_source=["function_calling", "function_calling", "gsm8k", "mixed"],
        ground_truth=[CALLS, CALLS, "18", "5"],
        ability=["", None, "", "math"],
        extra_info=[{}, {"mode": "strict_think"}, {"mode": "binary"}, {"ability": "code"}],
    )
    assert done == [1.0, 0.0, 1.0, 1.0]


def test_trl_leaves_out_what_could_not_be_judged(monkeypatch):
    monkeypatch.setattr("egpo.rewards.code._default_sandbox", lambda: None)
    extras, metrics = {}, {}
    done = trl_reward("code")(
        [""] * 2,
        ["```python\n1\n```", "none"],
        ground_truth=['{"assert": "assert f()"}'] * 2,
        log_extra=extras.__setitem__,
        log_metric=metrics.__setitem__,
    )
    assert done == [None, 0.0]
    assert extras == {"reason": ["no_sandbox", "no_code"]}
    assert (metrics["failed"], metrics["accuracy"], metrics["reason/no_code"]) == (0.5, 0.0, 0.5)
    assert {key.removeprefix("reason/") for key in metrics if "/" in key} == set(reasons_of("code"))


def test_trl_without_source_or_truth_is_an_error():
    with pytest.raises(InputError, match="no column `data_source`"):
        trl_reward()(["p"], ["x"], ground_truth=["18"])
    with pytest.raises(InputError, match="no ground truth"):
        trl_reward("gsm8k")(["p"], ["x"])
    assert trl_reward("gsm8k")([], []) == []


@pytest.mark.parametrize(
    ("source", "settings", "what"),
    [
        ("gsm9k", {}, "unknown data source `gsm9k`.*did you mean `gsm8k`"),
        ("gsm8k", {"mod": "shaped"}, "unknown setting `mod`.*did you mean `mode`"),
        ("gsm8k", {"mode": "shapd"}, "unknown mode `shapd`.*did you mean `shaped`"),
        ("gsm8k", {"mode": "plain"}, "unknown mode `plain`"),
        ("math", {"mode": "bogus"}, "unknown mode `bogus`"),
        ("countdown", {"tools": []}, "unknown setting `tools`"),
        ("countdown", {"tags": ["<think>"]}, "pair of tags"),
        (None, {"mode": "bogus"}, "unknown mode `bogus`"),
        (None, {"mdoe": "plain"}, "unknown setting `mdoe`"),
    ],
)
def test_trl_learns_of_a_wrong_setting_when_the_reward_is_made(source, settings, what):
    with pytest.raises(InputError, match=what):
        trl_reward(source, **settings)


def test_trl_settings_for_several_kinds_go_to_those_that_take_them():
    reward = trl_reward(mode="shaped")
    columns = {"data_source": ["gsm8k", "math", "countdown"], "ground_truth": ["18", "18", PUZZLE]}
    assert reward([""] * 3, ["#### 18", r"\boxed{18}", "<answer>3 * 5 + 7</answer>"], **columns) == [1.1, 1.0, 0.9]


@pytest.mark.parametrize("make", [np.array, tuple, lambda values: np.array(values, dtype=object), pd.Series])
def test_trl_columns_may_be_arrays(make):
    columns = {"ground_truth": make(["5", "6"]), "data_source": make(["gsm8k", "gsm8k"])}
    assert trl_reward()([""] * 2, ["#### 5"] * 2, **columns) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("column", "what"),
    [
        (["5"], "`ground_truth` has 1 values for 2 completions"),
        (["5", "6", "7"], "`ground_truth` has 3 values for 2 completions"),
        ("56", "`ground_truth` is not a list: '56'"),
        (5, "`ground_truth` is not a list: 5"),
    ],
)
def test_trl_columns_of_the_wrong_length_are_named(column, what):
    with pytest.raises(InputError, match=what):
        trl_reward("gsm8k")([""] * 2, ["#### 5"] * 2, ground_truth=column)


@pytest.mark.parametrize("row", [5, None, "text", ["gsm8k"]])
def test_what_is_no_row_is_an_error(row):
    with pytest.raises(InputError, match=r"row 0: .* is not a row"):
        score_many([row], workers=0)


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("as it is", "as it is"),
        ([{"role": "assistant", "content": "said"}], "said"),
        ({"role": "assistant", "content": "said"}, "said"),
        (
            [
                {"role": "assistant", "content": "call"},
                {"role": "tool", "content": "r"},
                {"role": "assistant", "content": "end"},
            ],
            "end",
        ),
        ([{"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "ab"),
        ([{"role": "assistant", "content": "x", "reasoning_content": "why"}], "<think>why</think>\n\nx"),
        ([{"role": "assistant", "content": None}], ""),
    ],
)
def test_completions_as_text_or_as_messages(completion, text):
    assert completion_text(completion) == text


def test_calls_that_a_server_took_out_of_the_content_count():
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": "", "reasoning_content": "so", "tool_calls": [call]}
    assert trl_reward("function_calling")(["p"], [[message]], ground_truth=[CALLS]) == [1.0]


@pytest.mark.parametrize("completion", [None, 3, [], [{"role": "user", "content": "x"}], {"content": "x"}])
def test_what_is_no_completion_is_an_error(completion):
    with pytest.raises(InputError, match="is not a completion"):
        completion_text(completion)


# rewards by name


@pytest.mark.parametrize("name", [*DATA_SOURCES, *REWARDS])
def test_every_name_gives_a_scorer(name):
    assert callable(scorer_named(name))


def test_a_name_may_set_the_mode():
    sample = Sample("", CALLS, CALLS)
    assert scorer_named("function_calling@plain")(sample).correct
    assert scorer_named("tool_calls")(sample).reason == "no_thinking"
    with pytest.raises(InputError, match="did you mean `plain`"):
        scorer_named("tool_calls@plian")(sample)


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (1, Verdict(1.0, True, "scored")),
        (True, Verdict(1.0, True, "scored")),
        (np.float32(0.5), Verdict(0.5, False, "scored")),
        ({"score": -1.0, "acc": False, "pred": "5"}, Verdict(-1.0, False, "scored")),
        ({"score": 0.4, "acc": np.True_, "reason": "mine"}, Verdict(0.4, True, "mine")),
        (compute_score("gsm8k", "#### 1", "2"), Verdict(0.0, False, "wrong_number")),
        (None, Verdict(0.0, False, "no_score", failed=True)),
        (float("nan"), Verdict(0.0, False, "no_score", failed=True)),
        (float("inf"), Verdict(0.0, False, "no_score", failed=True)),
        ({"score": 10**400, "acc": 1}, Verdict(0.0, False, "no_score", failed=True)),
        (Verdict(0.3, False, "own"), Verdict(0.3, False, "own")),
    ],
)
def test_what_a_reward_from_outside_may_give(result, verdict):
    assert verdict_of(result, "m:f") == verdict


@pytest.mark.parametrize("result", ["1", [0.5, 1], {"score": "high"}, object()])
def test_what_it_may_not_give(result):
    with pytest.raises(InputError, match="reward m:f"):
        verdict_of(result, "m:f")


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ("no_such_module:f", "no module `no_such_module`; run egpo in the folder of the module"),
        ("json:loads", "reward json:loads: the function cannot be called with verl's arguments"),
        ("builtins:dict", "cannot be called with verl's arguments"),
        ("json:lods", "no function `lods`.*did you mean `loads`"),
        ("nowhere.py:f", "nowhere.py"),
        ("gsm9k", "unknown reward `gsm9k`.*did you mean `gsm8k`"),
    ],
)
def test_a_wrong_name_is_the_users_mistake(spec, what):
    with pytest.raises(InputError, match=what):
        scorer_named(spec)


def test_a_reward_may_lie_in_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def f(data_source, solution_str, ground_truth, extra_info=None): return len(solution_str)"
    )
    assert scorer_named(f"{tmp_path / 'mine.py'}:f")(Sample("", "abc", "")).reward == 3.0


def test_a_reward_from_outside_may_take_some_of_the_arguments(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def short(solution_str, ground_truth, method='strict'): return float(solution_str == ground_truth)\n"
        "def wide(solution_str, **more): return len(more)\n"
        "def other(model_output, ground_truth): return 1.0\n"
        "def greedy(solution_str, tokenizer): return 1.0\n"
    )
    assert scorer_named(f"{tmp_path / 'mine.py'}:short")(Sample("x", "a", "a")).correct
    assert scorer_named(f"{tmp_path / 'mine.py'}:wide")(Sample("x", "a", "a")).reward == 3.0
    for name in ("other", "greedy"):
        with pytest.raises(InputError, match="cannot be called with verl's arguments"):
            scorer_named(f"{tmp_path / 'mine.py'}:{name}")


def test_a_mode_of_the_whole_verl_run_goes_to_the_rewards_that_take_it():
    calls = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert compute_score("function_calling", calls, calls, mode="plain")["score"] == 1.0
    assert compute_score("function_calling", calls, calls)["score"] == 0.0, "strict_think is the default"
    assert compute_score("gsm8k", "#### 18", "18", mode="plain")["score"] == 1.0, "not meant for gsm8k"
    with pytest.raises(InputError, match="plian"):
        compute_score("gsm8k", "#### 18", "18", mode="plian")
