"""The methods of the entropy board: named sets of settings of a recipe, each a change against GRPO.

`METHODS[name].settings` are dotted keys of a recipe; everything else of a recipe stays as it is, so that two methods
differ by these settings alone. To add a method: a row in METHODS. Imports nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

Value = str | float | int | bool | None


@dataclass(frozen=True)
class Method:
    """A method. `paper`: where it was published; empty if nowhere. `changes`: the factors that differ from GRPO, if
    there is more than one: a difference between the two cannot be assigned to one of them."""

    about: str = ""
    paper: str = ""
    settings: Mapping[str, Value] = field(default_factory=dict)
    changes: tuple[str, ...] = ()


def _estimator(name: str, **settings: Value) -> dict[str, Value]:
    return {"algorithm.estimator": name, **{f"algorithm.{name}.{key}": value for key, value in settings.items()}}


METHODS: dict[str, Method] = {
    "grpo": Method(
        "rewards relative to the group, over their standard deviation", "arXiv:2402.03300", _estimator("grpo")
    ),
    "egpo": Method("GRPO plus a bonus for the entropy of the thinking", "arXiv:2508.05118", _estimator("egpo")),
    "egpo_calibrated": Method(
        "GRPO's advantages weighted by the group's entropy over the response's own",
        "arXiv:2602.22751",
        _estimator("egpo_calibrated"),
    ),
    "egpo_calibrated_recovery": Method(
        "EGPO calibrated, with a signal by entropy for groups in which every response is wrong",
        "arXiv:2602.22751",
        _estimator("egpo_calibrated", recover=1.0),
        ("weights by entropy", "a signal from groups without a right response"),
    ),
    "token_entropy": Method(
        "GRPO plus a bonus for the entropy of each token", "arXiv:2506.14758", _estimator("token_entropy")
    ),
    "high_entropy": Method(
        "the gradient of the tokens of highest entropy alone", "arXiv:2506.01939", _estimator("high_entropy")
    ),
    "edge": Method(
        "GRPO's advantage times mean entropy over the response's own", "arXiv:2507.21848", _estimator("edge")
    ),
    "gtpo": Method(
        "rewards of tokens reshaped by their entropy",
        "arXiv:2508.04349",
        _estimator("gtpo"),
        ("rewards by entropy of the token", "right and wrong responses normalised apart"),
    ),
    "grpo_s": Method(
        "rewards of responses reshaped by their mean entropy",
        "arXiv:2508.04349",
        _estimator("grpo_s"),
        ("rewards by entropy of the response", "right and wrong responses normalised apart"),
    ),
    "qae": Method("a quantile of the group's rewards as the baseline", "arXiv:2509.22611", _estimator("qae")),
    "clip_cov": Method(
        "no gradient for random tokens of a large covariance of advantage and log-probability",
        "arXiv:2505.22617",
        {"update.loss": "clip_cov"},
        ("no gradient for tokens of a large covariance", "the choice among them is random"),
    ),
    "kl_cov": Method(
        "a KL term for the tokens of the largest covariance of advantage and log-probability",
        "arXiv:2505.22617",
        {"update.loss": "kl_cov"},
        ("no clip", "a KL term for chosen tokens"),
    ),
    "adaptive_entropy": Method(
        "an entropy term whose weight moves towards a target entropy",
        "arXiv:2505.22312",
        {"update.controller": "adaptive_entropy"},
    ),
    "canon": Method(
        "responses compared between and within halves of the group", "arXiv:2509.23962", _estimator("canon")
    ),
    "rloo": Method(
        "the mean of the group's other rewards as the baseline",
        "arXiv:2402.14740",
        _estimator("rloo"),
        ("baseline without the response itself", "no division by the standard deviation"),
    ),
    "dr_grpo": Method(
        "no division by the standard deviation, and a loss over a fixed length",
        "arXiv:2503.20783",
        {"algorithm.normalize": False, "update.aggregation": "fixed_length"},
        ("no division by the standard deviation", "loss over a fixed length"),
    ),
    "dapo": Method(
        "a higher upper clip, mean over tokens, dynamic sampling and a penalty for long responses",
        "arXiv:2503.14476",
        {
            "update.clip_high": 0.28,
            "update.aggregation": "token_mean",
            "algorithm.constant_groups": "replace",
            "algorithm.filter": "all_or_none",
            "algorithm.overlong.penalty": 1.0,
        },
        ("upper clip of 0.28", "mean over tokens", "dynamic sampling", "overlong penalty"),
    ),
    "gspo": Method(
        "one ratio per response, clipped as a whole",
        "arXiv:2507.18071",
        {
            "update.loss": "gspo",
            "update.aggregation": "sequence_mean",
            "update.clip": 3e-4,
            "update.clip_high": 4e-4,
        },
        ("ratio of the response", "mean over responses", "clip of 3e-4 and 4e-4"),
    ),
    "cispo": Method(
        "the clipped ratio as a weight, so that every token keeps its gradient",
        "arXiv:2506.13585",
        {"update.loss": "cispo", "update.clip": 0.999, "update.clip_high": 4.0},
        ("the ratio is a weight", "no lower clip, upper clip of 4"),
    ),
    "tis": Method(
        "token losses weighted by the trainer's probability over the sampler's, at most 2",
        "",
        {"update.importance_cap": 2.0},
        ("importance weights", "the ratio is that of two policies of the trainer"),
    ),
    "pass_at_k": Method("the advantage of the best of k responses", "arXiv:2508.10751", _estimator("pass_at_k")),
    "random_reward": Method(
        "a control: GRPO with rewards of 0 or 1 drawn at random", "arXiv:2509.26114", {"algorithm.random_rewards": 0.5}
    ),
}
