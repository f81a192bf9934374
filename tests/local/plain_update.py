"""The update as one would write it on a blackboard: row by row, full logits, autograd. And a recorded batch for it."""

from dataclasses import dataclass, replace

import torch
from transformers import AutoModelForCausalLM

from egpo.local.rollouts import Rollouts
from egpo.local.updates.update import mini_batches
from egpo.tasks import Problem

TEMPERATURE = 0.7
HORIZON = 12


@dataclass(frozen=True, eq=False)
class Recorded:
    rollouts: Rollouts
    advantage_B: torch.Tensor
    reference_BT: torch.Tensor

    def to(self, device):
        """The tables of tokens there; what is one number a row stays on the CPU, as in a run."""
        tables = ("response_BT", "mask_BT", "logp_BT", "entropy_BT", "finished_B")
        rollouts = replace(self.rollouts, **{name: getattr(self.rollouts, name).to(device) for name in tables})
        return replace(self, rollouts=rollouts, reference_BT=self.reference_BT.to(device))


def recorded_batch(policy, *, num_problems=4, n=3, seed=0, spread=0.4):
    """Random prompts and responses; old log-probabilities and the reference's lie `spread` around the policy's own, so
    that some ratios are clipped. Responses of one token are among them, and an advantage of 0."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = policy.head_VD.shape[0]
    rows = num_problems * n
    length_B = torch.randint(1, HORIZON + 1, (rows,), generator=generator)
    length_B[0], length_B[-1] = 1, HORIZON
    mask_BT = torch.arange(HORIZON) < length_B[:, None]
    response_BT = torch.randint(3, vocabulary, (rows, HORIZON), generator=generator).where(mask_BT, policy.pad_id)
    prompts = tuple(
        tuple(torch.randint(3, vocabulary, (3 + 2 * p,), generator=generator).tolist()) for p in range(num_problems)
    )
    problem_B = torch.arange(num_problems).repeat_interleave(n)
    blank = Rollouts(
        problems=tuple(Problem(key=str(p), messages=(), ground_truth="") for p in range(num_problems)),
        prompts=prompts,
        problem_B=problem_B,
        response_BT=response_BT,
        mask_BT=mask_BT,
        logp_BT=torch.zeros(rows, HORIZON),
        entropy_BT=torch.zeros(rows, HORIZON),
        finished_B=torch.ones(rows, dtype=torch.bool),
        texts=("",) * rows,
    )
    with torch.no_grad():
        model = plain_model(policy)
        logp_BT = torch.zeros(rows, HORIZON)
        for row in range(rows):
            logp_BT[row, : length_B[row]] = plain_logp(model, blank, row).cpu()
    rollouts = replace(blank, logp_BT=_shaken(logp_BT, spread, generator) * mask_BT)
    advantage_B = torch.randn(rows, generator=generator)
    advantage_B[1] = 0.0
    return Recorded(rollouts, advantage_B, _shaken(logp_BT, spread, generator) * mask_BT).to(policy.device)


def _shaken(logp_BT, spread, generator):
    return logp_BT + spread * torch.randn(logp_BT.shape, generator=generator)


def plain_model(policy):
    """The policy's weights in a model of transformers' own, with its own attention."""
    config = type(policy.model.config).from_dict(policy.model.config.to_dict())
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(policy.head_VD.dtype)
    model.load_state_dict({name: tensor.detach().clone() for name, tensor in policy.model.state_dict().items()})
    return model.eval().to(policy.device)


def plain_logp(model, rollouts, row):
    prompt = rollouts.prompts[rollouts.problem_B[row]]
    response = rollouts.response_BT[row, : rollouts.length_B[row]].to(model.device)
    tokens = torch.cat([torch.tensor(prompt, device=model.device), response])
    logits = model(tokens[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits.float() / TEMPERATURE, -1).gather(1, response[:, None])[:, 0]


def plain_loss(model, batch, rows, settings):
    """The loss of a mini-batch, after the formulas in the config's docstrings."""
    rollouts, losses = batch.rollouts, []
    for row in rows:
        length = rollouts.length_B[row]
        logp_T, old_T = plain_logp(model, rollouts, row), rollouts.logp_BT[row, :length]
        ratio_T, advantage = (logp_T - old_T).exp(), batch.advantage_B[row]
        high = settings.clip_high or settings.clip
        loss_T = -torch.minimum(advantage * ratio_T, advantage * ratio_T.clamp(1 - settings.clip, 1 + high))
        if settings.dual_clip and advantage < 0:
            loss_T = loss_T.clamp(max=float(-advantage * settings.dual_clip))
        if settings.kl and settings.kl_in == "loss":
            gap_T = logp_T - batch.reference_BT[row, :length]
            kl_T = {"k1": gap_T, "k2": gap_T**2 / 2, "k3": torch.exp(-gap_T) - 1 + gap_T}[settings.kl_estimator]
            loss_T = loss_T + settings.kl * kl_T
        losses.append(loss_T)
    if settings.aggregation == "token_mean":
        return torch.cat(losses).mean()
    if settings.aggregation == "sequence_mean":
        return torch.stack([loss_T.mean() for loss_T in losses]).mean()
    return torch.stack([loss_T.sum() / HORIZON for loss_T in losses]).mean()


def descend(weights, gradients, lr, max_grad_norm):
    """One clipped step along the gradient itself. (AdamW would make a whole step of a gradient of 1e-8, which is what
    two right answers may differ by.)"""
    norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
    with torch.no_grad():
        for weight, gradient in zip(weights, gradients, strict=True):
            weight -= lr * gradient * min(1.0, max_grad_norm / float(norm))
    return float(norm)


def plain_update(policy, batch, settings, step=0):
    """The gradients of the first mini-batch, and the weights after all of them, by name."""
    model, first = plain_model(policy), None
    named = dict(model.named_parameters())
    for rows in mini_batches(batch.rollouts.problem_B, settings, step):
        loss = plain_loss(model, batch, rows, settings.update)
        gradients = torch.autograd.grad(loss, list(named.values()))
        first = first or dict(zip(named, gradients, strict=True))
        descend(named.values(), gradients, settings.update.lr, settings.update.max_grad_norm)
    return first, named
