"""The figures of an evaluation, against hand-made responses."""

import math

import pytest

from egpo.errors import EgpoError, InputError
from egpo.evals.evaluate import Exam, Origin, evaluate, file_name, load_exam, read_evaluation, write_evaluation
from egpo.evals.figures import UNREADABLE, figures_of
from egpo.evals.paired import compare
from egpo.evals.responses import Response, SampleRecord, Sampling, read_samples, write_samples
from egpo.rewards.scoring import REWARDS

TASK = "tests.evals.sum_task:Sums"


class Scripted:
    """Says what it is told: `texts[problem][sample]`; None is a failure of the server."""

    def __init__(self, texts, label="scripted", **known):
        self.texts, self.label, self._known = texts, label, known

    def respond(self, task, problems, sampling, watch):
        return [
            Response(
                problem, sample, "?", text or "", failure=None if text is not None else "server_error", **self._known
            )
            for problem, said in enumerate(self.texts)
            for sample, text in enumerate(said)
        ]


def exam(count, n, ks=(1,)):
    return load_exam(Exam(TASK, {"count": count}, sampling=Sampling(n=n), ks=ks))


def examined(texts, ks=(1,), **known):
    return evaluate(Scripted(texts, **known), exam(len(texts), max(map(len, texts)), ks))


def test_figures_are_means_over_problems():
    # Problem i wants i + 1.
    found = examined([["1", "9"], ["2", "2"], ["0", "none"]], ks=(1, 2)).figures
    assert found.accuracy.value == found.pass_at_k[1].value == pytest.approx(0.5)
    assert found.mean_score.value == pytest.approx(0.5)
    assert found.pass_at_k[2].value == pytest.approx(2 / 3)
    assert found.reasons == {"correct": 3, "wrong": 2, "unreadable": 1}
    assert (found.num_problems, found.num_responses, found.num_failed) == (3, 6, 0)


def test_failures_of_server_and_judge_count_in_no_figure():
    found = examined([["1", None], ["boom", "2"], [None, None]], ks=(1, 2)).figures
    assert found.accuracy.value == 1.0
    assert found.accuracy.num_problems == 2
    assert found.failures == {"server_error": 3, "judge_raised": 1}
    assert found.reasons == {"correct": 2}
    assert 2 not in found.pass_at_k  # no problem has two judged responses
    assert found.num_responses == 6


def test_nothing_to_sum_up_is_an_error():
    with pytest.raises(EgpoError, match="failed to give any of 2 responses; the first failure is: server_error"):
        examined([[None], [None]])
    with pytest.raises(EgpoError, match="the judge failed on all 2 responses"):
        examined([["boom"], ["boom"]])


def test_what_is_not_known_is_not_there():
    unknown = examined([["1"], ["2"]]).figures
    assert unknown.entropy == {}
    assert unknown.length is None
    assert unknown.truncated_frac is None
    known = examined([["1"], ["2"]], num_tokens=3, finished=False, entropy={"response": 0.5}).figures
    assert set(known.entropy) == {"response"}
    assert (known.entropy["response"].value, known.length.value, known.truncated_frac) == (0.5, 3, 1.0)


def test_entropy_is_a_mean_over_problems_that_have_the_segment():
    def sample(problem, **segments):
        return SampleRecord(problem, 0, "", "", "", 0.0, False, "wrong", segments=segments)

    samples = [
        sample("a", thinking=1.0),
        sample("a"),
        sample("b", thinking=3.0),
        sample("b", thinking=5.0),
        sample("c"),
    ]
    entropy = figures_of(samples).entropy["thinking"]
    assert (entropy.value, entropy.num_problems) == (2.5, 2)


def test_whether_anything_was_readable():
    def share(*reasons):
        samples = [SampleRecord(str(i), 0, "", "", "", 0.0, False, reason) for i, reason in enumerate(reasons)]
        return figures_of(samples).readable_frac

    assert share("no_answer_tag", "unclosed_thinking") == 0
    assert share("no_answer_tag", "wrong_value") == 0.5
    assert share("a_reason_of_somebody") == 1


def test_every_unreadable_reason_is_one_that_a_reward_gives():
    documented = {reason for kind in REWARDS.values() for reason in kind.reasons}
    assert documented >= UNREADABLE
    assert not UNREADABLE & {"correct", "wrong_value", "wrong_number", "wrong_answer"}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"n": 0}, "n=0"),
        ({"temperature": -1.0}, "temperature=-1"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"top_p": 0.0}, "top_p=0"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"seed": -1}, "seed=-1"),
        ({"n": 2, "temperature": 0.0}, "greedy responses are all equal"),
    ],
)
def test_impossible_sampling_is_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        Sampling(**wrong)


def test_k_beyond_n_is_refused_before_anything_is_asked():
    with pytest.raises(InputError, match="pass@4 cannot be computed from 2"):
        exam(1, 2, ks=(4,))


def test_a_split_without_problems():
    with pytest.raises(InputError, match=r"split `test`: the split has no problems"):
        exam(0, 1)


def test_only_the_first_problems_when_so_many_are_asked_for():
    paper = load_exam(Exam(TASK, num_problems=2, sampling=Sampling(n=1)))
    assert len(paper.problems) == 2
    assert evaluate(Scripted([["1"], ["2"]]), paper).num_left_out == 0
    assert evaluate(Scripted([["1"]]), paper).num_left_out == 1


def test_digests_tell_whether_the_problems_were_the_same():
    one, same, other = (examined([["1"]] * count) for count in (2, 2, 3))
    assert one.data == same.data != other.data


def test_a_comparison_is_paired_by_problem():
    base, other = examined([["0"]] * 8, label="base"), examined([[str(i + 1)] for i in range(8)], label="trained")
    found = compare(base, other)
    accuracy = found.rows["accuracy"]
    assert (found.base, found.other, found.num_problems) == ("base", "trained", 8)
    assert (accuracy.base, accuracy.other, accuracy.verdict) == (0.0, 1.0, "better")
    assert compare(other, base).rows["accuracy"].verdict == "worse"
    assert compare(base, base).rows["score"].verdict == "not distinguishable"


def test_what_is_written_is_read_again(tmp_path):
    found = examined([["1", "\ud800\x1b[31m"], [None, "2"]], ks=(1, 2), num_tokens=2, entropy={"response": 0.25})
    path = write_evaluation(tmp_path / "new", "name", found, Origin("somewhere", 3))
    stored = read_evaluation(path)
    assert stored.samples == found.samples
    value = stored.header
    assert (value["label"], value["model"], value["step"], value["task"]) == ("scripted", "somewhere", 3, TASK)
    assert value["accuracy"]["value"] == pytest.approx(0.75)
    assert value["accuracy"]["low"] < 0.75 <= value["accuracy"]["high"]
    assert value["pass_at_k"]["2"]["num_problems"] == 1
    assert value["failures"] == {"server_error": 1}
    assert value["sampling"]["n"] == 2
    assert value["length"]["value"] == 2
    assert compare(stored, found).rows["accuracy"].delta.value == 0


def test_audit_reads_the_samples(tmp_path):
    from egpo.audits import audit_rewards

    sample = SampleRecord("a", 0, "?", "#### 5", "5", 1.0, True, "correct", data_source="gsm8k")
    write_samples(tmp_path / "e.jsonl", [sample])
    done = audit_rewards(tmp_path / "e.jsonl", against="stored", workers=0)
    assert (done.ours.correct, done.num_different) == (1, 0)


def test_scores_that_are_no_numbers_survive_the_file(tmp_path):
    write_samples(tmp_path / "e.jsonl", [SampleRecord("a", 0, "", "", "", math.nan, False, "odd")])
    assert math.isnan(read_samples(tmp_path / "e.jsonl")[0].score)
    assert figures_of(read_samples(tmp_path / "e.jsonl")).mean_score is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"label": "a", "format": 99}'])
def test_a_file_that_is_no_evaluation(tmp_path, content):
    (tmp_path / "e.json").write_text(content)
    with pytest.raises(InputError, match=r"e\.json"):
        read_evaluation(tmp_path / "e.json")


def test_a_samples_file_that_is_cut_off_is_refused(tmp_path):
    """It is written at once: figures over the responses that are left would be of another evaluation."""
    found = examined([["1", "2"]])
    path = write_evaluation(tmp_path, "name", found, Origin("m")).with_suffix(".jsonl")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match="line 2: the last line is cut off"):
        read_samples(path)
    path.write_text('{"problem": 1}\n')
    with pytest.raises(InputError, match="line 1: this line is not a stored response"):
        read_samples(path)


def test_names_of_files_hold_nothing_that_a_path_would():
    assert file_name("Qwen/Qwen3 4B", "", "countdown") == "Qwen_Qwen3_4B-countdown"
    assert file_name("../..") == "evaluation"
