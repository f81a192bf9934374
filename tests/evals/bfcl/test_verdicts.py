"""What BFCL leaves on the disk is counted before it is believed."""

import json

import pytest

from egpo.errors import EgpoError
from egpo.evals.bfcl.inside.drive import is_failed
from egpo.evals.bfcl.verdicts import read_verdicts, require_asked

CASES = {"a_0": "x", "a_1": "y"}


def left(work, results, wrong=(), total=None):
    """A pass over the category `a`, as BFCL writes it."""
    total = len(results) if total is None else total
    summary = {"accuracy": 0.0, "correct_count": total - len(wrong), "total_count": total}
    files = {"result": results, "score": [summary, *({"id": case, "error_type": "odd"} for case in wrong)]}
    for kind, lines in files.items():
        place = work / kind / "model"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"BFCL_v4_a_{kind}.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return work


def answers(*texts, **more):
    return [{"id": f"a_{place}", "result": text, **more} for place, text in enumerate(texts)]


def test_the_wrong_ones_are_listed_and_the_others_right(tmp_path):
    verdicts = read_verdicts(left(tmp_path, answers("x", "y"), wrong=["a_1"]))
    assert [(verdict.id, verdict.correct, verdict.reason) for verdict in verdicts] == [
        ("a_0", True, "correct"),
        ("a_1", False, "odd"),
    ]


def test_a_case_twice_is_no_second_case(tmp_path):
    with pytest.raises(EgpoError, match="1 cases of a occur more than once"):
        read_verdicts(left(tmp_path, [*answers("x", "y"), *answers("x")]))


@pytest.mark.parametrize("total", [1, 3])
def test_a_summary_of_other_cases_is_refused(tmp_path, total):
    with pytest.raises(EgpoError, match="do not agree with the cases of a in"):
        read_verdicts(left(tmp_path, answers("x", "y"), total=total))


def test_what_was_asked_and_has_no_result_is_named(tmp_path):
    verdicts = read_verdicts(left(tmp_path, answers("x", "y")))
    require_asked(verdicts, ["a"], {"a": ["a_0", "a_1"]})
    with pytest.raises(EgpoError, match="no result for b"):
        require_asked(verdicts, ["a", "b"], {})
    with pytest.raises(EgpoError, match="no result for a_2"):
        require_asked(verdicts, ["a"], {"a": ["a_0", "a_2"]})


def test_a_model_cannot_get_out_of_a_case_by_the_words_of_a_failure(tmp_path):
    text = "Error during inference: I would rather not"
    said, failed = answers(text, text)[0], answers(text, text, traceback="...")[1]
    verdicts = read_verdicts(left(tmp_path, [said, failed], wrong=["a_0", "a_1"]))
    assert [verdict.failed for verdict in verdicts] == [False, True]
    assert [is_failed(line) for line in (said, failed)] == [False, True]
