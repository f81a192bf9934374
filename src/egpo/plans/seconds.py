"""Seconds of a step, from bytes and operations at the shares of the card's rates that the engine reaches.

The shares are the H200's, by the profiles in docs/speed.md; on a card of other proportions they are a guess.
"""

from dataclasses import dataclass

from egpo.plans.cards import Card
from egpo.plans.jobs import StepJob
from egpo.plans.shapes import ModelShape

_CACHE_SHARE, _WEIGHT_SHARE, _PRODUCT_SHARE, _ATTENTION_SHARE = 0.87, 0.6, 0.9, 0.18
_LAYER_S = 40e-6  # kernels of one layer for one token a row, besides what they read
_TEXT_S = 1e-6  # a token to text, on the host
_UPDATE_S = 0.08  # the host's share of an update, and the optimizer's


@dataclass(frozen=True)
class TimePlan:
    sample_s: float
    update_s: float

    @property
    def step_s(self) -> float:
        return self.sample_s + self.update_s


def plan_seconds(shape: ModelShape, job: StepJob, card: Card) -> TimePlan:
    return TimePlan(_sample_s(shape, job, card), _update_s(shape, job, card))


def _sample_s(shape: ModelShape, job: StepJob, card: Card) -> float:
    """Every token reads the weights once for all rows, and each row's keys and values."""
    waves = -(-job.rows // job.at_once)
    steps = job.longest + (waves - 1) * job.response_tokens
    own = job.new_tokens * (job.response_tokens + 1) / 2
    prompts = min(job.prompts, job.at_once) * job.prompt_tokens * steps
    keys_s = job.bytes_per_weight * shape.cached_numbers * (own + prompts) / (_CACHE_SHARE * card.bytes_per_s)
    weights = job.bytes_per_weight * (shape.layers * shape.layer + shape.head)
    token_s = weights / (_WEIGHT_SHARE * card.bytes_per_s) + shape.layers * _LAYER_S
    return keys_s + steps * token_s + job.new_tokens * _TEXT_S


def _update_s(shape: ModelShape, job: StepJob, card: Card) -> float:
    """Three products a weight and token, four for the head, one less where weights do not learn; attention; and passes
    over what the layers keep."""
    tokens = job.prompts * job.group_tokens
    less = 2 if job.lora else 0
    products = (8 if job.gradient_checkpointing else 6) - less
    operations = products * shape.layers * shape.layer * tokens + (8 - less) * shape.head * job.new_tokens
    scores = job.new_tokens * ((job.response_tokens + 1) / 2 + job.prompt_tokens)
    attention = 4 * 3.5 * shape.layers * shape.queries * shape.width * scores
    moved = 6 * job.bytes_per_weight * shape.kept_numbers() * tokens + 12 * shape.vocabulary * job.new_tokens
    rate = card.operations_per_s
    once_s = operations / (_PRODUCT_SHARE * rate) + attention / (_ATTENTION_SHARE * rate) + moved / card.bytes_per_s
    forward_s = 2 * (shape.layers * shape.layer + shape.head) * tokens / (_PRODUCT_SHARE * rate)
    reference_s = forward_s if job.reference else 0.0
    return job.epochs * once_s + reference_s + _UPDATE_S
