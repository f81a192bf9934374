"""One message format, and errors that survive the way between processes."""

import pickle

import pytest

from egpo.errors import ConfigError, EgpoError, Fault, InputError, how_it_ended, nearest

ERRORS = [
    EgpoError("the disk is full", where="runs/x", fix="make room"),
    InputError("no such file", where="a.yaml"),
    ConfigError([Fault("unknown key `clp`", "a.yaml [update]", "did you mean `clip`?"), Fault("`lr` is -1", "a.yaml")]),
]


def test_a_message_says_where_what_and_what_to_do():
    assert str(ERRORS[0]) == "runs/x: the disk is full; make room"
    assert str(ERRORS[2]) == "a.yaml [update]: unknown key `clp`; did you mean `clip`?\na.yaml: `lr` is -1"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_are_pickled_whole(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.faults == error.faults
    assert again.exit_code == error.exit_code


def test_the_nearest_name_or_all_of_them():
    assert nearest("egop", ["grpo", "egpo"]) == "did you mean `egpo`?"
    assert nearest("xyz", ["b", "a"]) == "choose from `a`, `b`"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "ended with code 0"),
        (1, "ended with code 1"),
        (-15, "was ended by SIGTERM"),
        (-9, "was ended by SIGKILL"),
        (137, "was ended by SIGKILL (code 137)"),
        (-64, "was ended by SIGRTMAX"),
        (-40, "was ended by signal 40"),
        (255, "ended with code 255"),
    ],
)
def test_an_exit_code_is_said_in_words(code, said):
    assert how_it_ended(code) == said
