import itertools
from dataclasses import replace

import pytest
import torch

from egpo.config.schema import Update
from egpo.errors import EgpoError, EgpoWarning
from egpo.local.models.packs import pack_groups
from egpo.local.updates import losses
from egpo.local.updates.micro_batches import RowTokens, TokenBudget
from egpo.local.updates.optimizer import Optimizer
from egpo.local.updates.update import UpdateSettings, mini_batches, update
from egpo.token_stats import token_stats
from tests.local.plain_update import HORIZON, TEMPERATURE, descend, plain_update, recorded_batch

SHAPES = ("qwen3", "qwen2", "llama", "gpt2")
AGGREGATIONS = ("token_mean", "sequence_mean", "fixed_length")


def settings_of(seed=0, total_steps=10, **update_settings):
    update_settings = {"lr": 0.1, "max_grad_norm": 0.5, **update_settings}
    return UpdateSettings(Update(**update_settings), TEMPERATURE, HORIZON, seed, total_steps)


def ample():
    """A budget that any batch here fits."""
    return TokenBudget(10_000)


class Descent(Optimizer):
    """Steps along the gradient, and keeps the first one."""

    def __init__(self, parameters, settings):
        self.named, self.first, self.settings = dict(parameters), None, settings
        super().__init__(self.named.items(), settings)

    def step(self, lr):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.named.values()]
        self.first = self.first or dict(zip(self.named, gradients, strict=True))
        norm = descend(self.named.values(), gradients, lr, self.settings.max_grad_norm)
        self.discard_gradients()
        return norm


def updated(policy, batch, settings, step=0, optimizer=Descent, budget=None):
    optimizer = optimizer(policy.model.named_parameters(), settings.update)
    budget = budget or ample()
    reference_BT = batch.reference_BT if settings.update.kl and settings.update.kl_in == "loss" else None
    stats = update(policy, optimizer, batch.rollouts, batch.advantage_B, settings, budget, step, reference_BT)
    return stats, getattr(optimizer, "first", None), dict(policy.model.named_parameters())


def assert_like_plain(policy, settings, budget=None):
    batch = recorded_batch(policy)
    plain_gradient, plain_weights = plain_update(policy, batch, settings)
    _, gradient, weights = updated(policy, batch, settings, budget=budget)
    assert gradient.keys() == plain_gradient.keys()
    for name in gradient:
        torch.testing.assert_close(
            gradient[name], plain_gradient[name], atol=1e-5, rtol=1e-5, msg=f"gradient of {name}"
        )
        torch.testing.assert_close(weights[name], plain_weights[name], atol=1e-5, rtol=0, msg=name)
    return gradient


LOSSES = {
    **{f"{mean}": {"aggregation": mean} for mean in AGGREGATIONS},
    **{
        f"{mean}-{kl}": {"aggregation": mean, "kl": 0.3, "kl_estimator": kl}
        for mean, kl in itertools.product(AGGREGATIONS, ("k1", "k2", "k3"))
    },
    "kl in the reward": {"kl": 0.3, "kl_in": "reward"},
    "clip high": {"clip": 0.1, "clip_high": 0.3},
    "dual clip": {"dual_clip": 1.2},
    "all of it": {"clip": 0.1, "clip_high": 0.3, "dual_clip": 1.2, "kl": 0.1, "aggregation": "sequence_mean"},
    "epochs": {"epochs": 3},
    "mini-batches": {"mini_batch": 1, "epochs": 2, "kl": 0.1, "dual_clip": 1.5},
    "uneven mini-batches": {"mini_batch": 3, "epochs": 2, "aggregation": "sequence_mean"},
    "gspo": {"loss": "gspo", "clip": 0.05, "aggregation": "sequence_mean"},
    "cispo": {"loss": "cispo", "clip": 0.1, "clip_high": 0.3, "mini_batch": 2},
    "clip-cov": {"loss": "clip_cov", "clip_cov": {"ratio": 0.1, "lower": 0.1, "upper": 2.0}},
    "clip-cov in mini-batches": {
        "loss": "clip_cov",
        "clip_cov": {"ratio": 0.2, "lower": 0.1, "upper": 2.0},
        "mini_batch": 2,
        "epochs": 2,
    },
    "kl-cov": {"loss": "kl_cov", "kl_cov": {"ratio": 0.2, "weight": 0.5, "tolerance": 0.0}},
    "kl-cov in mini-batches": {
        "loss": "kl_cov",
        "kl_cov": {"ratio": 0.3, "weight": 0.5, "tolerance": 0.0},
        "mini_batch": 2,
        "lr": 0.01,
        "aggregation": "sequence_mean",
    },
    "entropy": {"entropy_weight": 0.3},
    "entropy and KL": {"entropy_weight": 0.3, "kl": 0.2, "mini_batch": 2, "aggregation": "sequence_mean"},
    "entropy at a fixed length": {"entropy_weight": 0.3, "aggregation": "fixed_length", "loss": "gspo", "clip": 0.05},
    "importance": {"importance_cap": 1.2},
    "importance in mini-batches": {"importance_cap": 1.2, "mini_batch": 1, "epochs": 2, "lr": 0.01},
    "importance and entropy": {"importance_cap": 1.1, "entropy_weight": 0.1, "loss": "cispo", "epochs": 2},
}


@pytest.mark.parametrize("loss", LOSSES)
def test_an_update_is_the_plain_one(load, loss):
    gradient = assert_like_plain(load("qwen3"), settings_of(**LOSSES[loss]), TokenBudget(40))
    assert max(float(g.abs().max()) for g in gradient.values()) > 1e-3  # the tolerance says something


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("loss", ["token_mean", "all of it", "mini-batches", "entropy and KL"])
def test_an_update_is_the_plain_one_for_every_architecture(load, shape, loss):
    assert_like_plain(load(shape), settings_of(**LOSSES[loss]), TokenBudget(40))


def test_gradient_checkpointing_changes_nothing(load):
    policy = load("qwen3", gradient_checkpointing=True)
    assert policy.model.is_gradient_checkpointing
    assert_like_plain(policy, settings_of(kl=0.1))


def test_the_learning_rate_is_the_schedule_s_at_the_step(load):
    policy, settings = load(), settings_of(lr=1e-3, schedule="linear", total_steps=8)
    batch = recorded_batch(policy)
    rates = [updated(policy, batch, settings, step)[0].metrics()["actor/lr"] for step in (0, 2, 7)]
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.125e-3])


TERMS = {
    "kl": {"kl": 0.1},
    "entropy": {"entropy_weight": 0.2},
    "importance": {"importance_cap": 1.5, "mini_batch": 2},
    **{name: {"loss": name} for name in ("gspo", "cispo")},
    "clip_cov": {"loss": "clip_cov", "clip_cov": {"ratio": 0.2, "lower": 0.0, "upper": 9.0}},
    "kl_cov": {"loss": "kl_cov", "kl_cov": {"ratio": 0.2}},
}


@pytest.mark.parametrize("budget", [1, 17, 40, 100])
@pytest.mark.parametrize("terms", TERMS)
def test_micro_batches_do_not_matter(load, budget, terms):
    batch = recorded_batch(load())
    one, whole, _ = updated(load(), batch, settings_of(**TERMS[terms]))
    other, cut, _ = updated(load(), batch, settings_of(**TERMS[terms]), budget=TokenBudget(budget))
    for name in whole:
        torch.testing.assert_close(cut[name], whole[name], atol=1e-6, rtol=1e-5)
    assert other.metrics() == pytest.approx(one.metrics(), rel=1e-4, abs=1e-6)


def test_figures_are_those_of_the_plain_loss(load):
    policy = load()
    batch = recorded_batch(policy)
    settings = settings_of(kl=0.2, kl_estimator="k1", dual_clip=1.2)
    stats, gradient, _ = updated(policy, batch, settings, budget=TokenBudget(30))
    metrics = stats.metrics()
    norm = torch.stack([g.norm() for g in gradient.values()]).norm()
    assert metrics["actor/grad_norm"] == pytest.approx(float(norm), rel=1e-5)
    assert metrics["actor/lr"] == 0.1
    assert metrics["actor/skipped_updates"] == 0
    assert 0 < metrics["actor/pg_clipfrac_lower"] < metrics["actor/pg_clipfrac"] < 1
    # ppo_kl is old - new and k1 new - reference: their sum is old - reference, which needs no model.
    mask_BT = batch.rollouts.mask_BT
    apart = (batch.rollouts.logp_BT - batch.reference_BT)[mask_BT].mean()
    assert metrics["actor/ppo_kl"] + metrics["actor/kl"] == pytest.approx(float(apart), abs=1e-5)


def test_on_policy_nothing_is_clipped_and_the_loss_is_the_mean_advantage(load):
    policy = load()
    batch = recorded_batch(policy, spread=0.0)
    metrics = updated(policy, batch, settings_of(aggregation="sequence_mean"))[0].metrics()
    assert metrics["actor/pg_clipfrac"] == 0
    assert metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["actor/pg_loss"] == pytest.approx(-float(batch.advantage_B.mean()), abs=1e-5)


def test_rows_without_an_advantage_need_no_pass_but_count(load):
    policy, seen = load(), []
    batch = recorded_batch(policy)
    batch.advantage_B[3:] = 0
    hidden = policy.hidden
    policy.hidden = lambda pack: seen.append(pack) or hidden(pack)
    settings = settings_of()
    plain_gradient, _ = plain_update(policy, batch, settings)
    _, gradient, _ = updated(policy, batch, settings)
    assert sum(len(pack.target_M) for pack in seen) == int(batch.rollouts.length_B[[0, 2]].sum())
    for name in gradient:
        torch.testing.assert_close(gradient[name], plain_gradient[name], atol=1e-6, rtol=1e-5)


def test_without_any_advantage_the_gradient_is_0_and_the_policy_moves_by_its_averages_alone(load):
    policy = load()
    batch = recorded_batch(policy)
    batch.advantage_B.zero_()
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    stats, _, after = updated(policy, batch, settings_of(), optimizer=Optimizer)
    assert stats.metrics()["actor/grad_norm"] == 0
    assert "actor/ppo_kl" not in stats.metrics()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_batch_without_rows_updates_nothing(load):
    policy = load()
    batch = recorded_batch(policy)
    optimizer = Optimizer(policy.model.named_parameters(), Update())
    stats = update(policy, optimizer, batch.rollouts.select([]), torch.zeros(0), settings_of(), ample(), 0)
    assert stats.steps == ()
    assert stats.metrics() == {"actor/lr": 0.1, "actor/skipped_updates": 0}


def test_mini_batches_hold_every_row_once_an_epoch_and_depend_on_seed_step_and_epoch():
    problem_B = torch.arange(10).repeat_interleave(2)
    settings = settings_of(mini_batch=4, epochs=2)

    def order(settings, step):
        return [tuple(rows) for rows in mini_batches(problem_B, settings, step)]

    first = order(settings, 0)
    assert [len(rows) for rows in first] == [8, 8, 4] * 2
    for epoch in (first[:3], first[3:]):
        assert sorted(row for rows in epoch for row in rows) == list(range(20))
    assert first == order(settings, 0)
    assert len({first[:3][0], first[3:][0], order(settings, 1)[0], order(settings_of(1, mini_batch=4), 0)[0]}) == 4
    assert all(problem_B[list(rows)].unique(return_counts=True)[1].eq(2).all() for rows in first)


def test_weights_in_bfloat16_follow_those_in_float32(load):
    """The same batch, the same weights but for their rounding: masters take the steps, weights are their rounding."""
    policy, settings = load(dtype="bfloat16"), settings_of(lr=1e-5, mini_batch=2)
    batch = recorded_batch(load())
    optimizer = Optimizer(policy.model.named_parameters(), settings.update)
    start = {name: p.detach().float() for name, p in policy.model.named_parameters()}
    update(policy, optimizer, batch.rollouts, batch.advantage_B, settings, ample(), 0)
    state, moved = optimizer.state(), 0
    for name, parameter in policy.model.named_parameters():
        master = state[f"master/{name}"]
        assert torch.equal(parameter, master.to(torch.bfloat16))
        moved += int((master != start[name]).sum())
        assert float((master - start[name]).abs().max()) <= 2.1e-5  # two steps of 1e-5
    assert moved > 0.5 * sum(value.numel() for value in start.values())


class ShortOfMemory:
    """A policy's `hidden` that has room for so many tokens, in forward or half way through backward."""

    def __init__(self, policy, room, error, in_backward):
        self.hidden, self.room, self.error, self.in_backward = policy.hidden, room, error, in_backward
        self.failures = 0

    def __call__(self, pack):
        too_large = len(pack.token_N) > self.room
        if too_large and not self.in_backward:
            self.fail()
        hidden_ND = self.hidden(pack)
        if too_large:
            # Fires after the head and the last norm have their gradients, before the layers have theirs.
            hidden_ND.register_hook(lambda _: self.fail())
        return hidden_ND

    def fail(self):
        self.failures += 1
        raise self.error


ERRORS = {
    "gpu": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried"),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("in_backward", [False, True])
def test_out_of_memory_halves_the_micro_batch_and_changes_nothing(load, error, in_backward):
    policy, settings, budget = load("qwen2"), settings_of(kl=0.1, mini_batch=2), ample()
    batch = recorded_batch(policy)
    _, gradient, weights = updated(load("qwen2"), batch, settings_of(kl=0.1, mini_batch=2))
    policy.hidden = short = ShortOfMemory(policy, 35, ERRORS[error], in_backward)
    with pytest.warns(EgpoWarning, match="out of memory on"):
        _, other_gradient, other_weights = updated(policy, batch, settings, budget=budget)
    assert short.failures >= 1
    assert budget.tokens <= 35
    for name in gradient:
        torch.testing.assert_close(other_gradient[name], gradient[name], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(other_weights[name], weights[name], atol=1e-5, rtol=0)
    failures = short.failures
    updated(policy, batch, settings, step=1, budget=budget)
    assert short.failures == failures  # the smaller budget is remembered


def test_one_row_that_does_not_fit_is_an_error_with_advice(load):
    policy = load()
    batch = recorded_batch(policy)
    policy.hidden = ShortOfMemory(policy, 2, ERRORS["gpu"], in_backward=True)
    with pytest.warns(EgpoWarning), pytest.raises(EgpoError, match=r"one sequence of .*gradient_checkpointing"):
        updated(policy, batch, settings_of())


def test_other_errors_of_the_model_pass_through(load):
    policy = load()
    batch = recorded_batch(policy)
    policy.hidden = ShortOfMemory(policy, 2, RuntimeError("shapes do not match"), in_backward=False)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        updated(policy, batch, settings_of())


def test_a_chosen_token_of_a_row_without_an_advantage_has_its_kl_term(load):
    """Such a row is left out otherwise."""
    batch = recorded_batch(load())
    batch.advantage_B[
        :
    ] = -1.0  # rows 0 to 5 lie above the mean, and their likeliest tokens have the largest covariance
    batch.advantage_B[:6] = 0.0
    settings = settings_of(loss="kl_cov", kl_cov={"ratio": 0.2, "weight": 1.0, "tolerance": 0.0}, lr=1e-6)
    plain_gradient, _ = plain_update(load(), batch, settings)
    stats, gradient, _ = updated(load(), batch, settings)
    assert stats.metrics()["actor/marked_frac"] == pytest.approx(0.2, abs=0.02)
    for name in gradient:
        torch.testing.assert_close(gradient[name], plain_gradient[name], atol=1e-5, rtol=1e-5)


def test_the_entropy_term_raises_the_entropy_and_its_weight_is_a_metric(load):
    batch = recorded_batch(load(), spread=0.0)
    batch.advantage_B.zero_()

    def entropy_after(weight):
        policy, settings = load(), settings_of(entropy_weight=weight, lr=1e-3)
        stats, _, _ = updated(policy, batch, settings, optimizer=Optimizer)
        pack = pack_groups([RowTokens.of(batch.rollouts).sequences([row]) for row in range(12)], policy.device)
        hidden_MD = policy.hidden(pack)[pack.source_M]
        return float(token_stats(hidden_MD, policy.head_VD, pack.target_M, TEMPERATURE)[1].mean()), stats.metrics()

    (before, plain), (after, metrics) = entropy_after(0.0), entropy_after(1.0)
    assert after > before + 1e-3
    assert metrics["actor/entropy_weight"] == 1.0
    assert metrics["actor/grad_norm"] > 0
    assert "actor/entropy_weight" not in plain


def test_an_entropy_weight_of_0_changes_no_bit(load, monkeypatch):
    """The gradient of the entropy is not asked for."""
    asked, original = [], losses.token_stats

    def spy(*arguments, entropy_gradient=False):
        asked.append(entropy_gradient)
        return original(*arguments)

    batch = recorded_batch(load())
    _, _, weights = updated(load(), batch, settings_of(entropy_weight=0.0), optimizer=Optimizer)
    monkeypatch.setattr(losses, "token_stats", spy)
    _, _, plain = updated(load(), batch, settings_of(), optimizer=Optimizer)
    assert asked == [False] * len(asked)
    assert all(torch.equal(weights[name], plain[name]) for name in weights)


@pytest.mark.parametrize(("words", "passes"), [({}, 1), ({"mini_batch": 2}, 3), ({"epochs": 2}, 3)])
def test_importance_weights_cost_a_pass_only_if_there_are_several_steps(load, words, passes):
    """One pass for each mini-batch, and one for the log-probabilities before the first, if there is a second."""
    policy, seen = load(), []
    batch, hidden = recorded_batch(load()), policy.hidden
    policy.hidden = lambda pack: seen.append(pack) or hidden(pack)
    updated(policy, batch, settings_of(importance_cap=2.0, **words))
    assert len(seen) == passes


@pytest.mark.parametrize("words", [{}, {"mini_batch": 1}])
def test_importance_weights_are_1_where_sampler_and_trainer_agree(load, words):
    batch = recorded_batch(load(), spread=0.0)
    stats, gradient, _ = updated(load(), batch, settings_of(importance_cap=2.0, **words))
    _, plain, _ = updated(load(), batch, settings_of(**words))
    metrics = stats.metrics()
    assert metrics["sampler/weight_mean"] == pytest.approx(1, abs=1e-5)
    assert metrics["sampler/weight_capped_frac"] == 0
    for name in gradient:
        torch.testing.assert_close(gradient[name], plain[name], atol=1e-5, rtol=1e-4)


def test_importance_weights_are_capped_and_the_sampler_is_still_compared(load):
    exact = recorded_batch(load(), spread=0.0)
    logp_BT = exact.rollouts.logp_BT - 0.5 * exact.rollouts.mask_BT
    apart = replace(exact, rollouts=replace(exact.rollouts, logp_BT=logp_BT))
    for cap, weight in ((1.2, 1.2), (9.0, 1.64872)):
        metrics = updated(load(), apart, settings_of(importance_cap=cap))[0].metrics()
        assert metrics["sampler/weight_mean"] == pytest.approx(weight, abs=1e-4)
        assert metrics["sampler/weight_capped_frac"] == (1.0 if cap == 1.2 else 0.0)
        assert metrics["sampler/logp_diff_mean"] == pytest.approx(0.5, abs=1e-5)
        assert metrics["actor/ppo_kl"] == pytest.approx(0, abs=1e-6)


def poison_a_recorded_logp(policy, batch, rows):
    batch.rollouts.logp_BT[rows[0], 0] = torch.nan


def poison_a_gradient(policy, batch, rows):
    """The loss stays a number."""
    token = int(batch.rollouts.response_BT[rows[-1], 1])
    hidden = policy.hidden

    def poisoned(pack):
        hidden_ND = hidden(pack)
        if token in pack.token_N.tolist():
            hidden_ND.register_hook(lambda gradient: gradient * torch.inf)
        return hidden_ND

    policy.hidden = poisoned


@pytest.mark.parametrize("poison", [poison_a_recorded_logp, poison_a_gradient])
def test_what_is_not_finite_is_skipped_and_counted(load, poison):
    policy, settings = load("qwen2"), settings_of(mini_batch=2, lr=1e-4)
    batch = recorded_batch(policy, seed=1)
    first, second = mini_batches(batch.rollouts.problem_B, settings, 0)
    poison(policy, batch, second)
    stats, _, weights = updated(policy, batch, settings, optimizer=Optimizer)
    metrics = stats.metrics()
    assert metrics["actor/skipped_updates"] == 1
    assert all(torch.tensor(list(metrics.values())).isfinite())
    only = load("qwen2")
    rollouts, advantage_B = batch.rollouts.select(first), batch.advantage_B[first]
    update(only, Optimizer(only.model.named_parameters(), settings.update), rollouts, advantage_B, settings, ample(), 0)
    for name, parameter in only.model.named_parameters():
        torch.testing.assert_close(weights[name], parameter, atol=1e-5, rtol=0)


def test_the_sampler_is_compared_before_the_first_mini_batch_only(load):
    """Later mini-batches have other weights than the sampler had."""
    exact = recorded_batch(load(), spread=0.0)
    logp_BT = exact.rollouts.logp_BT + 0.5 * exact.rollouts.mask_BT
    apart = replace(exact, rollouts=replace(exact.rollouts, logp_BT=logp_BT))
    for settings in (settings_of(), settings_of(epochs=3), settings_of(mini_batch=1)):
        metrics = updated(load(), apart, settings, budget=TokenBudget(17))[0].metrics()
        assert metrics["sampler/logp_diff_mean"] == pytest.approx(0.5, abs=1e-5)
        assert metrics["sampler/logp_diff_max"] == pytest.approx(0.5, abs=1e-4)
    assert metrics["sampler/clipped_frac"] > 0
    same = updated(load(), exact, settings_of(epochs=3))[0].metrics()
    assert same["sampler/logp_diff_max"] < 1e-4
    assert same["sampler/clipped_frac"] == 0
