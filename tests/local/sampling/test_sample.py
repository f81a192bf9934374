"""What is recorded while sampling is what a separate forward pass gives; a row does not depend on its company."""

import pytest
import torch

from egpo.config.schema import Rollout
from egpo.errors import EgpoWarning
from egpo.local.draws import Draws
from egpo.local.models.attention import ATTENTION_NAME
from egpo.local.rollouts import joined
from egpo.local.sampling.sample import sample
from egpo.rewards.verdict import Verdict
from egpo.tasks import Problem
from tests.local.conftest import CONFIGS
from tests.local.device import ON_GPU


class Echo:
    """Prompts of given texts; nothing is judged."""

    def __init__(self, texts):
        self._problems = [Problem(text, ({"role": "user", "content": text},), "") for text in texts]

    def problems(self, split):
        return self._problems

    def prompt(self, problem):
        return list(problem.messages)

    def judge(self, problem, text):
        return Verdict(0.0, False, "none")

    def gold(self, problem):
        return ""


TASK = Echo(["a", "bb ccc", "a much longer prompt than the others, so that lengths differ", "dd"])


def drawn(policy, problems=None, draws=None, **settings):
    settings = {"n": 3, "max_response_tokens": 24} | settings
    return sample(
        policy, TASK, TASK.problems("train") if problems is None else problems, Rollout(**settings), draws or Draws(1)
    )


ENDS = tuple(range(3, 33))
"""A random model hardly ever ends by itself: with so many stop tokens, lengths differ."""


@torch.no_grad()
def plain_statistics(policy, rollouts, row, temperature):
    """Log-probability and entropy by the model's own forward pass, its own attention, full logits."""
    prompt = rollouts.prompts[int(rollouts.problem_B[row])]
    length = int(rollouts.length_B[row])
    response = rollouts.response_BT[row, :length]
    policy.model.set_attn_implementation("eager")
    tokens = torch.tensor([[*prompt, *response.tolist()]], device=policy.device)
    logits = policy.model(tokens, use_cache=False).logits[0]
    policy.model.set_attn_implementation(ATTENTION_NAME)
    logp = torch.log_softmax(logits[len(prompt) - 1 : -1].float() / temperature, dim=-1)
    return logp[torch.arange(length), response], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("shape", sorted(CONFIGS))
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_recorded_statistics_equal_a_separate_forward_pass(load, shape, temperature):
    policy = load(shape)
    rollouts = drawn(policy, temperature=temperature, n=6, stop_tokens=ENDS)
    lengths = set(rollouts.length_B.tolist())
    assert len(lengths) > 2, "padding of several lengths is what is tested"
    for row in range(len(rollouts)):
        logp, entropy = plain_statistics(policy, rollouts, row, temperature)
        length = len(logp)
        torch.testing.assert_close(rollouts.logp_BT[row, :length], logp, atol=1e-4, rtol=0)
        torch.testing.assert_close(rollouts.entropy_BT[row, :length], entropy, atol=1e-4, rtol=0)
        assert not rollouts.logp_BT[row, length:].any()
        assert not rollouts.entropy_BT[row, length:].any()
        assert (rollouts.response_BT[row, length:] == policy.pad_id).all()


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_a_row_does_not_depend_on_its_company(load, shape):
    policy = load(shape)
    together = drawn(policy, n=5, stop_tokens=ENDS)
    for index, problem in enumerate(TASK.problems("train")):
        alone = drawn(policy, [problem], n=5, stop_tokens=ENDS)
        assert alone.texts == together.texts[5 * index : 5 * index + 5]
    in_parts = drawn(policy, n=5, rows_at_once=3, stop_tokens=ENDS)
    assert in_parts.texts == together.texts
    torch.testing.assert_close(in_parts.logp_BT, together.logp_BT, atol=1e-5, rtol=0)


def test_the_seed_the_step_and_the_purpose_decide(load):
    policy = load()
    first = drawn(policy, draws=Draws(1, 5)).texts
    assert drawn(policy, draws=Draws(1, 5)).texts == first
    for other in (Draws(2, 5), Draws(1, 6), Draws(1, 5, "validation")):
        assert drawn(policy, draws=other).texts != first


def test_one_problem_twice_in_a_batch_gets_other_responses(load):
    problem = TASK.problems("train")[0]
    rollouts = drawn(load(), [problem, problem])
    assert rollouts.texts[:3] != rollouts.texts[3:]


def test_greedy_is_the_likeliest_token_and_ignores_the_draws(load):
    policy = load()
    greedy = sample(policy, TASK, TASK.problems("train"), Greedy(n=1, max_response_tokens=8), Draws(1))
    again = sample(policy, TASK, TASK.problems("train"), Greedy(n=1, max_response_tokens=8), Draws(2))
    assert greedy.texts == again.texts
    assert sorted(drawn(policy, n=1, max_response_tokens=8, top_k=1).texts) == sorted(greedy.texts)


class Greedy:
    """What validation asks for: a rollout's settings at temperature 0."""

    def __new__(cls, **settings):
        return Rollout(**settings).model_copy(update={"temperature": 0.0})


def test_stop_tokens_end_a_response_and_belong_to_it(load):
    policy = load()
    rollouts = drawn(policy, n=8, stop_tokens=ENDS)
    ended = rollouts.finished_B
    assert 0 < int(ended.sum()) < len(ended)
    last = rollouts.response_BT[torch.arange(len(rollouts)), rollouts.length_B - 1]
    assert set(last[ended].tolist()) <= {2, *ENDS}
    assert (rollouts.length_B[~ended] == 24).all()
    stopped_early = drawn(policy, n=8, stop_tokens=[int(rollouts.response_BT[0, 0])])
    assert (int(stopped_early.length_B[0]), bool(stopped_early.finished_B[0])) == (1, True)


def test_stop_strings_end_a_response_wherever_they_cross_tokens(load):
    policy = load()
    free = drawn(policy)
    text = free.texts[0]
    needle = text[4:7]
    stopped = drawn(policy, stop=[needle])
    assert stopped.texts[0] == text[: text.index(needle) + len(needle)]
    assert bool(stopped.finished_B[0])


@pytest.mark.parametrize("limits", [{"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.3}, {"top_k": 5, "top_p": 0.7}])
def test_truncated_sampling_records_the_entropy_of_what_it_sampled_from(load, limits):
    policy = load()
    rollouts = drawn(policy, **limits)
    logp, entropy = plain_statistics(policy, rollouts, 0, 1.0)
    torch.testing.assert_close(rollouts.logp_BT[0, : len(logp)], logp, atol=1e-4, rtol=0)
    assert (rollouts.entropy_BT[0, : len(logp)] < entropy).all()


def test_joined_and_selected_rollouts_keep_each_row_with_its_problem(load):
    policy = load()
    problems = TASK.problems("train")
    whole = drawn(policy, stop_tokens=ENDS)
    parts = [drawn(policy, problems[:1], stop_tokens=ENDS), drawn(policy, problems[1:], stop_tokens=ENDS)]
    both = joined(parts, policy.pad_id)
    assert both.texts == whole.texts
    assert torch.equal(both.problem_B, whole.problem_B)
    rows = [10, 3, 4]
    picked = whole.select(rows)
    assert [picked.problems[i].key for i in picked.problem_B] == [problems[int(whole.problem_B[r])].key for r in rows]
    assert picked.texts == tuple(whole.texts[row] for row in rows)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError])
def test_out_of_memory_halves_the_rows_and_changes_nothing(load, monkeypatch, error):
    policy = load("gpt2" if ON_GPU else "qwen3")  # a GPU's own way has its own test
    expected = drawn(policy)
    original, asked = policy.next_hidden, []

    def scarce(token_R, slots):
        asked.append(len(token_R))
        if len(token_R) > 6:
            raise error("no room")
        return original(token_R, slots)

    monkeypatch.setattr(policy, "next_hidden", scarce)
    with pytest.warns(EgpoWarning, match="rows_at_once"):
        assert drawn(policy).texts == expected.texts
    assert max(asked) == 12


SPOKEN = pytest.mark.filterwarnings("error:no fast kernels:egpo.errors.EgpoWarning")


@SPOKEN
def test_a_model_of_the_slower_path_says_so_once_and_why(load):
    policy = load("gpt2")
    with pytest.warns(EgpoWarning, match=r"no fast kernels for GPT2LMHeadModel .*using transformers' own layers"):
        drawn(policy, max_response_tokens=2)
    drawn(policy, max_response_tokens=2)


@SPOKEN
@pytest.mark.parametrize("shape", ["llama", "qwen2", "qwen3"])
def test_a_model_of_the_faster_path_is_silent(load, shape):
    drawn(load(shape), max_response_tokens=2)
