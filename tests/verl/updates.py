"""Steps that verl took, through the embedded engine's own update: the same batch and weights in, and out come the loss,
the norm of the gradient and the next weights. B responses, T tokens, M response tokens of a micro-batch."""

from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from math import fsum
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import PreTrainedModel

from egpo.assets import resolve_model
from egpo.config.schema import Model, Update
from egpo.local.measure import Estimate
from egpo.local.models.loading import load_policy
from egpo.local.rollouts import Rollouts
from egpo.local.updates import losses as loss_module
from egpo.local.updates import update as update_module
from egpo.local.updates.losses import token_weights
from egpo.local.updates.micro_batches import budget_for
from egpo.local.updates.optimizer import Optimizer
from egpo.local.updates.reference import load_reference, packed_logp, reference_logp
from egpo.local.updates.update import UpdateSettings, update
from egpo.merges.places import find_shards
from egpo.merges.shards import ShardedWeights, _whole
from egpo.verl.dumps import Recorded
from egpo.verl.launch.recipe_sections import SectionReader
from egpo.verl.launch.schema.known import leaves
from tests.verl.replay import estimate_of, rollouts_of

SAME_WEIGHTS = {"loss": 1e-6, "pg_loss": 1e-6, "kl_loss": 2e-6, "grad_norm": 2e-5}
"""How far losses and norm of the gradient may be apart (see `differences`) if both engines began with the same weights.

The norm has the rounding of float32 in the log-probabilities, whose ratios weight the gradients of tokens: those of
egpo-tiny are up to 1.4e-5 from float64's, in both engines."""
FOLLOWING = {**SAME_WEIGHTS, "grad_norm": 1e-4}
"""The same if each began with its own weights, after an earlier optimizer step. AdamW divides a gradient by its own
size: a weight whose gradient is hardly more than rounding may move by the learning rate in either direction."""
SAME_GRADIENT, SAME_CHANGE = 1e-4, 1e-2
"""How far AdamW's mean of the gradients, and what a step changed in the weights, may be apart: the Euclidean distance,
relative to verl's own length."""
BFLOAT16 = {"loss": 1e-3, "pg_loss": 1e-3, "grad_norm": 0.15}
BFLOAT16_GRADIENT, BFLOAT16_CHANGE = 0.15, 0.3
"""The same bounds in bfloat16. verl rounds log-probabilities to it, too, and the ratio compares with them."""


@dataclass(frozen=True)
class StepFigures:
    """What one update computed: means over its optimizer steps, as verl logs them. Without a KL term `kl_loss` is None.

    `size` is the mean absolute loss of a token. Losses of both signs cancel in their mean, which is 0 where every
    response counts the same and advantages have the mean 0: errors of rounding are relative to this size, not to it.
    """

    loss: float
    pg_loss: float
    kl_loss: float | None
    grad_norm: float
    size: float


NAMES = {
    "actor/loss": "loss",
    "actor/pg_loss": "pg_loss",
    "actor/grad_norm": "grad_norm",
    "actor/kl_loss": "kl_loss",
    "actor/kl": "kl_loss",
}
"""verl's names of the figures. The launcher stores the last but one under the last name."""


def as_logged(ours: StepFigures) -> dict[str, float]:
    """Return the figures by verl's names."""
    values = {name: getattr(ours, figure) for name, figure in NAMES.items()}
    return {name: value for name, value in values.items() if value is not None}


def logged_figures(metrics: Mapping[str, Any]) -> dict[str, float]:
    """verl's own figures of a step, by the names of `StepFigures`: from its log, or from the launcher's."""
    return {ours: metrics[name] for name, ours in NAMES.items() if name in metrics}


def differences(ours: StepFigures, metrics: Mapping[str, Any]) -> dict[str, float]:
    """How far the two engines are apart: losses relative to the mean absolute loss of a token, the norm to itself."""
    theirs = logged_figures(metrics)
    # If every group has equal rewards, all of them are 0.
    found = {name: abs(getattr(ours, name) - theirs[name]) / (ours.size or 1.0) for name in ("loss", "pg_loss")}
    found["grad_norm"] = abs(ours.grad_norm - theirs["grad_norm"]) / (theirs["grad_norm"] or 1.0)
    if ours.kl_loss is not None:
        found["kl_loss"] = abs(ours.kl_loss - theirs["kl_loss"])
    return found


def settings_of(recorded: Recorded) -> UpdateSettings:
    """The settings of verl's update as those of a recipe, by the launcher's own table."""
    given = dict(leaves(recorded.about["update"]))
    reader = SectionReader({**given, "algorithm.adv_estimator": recorded.about["estimator"]})
    rollout = {"prompts": given["data.train_batch_size"], "max_response_tokens": given["data.max_response_length"]}
    return UpdateSettings(
        update=Update.model_validate(reader._update(rollout)),
        temperature=given["actor_rollout_ref.rollout.temperature"],
        horizon=given["actor_rollout_ref.actor.loss_scale_factor"] or given["data.max_response_length"],
        seed=0,
        total_steps=given["trainer.total_training_steps"] or 1,
    )


def rows_per_optimizer_step(recorded: Recorded) -> int:
    """Return the configured number of rows, by which verl divides its means over sequences."""
    given = dict(leaves(recorded.about["update"]))
    return given["actor_rollout_ref.actor.ppo_mini_batch_size"] * given["actor_rollout_ref.rollout.n"]


def mini_batches_of(recorded: Recorded) -> list[list[int]]:
    """The responses of each of verl's optimizer steps.

    Each rank has a part of the batch, and takes its share of a mini-batch from it, row after row.
    """
    given = dict(leaves(recorded.about["update"]))
    actor = "actor_rollout_ref.actor"
    assert not given[f"{actor}.shuffle"]
    ranks = given["trainer.n_gpus_per_node"] * given["trainer.nnodes"]
    share = rows_per_optimizer_step(recorded) // ranks
    part = recorded.about["num_rows"] // ranks
    response_of = {row: place for place, row in enumerate(recorded.row_B.tolist())}
    batches = []
    for start in range(0, part, share):
        rows = [rank * part + start + place for rank in range(ranks) for place in range(share)]
        batches.append([response_of[row] for row in rows if row in response_of])
    return batches * given[f"{actor}.ppo_epochs"]


@dataclass
class _Losses:
    """The sums over all micro-batches of an update. Those of several threads arrive in any order."""

    loss: list[float] = field(default_factory=list)
    kl_loss: list[float] = field(default_factory=list)
    size: list[float] = field(default_factory=list)


@contextmanager
def _watched(batches: list[list[int]], num_rows: int):
    """Let the update take verl's mini-batches instead of its own, and yield its losses.

    verl's means over sequences divide by `num_rows`, the configured number of rows, and the embedded engine's by the
    number of rows with tokens. An episode whose environment cannot start has none, and neither has padding.
    """
    seen, compute = _Losses(), loss_module._loss

    def weights_of(length_B, aggregation, horizon):
        weight_B = token_weights(length_B, aggregation, horizon)
        return weight_B if aggregation == "token_mean" else weight_B * ((length_B > 0).sum() / num_rows)

    def watched(logp_M, entropy_M, targets, settings):
        loss, sums = compute(logp_M, entropy_M, targets, settings)
        seen.loss.append(float(loss.detach()))
        seen.size.append(float((targets.weight_M * targets.advantage_M.abs()).sum()))
        if targets.reference_M is not None:
            kl_M = loss_module.KL_ESTIMATORS[settings.kl_estimator](logp_M.detach(), targets.reference_M)
            seen.kl_loss.append(float((targets.weight_M * kl_M).sum()))
        return loss, sums

    with (
        mock.patch.object(update_module, "mini_batches", return_value=batches),
        mock.patch.object(update_module, "token_weights", weights_of),
        mock.patch.object(loss_module, "_loss", watched),
    ):
        yield seen


def _advantage_of_all(found: Estimate) -> torch.Tensor:
    """verl's update gets the responses that could not be judged, too, with advantage 0."""
    return found.advantage_B.nan_to_num(0.0) if found.advantage_BT is None else found.advantage_BT


Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class TrainedState:
    """Weights and AdamW's moments by the names of the parameters, after `num_steps` optimizer steps."""

    weights: Tensors
    exp_avg: Tensors
    exp_avg_sq: Tensors
    num_steps: int

    @classmethod
    def of_checkpoint(cls, actor: Path, names: list[str]) -> "TrainedState":
        """Read verl's shards. Its optimizer knows the parameters by their numbers, in the order of `names`."""
        weights = ShardedWeights(find_shards(actor))
        parts = [torch.load(path, weights_only=True)["state"] for path in sorted(actor.glob("optim_world_size_*.pt"))]
        assert set(parts[0]) == set(range(len(names)))
        moments = {
            key: {name: _whole([part[place][key] for part in parts], key) for place, name in enumerate(names)}
            for key in ("exp_avg", "exp_avg_sq")
        }
        return cls({name: weights[name] for name in names}, **moments, num_steps=int(parts[0][0]["step"]))


def gradient_of(after: TrainedState, before: TrainedState, beta: float) -> dict[str, torch.Tensor]:
    """Return what the gradients since `before` added to AdamW's mean. After one step: its clipped gradient, scaled."""
    kept = beta ** (after.num_steps - before.num_steps)
    zero = torch.zeros(())
    return {name: mean.double() - kept * before.exp_avg.get(name, zero) for name, mean in after.exp_avg.items()}


def distance(ours: Tensors, theirs: Tensors, origin: Tensors | None = None) -> float:
    """The Euclidean distance of two states, relative to how far verl's is from `origin` (None: from 0)."""
    apart = fsum(float((ours[name].double() - one.double()).square().sum()) for name, one in theirs.items())
    zero = torch.zeros(())
    far = fsum(float((one.double() - (origin or {}).get(name, zero)).square().sum()) for name, one in theirs.items())
    return (apart / far) ** 0.5


class Trainee:
    """A policy of the embedded engine that takes the steps that verl took.

    With `dtype` float64 it is the reference for both engines: transformers' layers, and everything in float64 but the
    rotary angles, whose float32 is a part of the model.
    """

    def __init__(self, model: Path | str = "egpo-tiny", dtype: str = "float32", device: str = "cpu") -> None:
        path = str(model if isinstance(model, Path) else resolve_model(model))
        is_exact = dtype == "float64"
        section = Model(path=path, dtype="float32" if is_exact else dtype, device=device)
        self.policy = load_policy(section)
        self._reference = load_reference(self.policy, section, seed=0)
        if is_exact:
            _compute_in_float64(self.policy.model)
            _compute_in_float64(self._reference.policy.model)
        self.names = [name for name, _ in self.policy.model.named_parameters()]
        self.budget = budget_for(None, self.policy)
        self._wide = torch.promote_types(self.policy.head_VD.dtype, torch.float32)
        self._optimizer: Optimizer | None = None

    def rollouts(self, recorded: Recorded) -> Rollouts:
        """Return the batch, on the device of the policy."""
        found, device = rollouts_of(recorded, self.policy.tokenizer), self.policy.device
        on_device = {
            table.name: getattr(found, table.name).to(device)
            for table in fields(found)
            if table.name != "problem_B" and isinstance(getattr(found, table.name), torch.Tensor)
        }
        return replace(found, **on_device | {"logp_BT": on_device["logp_BT"].to(self._wide)})

    def advantage(self, recorded: Recorded) -> torch.Tensor:
        """Return the embedded engine's own advantages, one of each response or of each token."""
        return _advantage_of_all(estimate_of(recorded, self.policy))

    def logp(self, recorded: Recorded) -> torch.Tensor:
        """Return the log-probabilities (B, T) of the sampled tokens under the present weights."""
        rollouts, temperature = self.rollouts(recorded), settings_of(recorded).temperature
        return packed_logp(self.policy, rollouts, temperature, self.budget)

    def take(self, recorded: Recorded, step: int, old_logp_BT: torch.Tensor | None = None) -> StepFigures:
        """Take verl's step `step`, counted from 1, with its batch. The advantages are the embedded engine's own.

        `old_logp_BT`: None for verl's.
        """
        settings = settings_of(recorded)
        rollouts, advantage = self.rollouts(recorded), self.advantage(recorded)
        if settings.update.importance_cap is not None:
            sampled_BT = torch.from_numpy(recorded.sampled_logp_BT)
            rollouts = replace(rollouts, logp_BT=sampled_BT.to(rollouts.logp_BT))
        elif old_logp_BT is not None:
            rollouts = replace(rollouts, logp_BT=old_logp_BT)
        reference_BT = None
        if settings.update.kl and settings.update.kl_in == "loss":
            reference_BT = reference_logp(self._reference, rollouts, settings.temperature, self.budget)
        optimizer, batches = self._optimizer_for(settings.update), mini_batches_of(recorded)
        with _watched(batches, rows_per_optimizer_step(recorded)) as seen:
            stats = update(self.policy, optimizer, rollouts, advantage, settings, self.budget, step - 1, reference_BT)
        metrics = stats.metrics()
        return StepFigures(
            loss=fsum(seen.loss) / len(batches),
            pg_loss=metrics["actor/pg_loss"],
            kl_loss=None if reference_BT is None else fsum(seen.kl_loss) / len(batches),
            grad_norm=metrics["actor/grad_norm"],
            size=fsum(seen.size) / len(batches),
        )

    def state(self) -> TrainedState:
        """The weights, in float32 if the optimizer has them so, and the moments."""
        held = self._optimizer.state() if self._optimizer is not None else {}
        own = {name: weight.detach().to(self._wide) for name, weight in self.policy.model.named_parameters()}
        tables = {
            key: {name: held[f"{key}/{name}"].cpu().clone() for name in self.names if f"{key}/{name}" in held}
            for key in ("exp_avg", "exp_avg_sq")
        }
        weights = {name: held.get(f"master/{name}", own[name]).cpu().clone() for name in self.names}
        steps = (int(value) for key, value in held.items() if key.startswith("step/"))
        return TrainedState(weights, **tables, num_steps=next(steps, 0))

    def restore(self, state: TrainedState, recorded: Recorded) -> None:
        """Go on from where verl was, with the settings of `recorded`."""
        optimizer = self._optimizer_for(settings_of(recorded).update)
        with torch.no_grad():
            for name, weight in self.policy.model.named_parameters():
                weight.copy_(state.weights[name])
        held = {}
        if state.num_steps:
            held |= {f"step/{name}": torch.tensor(float(state.num_steps)) for name in self.names}
            for key in ("exp_avg", "exp_avg_sq"):
                held |= {f"{key}/{name}": getattr(state, key)[name].to(self._wide) for name in self.names}
        masters = [key for key in optimizer.state() if key.startswith("master/")]
        optimizer.load_state(held | {key: state.weights[key.removeprefix("master/")].float() for key in masters})

    def _optimizer_for(self, settings: Update) -> Optimizer:
        if self._optimizer is None:
            self._optimizer = Optimizer(self.policy.model.named_parameters(), settings)
        return self._optimizer


def _compute_in_float64(model: PreTrainedModel) -> None:
    """Convert the weights. transformers' norms would still compute in float32: hooks replace what they return. For a
    model with hooks, the engine takes transformers' layers."""
    for module in model.double().modules():
        if hasattr(module, "variance_epsilon"):
            module.register_forward_hook(_norm_in_float64)


def _norm_in_float64(norm: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
    (value,) = inputs
    return norm.weight * value * torch.rsqrt(value.square().mean(-1, keepdim=True) + norm.variance_epsilon)


def bounds_of(recorded: Recorded, *, same_weights: bool, dtype: str = "float32") -> Mapping[str, float]:
    """The bounds of a step. Of several optimizer steps, all but the first begin with each engine's own weights."""
    if dtype == "bfloat16":
        return BFLOAT16
    return SAME_WEIGHTS if same_weights and len(mini_batches_of(recorded)) == 1 else FOLLOWING


def assert_same_update(ours: StepFigures, metrics: Mapping[str, Any], bounds: Mapping[str, float]) -> None:
    found = differences(ours, metrics)
    assert {name: one for name, one in found.items() if not one <= bounds[name]} == {}, (found, ours)


def assert_same_steps(
    recorded: list[Recorded],
    metrics: Sequence[Mapping[str, Any]],
    start: TrainedState | None = None,
    dtype: str = "float32",
) -> Trainee:
    """Take the steps one after the other, from the model's weights or those of `start`, and return who took them."""
    trainee = Trainee(dtype=dtype)
    if start is not None:
        trainee.restore(start, recorded[0])
    for place, (one, logged) in enumerate(zip(recorded, metrics, strict=True)):
        ours = trainee.take(one, place + 1)
        assert_same_update(ours, logged, bounds_of(one, same_weights=not place, dtype=dtype))
    return trainee
