"""The update as one would write it on a blackboard: row by row, full logits, autograd. And a recorded batch for it."""

from dataclasses import dataclass, replace

import torch
from transformers import AutoModelForCausalLM

from egpo.local.draws import Draws
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
    return plain_stats(model, rollouts, row)[0]


def plain_stats(model, rollouts, row):
    """The log-probability of each token of a response, and the entropy of the distribution that it is drawn from."""
    prompt = rollouts.prompts[rollouts.problem_B[row]]
    response = rollouts.response_BT[row, : rollouts.length_B[row]].to(model.device)
    tokens = torch.cat([torch.tensor(prompt, device=model.device), response])
    logits = model(tokens[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
    logp_TV = torch.log_softmax(logits.float() / TEMPERATURE, -1)
    return logp_TV.gather(1, response[:, None])[:, 0], -(logp_TV.exp() * logp_TV).sum(1)


def plain_surrogate(logp_T, old_T, advantage, marked_T, settings):
    """The loss of each token of a response, after the formulas in the pages of the loss forms."""
    ratio_T = (logp_T - old_T).exp()
    low, high = 1 - settings.clip, 1 + (settings.clip_high or settings.clip)
    if settings.loss == "gspo":
        mean = (logp_T - old_T).mean().detach()
        ratio_T = (mean + logp_T - logp_T.detach()).exp()
    if settings.loss == "cispo":
        return -ratio_T.clamp(low, high).detach() * advantage * logp_T
    if settings.loss == "kl_cov":
        return -advantage * ratio_T + settings.kl_cov.weight * (logp_T - old_T).abs() * marked_T
    loss_T = -torch.minimum(advantage * ratio_T, advantage * ratio_T.clamp(low, high))
    if settings.dual_clip and advantage < 0:
        loss_T = loss_T.clamp(max=float(-advantage * settings.dual_clip))
    return loss_T * ~marked_T


def plain_marks(batch, rows, settings, seed, step):
    """The tokens that Clip-Cov and KL-Cov choose in a mini-batch: row -> mask."""
    rollouts = batch.rollouts
    places = [(row, t) for row in rows for t in range(int(rollouts.length_B[row]))]
    marks = {
        row: torch.zeros(int(rollouts.length_B[row]), dtype=torch.bool, device=rollouts.mask_BT.device) for row in rows
    }
    if settings.loss not in ("clip_cov", "kl_cov"):
        return marks
    logp = [float(rollouts.logp_BT[place]) for place in places]
    advantage = [float(batch.advantage_B[row]) for row, _ in places]
    mean_logp, mean_advantage = sum(logp) / len(logp), sum(advantage) / len(advantage)
    covariance = [(a - mean_advantage) * (x - mean_logp) for a, x in zip(advantage, logp, strict=True)]
    own = getattr(settings, settings.loss)
    number = max(1, int(own.ratio * len(places)))
    if settings.loss == "kl_cov":
        chosen = sorted(range(len(places)), key=lambda i: -covariance[i])[:number]
    else:
        keys = [rollouts.problems[index].key for index in rollouts.problem_B[list(rows)].tolist()]
        uniform_RT = Draws(seed, step, "loss").uniforms(keys, 1, rollouts.mask_BT.shape[1])
        draws = {row: uniform_RT[place] for place, row in enumerate(rows)}
        eligible = [i for i in range(len(places)) if own.lower < covariance[i] < own.upper]
        chosen = sorted(eligible, key=lambda i: float(draws[places[i][0]][places[i][1]]))[:number]
    for i in chosen:
        marks[places[i][0]][places[i][1]] = True
    return marks


def plain_loss(model, batch, rows, settings, start_logp, marks):
    """The loss of a mini-batch, after the formulas in the config's docstrings. `start_logp`: the log-probabilities of
    the policy before the update, by row."""
    rollouts, losses = batch.rollouts, []
    for row in rows:
        length = rollouts.length_B[row]
        logp_T, entropy_T = plain_stats(model, rollouts, row)
        sampler_T, advantage = rollouts.logp_BT[row, :length], batch.advantage_B[row]
        old_T = sampler_T if settings.importance_cap is None else start_logp[row]
        loss_T = plain_surrogate(logp_T, old_T, advantage, marks[row], settings)
        if settings.importance_cap is not None:
            loss_T = loss_T * (old_T - sampler_T).exp().clamp(max=settings.importance_cap)
        if settings.kl and settings.kl_in == "loss":
            gap_T = logp_T - batch.reference_BT[row, :length]
            kl_T = {"k1": gap_T, "k2": gap_T**2 / 2, "k3": torch.exp(-gap_T) - 1 + gap_T}[settings.kl_estimator]
            loss_T = loss_T + settings.kl * kl_T
        losses.append(loss_T - settings.entropy_weight * entropy_T)
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
    with torch.no_grad():
        start_logp = [plain_logp(model, batch.rollouts, row) for row in range(len(batch.rollouts))]
    for rows in mini_batches(batch.rollouts.problem_B, settings, step):
        marks = plain_marks(batch, rows, settings.update, settings.seed, step)
        loss = plain_loss(model, batch, rows, settings.update, start_logp, marks)
        gradients = torch.autograd.grad(loss, list(named.values()))
        first = first or dict(zip(named, gradients, strict=True))
        descend(named.values(), gradients, settings.update.lr, settings.update.max_grad_norm)
    return first, named
