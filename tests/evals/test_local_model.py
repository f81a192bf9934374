"""The embedded engine under evaluation."""

import pytest

from egpo.errors import InputError
from egpo.evals.evaluate import Exam, evaluate, load_exam
from egpo.evals.local_model import LocalModel
from egpo.evals.responses import Sampling
from tests.local.conftest import load, model_folder  # noqa: F401  (fixtures)

# Random bytes have no thinking tags, and the engine says so.
pytestmark = pytest.mark.filterwarnings("ignore::egpo.errors.EgpoWarning")
TASK = "tests.evals.sum_task:Sums"


@pytest.fixture
def model(load):  # noqa: F811
    return lambda **settings: LocalModel("random", load(), **settings)


def exam(count=5, n=2, max_tokens=6, **sampling):
    sampled = Sampling(n=n, max_tokens=max_tokens, **sampling)
    return load_exam(Exam(TASK, {"count": count}, sampling=sampled, ks=(1, n)))


def test_figures_of_a_local_model_have_entropy_and_length(model):
    found = evaluate(model(), exam())
    figures = found.figures
    assert (figures.num_problems, figures.num_responses) == (5, 10)
    assert figures.entropy["response"].value > 0
    assert 0 < figures.length.value <= 6
    assert 0 <= figures.truncated_frac <= 1
    assert found.samples[0].input.startswith("<|im_start|>user\n0 + 1")
    assert [(sample.problem, sample.sample) for sample in found.samples[:3]] == [
        ("test 0", 0),
        ("test 0", 1),
        ("test 1", 0),
    ]


def test_the_batch_does_not_change_what_is_said(model):
    """Nor does the number of problems; progress is told after every batch."""
    watched = []
    by_one = evaluate(model(rows_at_once=1), exam(), lambda *place: watched.append(place))
    at_once = evaluate(model(), exam())
    assert [sample.output for sample in by_one.samples] == [sample.output for sample in at_once.samples]
    assert watched == [(0, 10), (2, 10), (4, 10), (6, 10), (8, 10), (10, 10)]


def test_the_seed_decides_and_greedy_needs_none(model):
    def texts(**sampling):
        return [sample.output for sample in evaluate(model(), exam(**sampling)).samples]

    assert texts(seed=1) == texts(seed=1) != texts(seed=2)
    assert texts(n=1, temperature=0.0, seed=1) == texts(n=1, temperature=0.0, seed=2)


def test_among_one_token_there_is_no_choice(model):
    def texts(**sampling):
        return [sample.output for sample in evaluate(model(), exam(**sampling)).samples]

    greedy = texts(n=1, temperature=0.0)
    assert texts(n=1, top_k=1) == texts(n=1, min_p=1.0) == greedy != texts(n=1)


def test_prompts_that_do_not_fit_are_left_out_and_counted(model):
    # The tiny model reads 256 tokens; a prompt is some forty bytes, longer by one where the number has two digits.
    short = evaluate(model(), exam(count=12, n=1, max_tokens=200))
    lengths = {len(sample.input.replace("<|im_start|>", "x").replace("<|im_end|>", "x")) for sample in short.samples}
    room = 256 - min(lengths)
    found = evaluate(model(), exam(count=12, n=1, max_tokens=room))
    assert found.num_left_out == 2
    assert found.figures.num_problems == 10
    with pytest.raises(InputError, match=r"leaves \d+ tokens for the response in the model's context of 256"):
        evaluate(model(), exam(count=12, n=1, max_tokens=room + 1))


def test_without_a_limit_responses_end_where_the_context_does(model):
    found = evaluate(model(), exam(count=1, n=4, max_tokens=None))
    assert max(sample.num_tokens for sample in found.samples) <= 256
