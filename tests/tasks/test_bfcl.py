"""The task `bfcl`: its split, its gold answers and their thinking, and its reward against BFCL's official checker."""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from egpo.cold_starts import with_thinking
from egpo.data.bfcl_cases import PARTS, TRAINED, UNSEEN, open_cases, part_of, request_key, shown_tool
from egpo.errors import InputError
from egpo.rewards.answers import split_thinking
from egpo.tags import THINK_TAGS
from egpo.tasks import load_task
from egpo.tasks.bfcl import Bfcl, gold_text, is_in
from egpo.tasks.preparation import prepare
from egpo.tool_calls.answers import read_answer
from tests.bfcl.cases import ENVIRONMENT, PYTHON
from tests.bfcl.mutations import mutations
from tests.bfcl.test_agreement import DISAGREEMENTS, UNANSWERABLE

needs_bfcl = pytest.mark.skipif(not PYTHON.exists(), reason="BFCL's environment is not built (make test builds it)")
CHECKER = Path(__file__).parents[1] / "bfcl" / "official_checker.py"


@pytest.fixture(scope="module")
def cases():
    """Every case, by the file that holds it."""
    return {file: [record.value for record in read()] for file, read in open_cases(None, seed=0).readers.items()}


@pytest.fixture(scope="module")
def problems():
    """Every problem of every part."""
    seen, unseen = load_task("bfcl"), load_task("bfcl_unseen")
    return [*seen.problems("train"), *seen.problems("test"), *unseen.problems("test")]


def test_the_parts_are_those_that_the_page_states(cases, problems):
    counts = Counter((problem.extra["part"], problem.extra["category"]) for problem in problems)
    assert {part: sum(n for (of, _), n in counts.items() if of == part) for part in PARTS.values()} == {
        "train": 823,
        "held_out": 374,
        "unseen": 2231,
    }
    assert {category for part, category in counts if part != "unseen"} == {*TRAINED}
    assert {category for part, category in counts if part == "unseen"} == {*UNSEEN}
    left_out = {case["id"] for found in cases.values() for case in found} - {problem.key for problem in problems}
    assert left_out >= UNANSWERABLE
    assert len(left_out - UNANSWERABLE) == 43  # requests that are also asked in a test case


def test_no_request_is_both_trained_on_and_tested(cases, problems):
    requests = {case["id"]: request_key(case) for found in cases.values() for case in found}
    trained = {requests[problem.key] for problem in problems if problem.extra["part"] == "train"}
    tested = {requests[problem.key] for problem in problems if problem.extra["part"] != "train"}
    assert trained
    assert not trained & tested
    # Without the rule they would overlap: BFCL asks the same in `simple_python` and in `multiple`.
    assert {requests[case["id"]] for case in cases["train"]} & tested


def test_the_part_of_a_case_depends_on_its_id_alone():
    parts = [part_of(f"simple_python_{number}", "simple_python") for number in range(400)]
    assert 0.65 < parts.count("train") / 400 < 0.75
    assert part_of("simple_python_0", "simple_python") == parts[0]
    assert part_of("live_simple_0-0-0", "live_simple") == "unseen"


def test_the_seed_changes_the_order_and_not_the_parts():
    one, other = (load_task("bfcl", seed=seed) for seed in (0, 1))
    for split in ("train", "test"):
        keys = [[problem.key for problem in task.problems(split)] for task in (one, other)]
        assert keys[0] != keys[1]
        assert sorted(keys[0]) == sorted(keys[1])


@pytest.mark.parametrize("mode", ["strict_think", "shaped", "plain"])
def test_every_gold_answer_earns_full_reward(problems, mode):
    task = load_task("bfcl", mode=mode)
    full = 1.1 if mode == "shaped" else 1.0
    for problem in problems:
        verdict = task.judge(problem, task.gold(problem))
        assert (round(verdict.reward, 6), verdict.correct) == (full, True), (problem.key, verdict)


def test_the_cold_start_puts_the_thinking_of_every_mode_between_tags(problems):
    strict, plain = load_task("bfcl"), load_task("bfcl", mode="plain")
    for problem in problems:
        tagged = with_thinking(plain.gold(problem), THINK_TAGS)
        assert split_thinking(tagged).closed
        assert tagged == with_thinking(strict.gold(problem), THINK_TAGS) == strict.gold(problem)


def test_the_thinking_claims_only_what_is_so(cases, problems):
    """Each tool that fits is called, as often as it says, and what is said to be in the request is there."""
    of_id = {case["id"]: case for found in cases.values() for case in found}
    for problem in problems:
        thought = split_thinking(str(problem.extra["answer"]))
        calls = read_answer(thought.answer).calls
        if not calls:
            assert thought.thinking.strip() == "No tool fits the request."
            continue
        request = " ".join(message["content"] for message in of_id[problem.key]["question"][0])
        lines = thought.thinking.strip().splitlines()
        assert len(lines) == len({call.name for call in calls})
        for line in lines:
            name, _, said = line.partition(" fits")
            same = [call for call in calls if call.name == name]
            assert same
            assert said.startswith(f", {len(same)} calls." if len(same) > 1 else ".")
            found = said.partition("In the request: ")[2].partition(".")[0]
            for argument in found.split(", ") if found else ():
                assert all(is_in(call.arguments[argument], request) for call in same if argument in call.arguments)


def test_thinking_names_where_each_argument_comes_from():
    answer = gold_text(
        {
            "question": [[{"role": "user", "content": "The weather in Lima for 3 days, please."}]],
            "function": [
                {
                    "name": "weather",
                    "parameters": {
                        "type": "dict",
                        "properties": {
                            "city": {"type": "string"},
                            "days": {"type": "integer"},
                            "unit": {"type": "string", "default": "C"},
                            "country": {"type": "string"},
                            "hours": {"type": "boolean"},
                        },
                        "required": ["city"],
                    },
                }
            ],
            "answers": [
                {
                    "weather": {
                        "city": ["LIM", "lima"],
                        "days": [3],
                        "unit": ["C"],
                        "country": ["PE"],
                        "hours": ["", True],
                    }
                }
            ],
        }
    )
    assert answer == (
        "<think>\nweather fits. In the request: city, days. By default: unit. To work out: country.\n</think>\n\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "lima", "days": 3, "unit": "C", "country": "PE"}}\n'
        "</tool_call>"
    )


@pytest.mark.parametrize(
    ("value", "request_text", "found"),
    [
        (5, "five or 5", True),
        (5, "15 and 5.5x", False),
        (5.0, "about 5", True),
        (1000000, "1,000,000 people", True),
        ("New York", "in new york?", True),
        ("York", "Yorkshire", False),
        (True, "True story", False),
        (["a", "b"], "b and a", True),
        (["a", "c"], "b and a", False),
        ([], "anything", False),
        ("", "anything", False),
    ],
)
def test_what_is_in_a_request(value, request_text, found):
    assert is_in(value, request_text) is found


@needs_bfcl
def test_the_reward_agrees_with_the_official_checker(problems):
    """Gold calls and a tenth of their one-step changes, of every problem with an answer.

    tests/bfcl compares every change. The differences are the known ones, of which docs/rewards/tool_calls.md tells.
    """
    task = load_task("bfcl", mode="plain")
    rows, tried = [], []
    for number, problem in enumerate(problem for problem in problems if problem.ground_truth != "[]"):
        read = read_answer(split_thinking(str(problem.extra["answer"])).answer).calls
        gold = [{call.name: dict(call.arguments)} for call in read]
        changed = [(kind, calls) for kind, calls in mutations(gold) if "tuple" not in kind]
        attempts = [("gold", gold), *changed[number % 10 :: 10]]
        tried += [(problem, kind, calls) for kind, calls in attempts]
        row = {
            "tools": json.loads(str(problem.extra["tools"])),
            "answers": json.loads(problem.ground_truth),
            "category": problem.extra["category"],
            "attempts": [calls for _, calls in attempts],
        }
        rows.append(json.dumps(row))
    done = subprocess.run(
        [PYTHON, CHECKER], input="\n".join(rows), capture_output=True, text=True, check=True, timeout=300
    )
    official = [verdict for line in done.stdout.splitlines() for verdict in json.loads(line)]
    assert {type(verdict) for verdict in official} == {bool}, "the official checker failed"
    ours = [task.judge(problem, _text(calls)).correct for problem, _, calls in tried]
    differing = Counter(
        (kind, one, other) for (_, kind, _), one, other in zip(tried, ours, official, strict=True) if one is not other
    )
    print(f"agreement on {len(ours) - differing.total():,} of {len(ours):,} verdicts; {dict(differing)}")
    assert set(differing) <= set(DISAGREEMENTS)
    assert all(verdict for (_, kind, _), verdict in zip(tried, official, strict=True) if kind == "gold")
    assert min(Counter(official).values()) > 3_000


def _text(calls):
    objects = [{"name": name, "arguments": arguments} for call in calls for name, arguments in call.items()]
    return "\n".join(f"<tool_call>\n{json.dumps(one)}\n</tool_call>" for one in objects)


def test_a_wrong_answer_of_a_case_without_a_right_tool(problems):
    task = load_task("bfcl")
    problem = next(problem for problem in problems if problem.extra["category"] == "irrelevance")
    name = json.loads(str(problem.extra["tools"]))[0]["name"]
    call = f'<think>Try.</think><tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'
    assert task.judge(problem, call).reason == "unexpected_call"
    assert task.judge(problem, "None fits.").reason == "no_thinking"


@needs_bfcl
def test_a_folder_and_a_wheel_have_the_cases_of_the_package_index(tmp_path):
    (folder,) = ENVIRONMENT.glob("lib/python3*/site-packages/bfcl_eval/data")
    assert open_cases(str(folder), seed=0).digest == open_cases(None, seed=0).digest
    done = prepare(Bfcl(), tmp_path / "out", source=str(folder), train=10, test=5)
    assert {name: entry.rows for name, entry in done.files.items()} == {
        "train.parquet": 10,
        "test.parquet": 5,
        "unseen.parquet": 5,
    }
    stored = load_task("bfcl_unseen", source=tmp_path / "out")
    assert {problem.extra["part"] for problem in stored.problems("test")} == {"unseen"}
    assert [problem.key for problem in stored.problems("train")] == [
        problem.key for problem in load_task("bfcl", train=10).problems("train")
    ]


def test_bad_sources_end_with_one_line(tmp_path):
    with pytest.raises(InputError, match=r"cannot be read.*bfcl_eval/data") as caught:
        open_cases(str(tmp_path), seed=0)
    assert str(tmp_path) in str(caught.value)
    (tmp_path / "x.whl").write_bytes(b"no archive")
    with pytest.raises(InputError, match="from the wheel"):
        open_cases(str(tmp_path / "x.whl"), seed=0)


def test_longer_cases_are_dropped_and_counted(tmp_path):
    task = Bfcl(tokenizer="egpo-tiny", max_prompt_tokens=900, max_answer_tokens=150)
    done = prepare(task, tmp_path / "out")
    assert set(done.dropped) == {"in_other_split", "answer_not_accepted", "prompt_too_long", "answer_too_long"}
    whole = sum(entry.rows for entry in done.files.values()) + sum(done.dropped.values())
    assert whole == 823 + 374 + 2231 + 43 + 4
    tokenizer = task._tokenizer
    for problem in load_task("bfcl", source=tmp_path / "out").problems("test"):
        assert len(tokenizer.encode(str(problem.extra["answer"]))) < 150


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_prompt_tokens": 10}, "needs a tokenizer"),
        ({"mode": "strict"}, "mode='strict'"),
        ({"description_chars": -1}, "too small"),
        ({"instruction": 3}, "is not text"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(InputError, match=message):
        load_task("bfcl", **settings)


def test_descriptions_are_shortened_at_a_sentence_or_a_word():
    tool = {
        "name": "f",
        "description": "First sentence. Second sentence, which is long.",
        "parameters": {
            "type": "dict",
            "properties": {
                "type": {"type": "float", "description": "One long description without an end"},
                "rows": {"type": "array", "items": {"type": "dict", "description": "Short."}},
            },
            "required": ["type"],
        },
    }
    shown = shown_tool(tool, 20)
    assert shown["description"] == "First sentence."
    assert shown["parameters"]["type"] == "object"
    properties = shown["parameters"]["properties"]
    assert properties["type"] == {"type": "number", "description": "One long…"}
    assert properties["rows"]["items"] == {"type": "object", "description": "Short."}
    assert "description" not in json.dumps(shown_tool(tool, 0))
    assert shown_tool(tool, None)["description"] == tool["description"]
