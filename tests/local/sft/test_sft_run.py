"""Packed examples never see each other: loss and gradients are those of one example at a time, by plain means."""

import pytest
import torch

from egpo.config.sections.training import Optimization
from egpo.errors import EgpoWarning, forget_warnings
from egpo.local.sft import sft_run
from egpo.local.sft.batches import cut_by_tokens, pack_examples
from egpo.local.sft.examples import read_examples
from egpo.local.sft.sft_run import accumulate, mean_nll
from egpo.local.updates.micro_batches import TokenBudget
from egpo.local.updates.optimizer import Optimizer
from tests.local.conftest import CONFIGS

ROWS = [
    {"messages": [{"role": "user", "content": "q" * i}, {"role": "assistant", "content": "a" * (1 + 7 * i % 40)}]}
    for i in range(1, 9)
] + [
    {
        "messages": [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": "three"},
            {"role": "assistant", "content": "four"},
        ]
    }
]


@pytest.fixture
def examples(policy, write_rows):
    return read_examples(write_rows(ROWS), policy).examples


def plain_loss(policy, examples):
    """One example at a time through `model(input_ids)`, full logits, cross entropy over learned tokens."""
    policy.model.set_attn_implementation("eager")
    total, count = 0.0, 0
    for example in range(len(examples)):
        place = examples.tokens_of(example)
        tokens, learned = (part[place].to(policy.device) for part in (examples.token_S.long(), examples.learned_S))
        logits = policy.model(tokens[None], use_cache=False).logits[0, :-1]
        nll = torch.nn.functional.cross_entropy(logits, tokens[1:], reduction="none")
        total = total + nll[learned[1:]].sum()
        count += int(learned.sum())
    return total / count


def gradients_of(policy):
    return {name: weight.grad.clone() for name, weight in policy.model.named_parameters() if weight.grad is not None}


@pytest.mark.parametrize("shape", sorted(CONFIGS))
@pytest.mark.parametrize("budget", [70, 10_000])
def test_packing_changes_neither_the_loss_nor_any_gradient(load, examples, shape, budget):
    policy, reference = load(shape), load(shape)
    optimizer = Optimizer(policy.model.named_parameters(), Optimization())
    loss = accumulate(policy, optimizer, examples, torch.arange(len(examples)), TokenBudget(budget))
    expected = plain_loss(reference, examples)
    expected.backward()
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    found, wanted = gradients_of(policy), gradients_of(reference)
    assert found.keys() == wanted.keys()
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_one_example_s_tokens_do_not_change_another_s_loss(policy, examples):
    part = cut_by_tokens(torch.arange(len(examples)), examples.length_E, 10_000)[0]
    pack = pack_examples(examples, part, policy.device)
    before = policy.hidden(pack)
    pack.token_N[: part.lengths[0]] = 5
    after = policy.hidden(pack)
    assert not torch.equal(before[: part.lengths[0]], after[: part.lengths[0]])
    assert torch.equal(before[part.lengths[0] :], after[part.lengths[0] :])


def test_a_pack_holds_each_token_but_the_last_and_predicts_each_learned_one(policy, examples):
    (part,) = cut_by_tokens(torch.arange(len(examples)), examples.length_E, 10_000)
    pack = pack_examples(examples, part, policy.device)
    assert len(pack.token_N) == int((examples.length_E - 1).sum())
    assert len(pack.target_M) == int(examples.num_learned_E.sum())
    learned = [examples.token_S[examples.tokens_of(int(e))][examples.learned_S[examples.tokens_of(int(e))]]
               for e in part.examples]  # fmt: skip
    assert pack.target_M.tolist() == torch.cat(learned).tolist()


def test_taking_examples_keeps_their_tokens_and_marks(examples):
    taken = examples.take(torch.tensor([3, 0]))
    for place, example in enumerate([3, 0]):
        mine, theirs = taken.tokens_of(place), examples.tokens_of(example)
        assert taken.token_S[mine].tolist() == examples.token_S[theirs].tolist()
        assert taken.learned_S[mine].tolist() == examples.learned_S[theirs].tolist()
    assert taken.row_E.tolist() == [3, 0]


def test_the_evaluation_loss_is_the_mean_over_all_learned_tokens(policy, load, examples):
    expected = plain_loss(load(), examples).item()
    for budget in (1, 100, 10_000):
        assert mean_nll(policy, examples, TokenBudget(budget)) == pytest.approx(expected, abs=1e-6)


def test_where_memory_runs_out_the_step_is_taken_in_smaller_parts(policy, load, examples, monkeypatch):
    optimizer = Optimizer(policy.model.named_parameters(), Optimization())
    real = sft_run.nll_sum

    def scarce(policy, examples, part):
        if part.num_tokens > 150:
            raise torch.OutOfMemoryError("not enough")
        return real(policy, examples, part)

    monkeypatch.setattr(sft_run, "nll_sum", scarce)
    forget_warnings()
    budget = TokenBudget(10_000)
    with pytest.warns(EgpoWarning, match="out of memory"):
        loss = accumulate(policy, optimizer, examples, torch.arange(len(examples)), budget)
    assert budget.tokens <= 150
    assert loss == pytest.approx(plain_loss(load(), examples).item(), abs=1e-5)
