"""The forms of ground truth."""

import json

import pytest

from egpo.errors import InputError
from egpo.rewards.sandbox import Checks, Scripts
from egpo.rewards.sandbox.ground_truth import read_tests


def test_inputs_and_outputs_are_whole_programs() -> None:
    tests = read_tests({"inputs": ["1 2\n", ["3", "4"]], "outputs": ["3\n", 7]})
    assert tests.work == Scripts((b"1 2\n", b"3\n4"), 2)
    assert tests.outputs == ("3\n", "7")


def test_a_json_string_is_what_it_holds() -> None:
    value = {"inputs": ["1"], "outputs": ["2"]}
    assert read_tests(json.dumps(value)) == read_tests(value)


def test_a_list_of_cases() -> None:
    assert read_tests([{"input": "1", "output": "2"}]) == read_tests({"inputs": ["1"], "outputs": ["2"]})


def test_fn_name_makes_calls_of_json_lines() -> None:
    work = read_tests({"fn_name": "f", "inputs": ['[1, 2]\n"x"', [3]], "outputs": ["[3]", [4]]}).work
    assert isinstance(work, Checks)
    first, second = work.checks
    assert first == {"fn_name": "f", "args": [[1, 2], "x"], "kwargs": {}, "expected": [[3]]}
    # APPS wraps the value in a list: both readings count.
    assert second == {"fn_name": "f", "args": [3], "kwargs": {}, "expected": [4, [4]]}


def test_text_that_is_no_json_is_text() -> None:
    (check,) = read_tests({"fn_name": "f", "inputs": ["abc"], "outputs": ["x y"]}).work.checks
    assert (check["args"], check["expected"]) == (["abc"], ["x y"])


def test_calls() -> None:
    (check,) = read_tests({"calls": [{"fn_name": "f", "kwargs": {"a": 1}, "expected": [5]}]}).work.checks
    assert check == {"fn_name": "f", "args": [], "kwargs": {"a": 1}, "expected": [[5]]}


def test_asserts_with_setup() -> None:
    work = read_tests({"assert": ["assert f(x) == 1", "assert f(2)"], "setup": "x = 3"}).work
    assert work == Checks(("assert f(x) == 1", "assert f(2)"), ("f",), (), "x = 3")


def test_check_function_of_humaneval() -> None:
    work = read_tests({"test": "def check(candidate):\n    assert candidate(1)", "entry_point": "f"}).work
    assert isinstance(work, Checks)
    assert work.names == ("f",)
    assert work.checks[0].endswith("\ncheck(f)")


@pytest.mark.parametrize(
    "ground_truth",
    [
        {"assert": ["pass"]},
        {"assert": ["# nothing"]},
        {"assert": "assert True"},
        {"assert": [""]},
        {"assert_case": ["assert 1 + 1 == 2"]},
        {"assert": ["assert math.pi > 3"]},
        {"assert": ["x = 1\nassert x == 1"]},
        {"assert": ["def check(): assert True\ncheck()"]},
        {"assert": ["assert f(1) == 1", "assert True"]},
        {"assert": ["assert True"], "entry_point": "f"},
        {"assert": ["assert True"], "setup": "x = f(1)"},
        {"test": "def check(candidate): pass", "entry_point": "f"},
        {"test": "def check(candidate):\n    candidate = 3\n    assert True", "entry_point": "f"},
    ],
)
def test_tests_that_test_nothing_are_the_users_mistake(ground_truth: dict[str, object]) -> None:
    with pytest.raises(InputError, match="tests nothing"):
        read_tests(ground_truth)


@pytest.mark.parametrize(
    "ground_truth",
    [
        {"assert": ["x = f(1)", "assert x == 2"]},
        {"assert": ["import math", "assert math.isclose(f(1), 2)"]},
        {"assert": ["assert x == 2"], "setup": "x = f(1)"},
        {"assert": ["assert sum(10, 15) == 6"]},
        {"assert": ["assert candidate(1) == 2"]},
        {"test": "def check(candidate):\n    assert True\n    assert candidate(1) == 2", "entry_point": "f"},
        {"test": "def check(g):\n    for h in [g]:\n        assert h(1) == 2", "entry_point": "f"},
        {"test": "METADATA = {}\ndef check(candidate):\n    assert f(1) == 2", "entry_point": "f"},
        {"test": "check = lambda g: None", "entry_point": "f"},
    ],
)
def test_tests_that_reach_the_program_some_way_are_taken(ground_truth: dict[str, object]) -> None:
    assert read_tests(ground_truth).work.size


@pytest.mark.parametrize(
    ("ground_truth", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("3", "cannot contain tests"),
        ({}, "no tests under"),
        ({"inputs": [], "outputs": []}, "no tests under"),
        ({"inputs": ["1"]}, "same length"),
        ({"inputs": ["1"], "outputs": ["1", "2"]}, "same length"),
        ({"inputs": ["1"], "outputs": "1"}, "same length"),
        ([{"input": "1"}], "without `input` or"),
        ([], "without `input` or"),
        ({"assert": ["assert f("]}, "not valid Python"),
        ({"assert": [3]}, "not valid Python"),
        ({"test": "def check(c): pass"}, "entry_point"),
        ({"calls": [{"fn_name": "f"}]}, "calls"),
        ({"calls": [{"fn_name": "f", "args": "x", "expected": 1}]}, "args"),
        (None, "cannot contain tests"),
    ],
)
def test_a_malformed_ground_truth_is_the_users_mistake(ground_truth: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_tests(ground_truth)
