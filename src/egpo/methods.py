"""The table of methods: a method is a named set of settings of a recipe, which a board compares with others.

To add a method, add a row to METHODS. A method outside the package is written into the board file (docs/board.md).
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Method:
    """A method: `settings` are the keys of a recipe that it sets, `paper` is where it was published, `about` says in
    one sentence what it does. `changes`: the factors in which it differs from GRPO, if there is more than one."""

    settings: dict[str, Any] = field(default_factory=dict)
    paper: str = ""
    about: str = ""
    changes: tuple[str, ...] = ()


METHODS: dict[str, Method] = {
    "grpo": Method(
        {"algorithm.estimator": "grpo"},
        "arXiv:2402.03300",
        "The reward compared with the group of responses to the same problem.",
    ),
    "egpo": Method(
        {"algorithm.estimator": "egpo"},
        "arXiv:2508.05118",
        "GRPO's advantage plus a clipped bonus for the entropy of the thinking.",
    ),
    "egpo_calibrated": Method(
        {"algorithm.estimator": "egpo_calibrated"},
        "arXiv:2602.22751",
        "GRPO's advantage times the confidence relative to the group.",
    ),
    "token_entropy": Method(
        {"algorithm.estimator": "token_entropy"},
        "arXiv:2506.14758",
        "GRPO's advantage plus a clipped bonus for the entropy of each token.",
    ),
    "gspo": Method(
        {
            "update.loss": "gspo",
            "update.clip": 3e-4,
            "update.clip_high": 4e-4,
            "update.aggregation": "sequence_mean",
        },
        "arXiv:2507.18071",
        "One ratio per response, clipped as a whole.",
        ("ratio of the response", "narrower clip", "mean over responses"),
    ),
    "dr_grpo": Method(
        {"algorithm.normalize": False, "update.aggregation": "fixed_length"},
        "arXiv:2503.20783",
        "No division by the group's standard deviation or by the length of a response.",
        ("advantages are not normalised", "loss over a fixed length"),
    ),
}
"""The methods by name."""
