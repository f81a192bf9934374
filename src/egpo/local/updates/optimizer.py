"""AdamW with float32 master copies of 16-bit weights, and the learning-rate schedule."""

import math
from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from egpo.config.sections.training import Optimization
from egpo.errors import InputError
from egpo.support import GRADIENT_BYTES, MOMENT_BYTES

Named = Iterable[tuple[str, torch.nn.Parameter]]
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
BYTES_PER_WEIGHT = GRADIENT_BYTES + MOMENT_BYTES
"""Bytes per trained weight, besides the weight itself: a gradient and two moments in float32."""


class Optimizer:
    """The optimizer of the trained weights: it clips the gradient, applies AdamW, and rounds to the weights' dtype.

    A bfloat16 weight has a float32 master copy. AdamW changes the master, and the weight is the rounded master: a
    change by a millionth would be lost in bfloat16's 8 bits. A float32 weight is its own master. A gradient is moved to
    the master as soon as the backward pass has computed it: micro-batches are summed in float32, and bfloat16 gradients
    are never all in memory at once.
    """

    def __init__(self, parameters: Named, settings: Optimization) -> None:
        self._weights = {name: weight for name, weight in parameters if weight.requires_grad}
        self._masters = {name: _master(weight) for name, weight in self._weights.items()}
        self._max_grad_norm = settings.max_grad_norm
        matrices = [master for master in self._masters.values() if master.ndim >= 2]
        others = [master for master in self._masters.values() if master.ndim < 2]
        groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": others, "weight_decay": 0.0}]
        # The fused implementation is the fastest, on a CPU too; there `foreach` is the slowest.
        self._adam = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=settings.lr, betas=settings.betas, fused=True
        )

    def step(self, lr: float) -> float:
        """Apply and discard the gradients; return their norm before clipping. If it is not finite, no weight changes.

        A weight without a gradient counts as gradient 0, so that its moments decay."""
        masters = list(self._masters.values())
        for master in masters:
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        norm = get_total_norm([master.grad for master in masters if master.grad is not None])
        grad_norm = float(norm)
        if math.isfinite(grad_norm):
            if grad_norm > self._max_grad_norm:
                clip_grads_with_norm_(masters, self._max_grad_norm, norm)
            for group in self._adam.param_groups:
                group["lr"] = lr
            self._adam.step()
            self._round()
        self.discard_gradients()
        return grad_norm

    def discard_gradients(self) -> None:
        """Drop all gradients, including those of a backward pass that failed half way."""
        for tensor in (*self._masters.values(), *self._weights.values()):
            tensor.grad = None

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a resumed run needs besides the weights, without copying them.

        Their names are `step/NAME`, `exp_avg/NAME`, `exp_avg_sq/NAME`, and `master/NAME` for a weight with a master.
        """
        held = {f"master/{name}": master.detach() for name, master in self._rounded()}
        for name, master in self._masters.items():
            held |= {f"{moment}/{name}": value for moment, value in self._adam.state.get(master, {}).items()}
        return held

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load the tensors that `state` returned. Weights with a master copy are set to the rounded master."""
        self._require_ours(state)
        for name, master in self._rounded():
            master.copy_(state[f"master/{name}"])
        self._adam.state.clear()
        for name, master in self._masters.items():
            if f"step/{name}" in state:
                self._adam.state[master] = {
                    moment: state[f"{moment}/{name}"].to(master.device, copy=True) for moment in _MOMENTS
                }
        self._round()

    def _rounded(self) -> list[tuple[str, torch.nn.Parameter]]:
        return [(name, master) for name, master in self._masters.items() if master is not self._weights[name]]

    @torch.no_grad()
    def _round(self) -> None:
        for name, master in self._rounded():
            self._weights[name].copy_(master)

    def _require_ours(self, state: Mapping[str, Tensor]) -> None:
        expected = {f"master/{name}": tuple(master.shape) for name, master in self._rounded()}
        if any(name.startswith("step/") for name in state):  # none before the first step
            for name, master in self._masters.items():
                expected |= {f"{moment}/{name}": () if moment == "step" else tuple(master.shape) for moment in _MOMENTS}
        found = {name: tuple(value.shape) for name, value in state.items()}
        wrong = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        if wrong:
            raise InputError(
                f"{len(wrong)} tensors do not belong to this model: {wrong[0]} is {found.get(wrong[0], 'missing')} "
                f"where {expected.get(wrong[0], 'nothing')} was expected",
                where="optimizer state",
                fix="resume with the model and the settings that the checkpoint was written with",
            )


def _master(weight: torch.nn.Parameter) -> torch.nn.Parameter:
    if weight.dtype not in (torch.bfloat16, torch.float16):
        return weight
    master = torch.nn.Parameter(weight.detach().float())
    weight.register_post_accumulate_grad_hook(_moving_to(master))  # type: ignore[no-untyped-call]
    return master


def _moving_to(master: torch.nn.Parameter) -> Callable[[Tensor], None]:
    def move(weight: Tensor) -> None:
        assert weight.grad is not None  # the hook runs right after the gradient was made
        if master.grad is None:
            master.grad = weight.grad.float()
        else:
            master.grad += weight.grad
        weight.grad = None

    return move


def learning_rate(settings: Optimization, step: int, total: int) -> float:
    """Return the learning rate of training step `step` (from 0) of `total`, which all its optimizer steps use.

        warm-up    lr * (step + 1) / (warmup + 1)           step < warmup; the first step is above 0
        constant   lr
        linear     lr * (1 - x)                             x = (step - warmup) / (total - warmup)
        cosine     lr * (1 + cos(pi x)) / 2

    The rate of the last step is still above 0. From `total` on, linear and cosine stay at 0. The rate depends only on
    the arguments, so that a checkpoint need not store it.
    """
    if step < settings.warmup_steps:
        return settings.lr * (step + 1) / (settings.warmup_steps + 1)
    x = min(1.0, (step - settings.warmup_steps) / max(1, total - settings.warmup_steps))
    if settings.schedule == "linear":
        return settings.lr * (1 - x)
    if settings.schedule == "cosine":
        return settings.lr * (1 + math.cos(math.pi * x)) / 2
    return settings.lr
