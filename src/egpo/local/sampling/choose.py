"""Choose a token from logits, with its log-probability and the entropy of the distribution; detect ends of responses.

Tensor suffixes: R rows, V vocabulary, K tokens that may be kept by truncation; B rows and T tokens of the tables.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from egpo.local.models.policy import Policy
from egpo.local.rollouts import Alternatives
from egpo.native.library import address, kernels, suits

WHOLE = 2**61
"""Probability 1 as a fixed-point integer. A sum that exceeds it a little by rounding still fits into 64 bits."""
NUM_POSITIONS = 32
"""Positions per response at which alternatives are kept: those of highest entropy."""


@dataclass(frozen=True)
class Sampling:
    """Settings for drawing a token. Temperature 0 is greedy; top_k 0, top_p 1, min_p 0 keep the whole vocabulary."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @property
    def truncates(self) -> bool:
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@dataclass(frozen=True, eq=False)
class Choice:
    """The chosen token of each row, with its log-probability and the entropy of the distribution.

    `logp_R` is over the whole vocabulary at the sampling temperature, as the update computes it. `entropy_R` is the
    entropy in nats of the distribution that was sampled from: at the sampling temperature, and after truncation. For a
    greedy choice both are computed at temperature 1.
    """

    token_R: Tensor
    logp_R: Tensor
    entropy_R: Tensor


def choose(logits_RV: Tensor, uniform_R: Tensor, sampling: Sampling) -> Choice:
    """Choose one token per row, which depends only on the row's logits and its uniform random number."""
    if sampling.temperature > 0 and not sampling.truncates and suits(logits_RV):
        return _native_choice(logits_RV.contiguous(), uniform_R.double().contiguous(), sampling.temperature)
    tempered_RV = logits_RV.float() / (sampling.temperature or 1.0)
    logp_RV = torch.log_softmax(tempered_RV, dim=-1)
    probability_RV = logp_RV.exp()
    if sampling.temperature == 0:
        token_R = logits_RV.argmax(dim=-1)
    else:
        if sampling.truncates:
            probability_RV = truncate(probability_RV, sampling)
        token_R = draw(probability_RV, uniform_R)
    return Choice(token_R, logp_RV.gather(1, token_R[:, None])[:, 0], entropy(probability_RV))


def _native_choice(logits_RV: Tensor, uniform_R: Tensor, temperature: float) -> Choice:
    logp_R, entropy_R = (logits_RV.new_empty(len(logits_RV)) for _ in range(2))
    token_R = torch.empty(len(logits_RV), dtype=torch.long)
    drawn = uniform_R.data_ptr(), token_R.data_ptr(), address(logp_R), address(entropy_R)
    kernels().choose(address(logits_RV), *drawn, *logits_RV.shape, 1 / temperature)
    return Choice(token_R, logp_R, entropy_R)


def entropy(probability_RV: Tensor) -> Tensor:
    """Return the entropy -sum p log p in nats; a token of probability 0 adds nothing."""
    parts_RV: Tensor = torch.special.entr(probability_RV)
    return parts_RV.sum(dim=-1)


def truncate(probability_RV: Tensor, sampling: Sampling) -> Tensor:
    """Return the probabilities of the kept tokens, normalised, and 0 for all others."""
    left_RV = probability_RV * kept_tokens(probability_RV, sampling)
    return left_RV / left_RV.sum(dim=-1, keepdim=True)


def kept_tokens(probability_RV: Tensor, sampling: Sampling) -> Tensor:
    """Return a mask of the tokens that truncation keeps.

    Top-k is applied first, then the smallest set that has a share `top_p` of the remaining probability, then min_p.
    Among equally likely tokens the first ones are kept. The likeliest token is always kept.
    """
    if not sampling.top_k and sampling.top_p == 1:
        return probability_RV >= sampling.min_p * probability_RV.amax(dim=-1, keepdim=True)
    ordered_RK = _likeliest(probability_RV, sampling.top_k)
    count_R1 = _num_kept(ordered_RK, sampling)
    lowest_R1 = ordered_RK.gather(1, count_R1 - 1)
    above_RV, equal_RV = probability_RV > lowest_R1, probability_RV == lowest_R1
    count_R1 = count_R1 - above_RV.sum(dim=-1, keepdim=True)
    return above_RV | (equal_RV & (equal_RV.cumsum(dim=-1, dtype=torch.int32) <= count_R1))


def _likeliest(probability_RV: Tensor, top_k: int) -> Tensor:
    """Return the probabilities in descending order: the first `top_k`, or all if it is 0."""
    if top_k:
        return probability_RV.topk(min(top_k, probability_RV.shape[1])).values
    return probability_RV.sort(dim=-1, descending=True).values


def _num_kept(ordered_RK: Tensor, sampling: Sampling) -> Tensor:
    """Return the number of kept tokens per row (R, 1), at least 1."""
    kept_RK = ordered_RK >= sampling.min_p * ordered_RK[:, :1]
    if sampling.top_p < 1:
        parts_RK = _fixed_point(ordered_RK)
        kept_RK &= parts_RK.cumsum(dim=-1) - parts_RK < math.ceil(sampling.top_p * WHOLE)
    return kept_RK.sum(dim=-1, keepdim=True).clamp(min=1)


def draw(probability_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Draw a token per row: the first whose cumulative probability exceeds the row's uniform random number.

    A token of probability 0 is never drawn. Sums are in integers: in float32 the rare tokens of a large vocabulary
    would vanish in rounding, and on a GPU the last bits of float sums change from run to run.
    """
    cumulative_RV = _fixed_point(probability_RV).cumsum(dim=-1)
    total_R1 = cumulative_RV[:, -1:].contiguous()
    passed_R1 = (uniform_R.double()[:, None] * total_R1).long()
    token_R = torch.searchsorted(cumulative_RV, passed_R1, right=True)
    # Rounding may raise the random number to the total: then take the last token of positive probability.
    return torch.minimum(token_R, torch.searchsorted(cumulative_RV, total_R1))[:, 0]


def _fixed_point(probability_RV: Tensor) -> Tensor:
    """Return each token's probability as an integer fraction of WHOLE: sums of integers are exact in any order."""
    wide_RV = probability_RV.double()
    total_R1 = wide_RV.sum(dim=-1, keepdim=True).clamp(min=1e-200)
    return (wide_RV * (WHOLE / total_R1)).long()


@dataclass(frozen=True)
class Stops:
    """The token ids that end a response, and the strings that end it when they occur anywhere in its text."""

    ids: frozenset[int]
    strings: tuple[str, ...] = ()

    def over(self, token_R: Tensor, written: Sequence[Sequence[int]], tokenizer: PreTrainedTokenizerBase) -> Tensor:
        """Return a mask of the rows that end with their newest token `token_R`.

        `written` has the tokens of each row so far, including the newest; it is read only if there are stop strings.
        """
        over_R = torch.isin(token_R, torch.tensor(sorted(self.ids), device=token_R.device))
        if not self.strings:
            return over_R
        tails = tokenizer.batch_decode([row[-self.num_tail_tokens :] for row in written])
        found = [any(string in tail for string in self.strings) for tail in tails]
        return over_R | torch.tensor(found, device=token_R.device)

    def ends(self, written: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> bool:
        """Return whether a response with these tokens ends with its newest one."""
        if written[-1] in self.ids:
            return True
        if not self.strings:
            return False
        tail = tokenizer.decode(written[-self.num_tail_tokens :])
        return any(string in tail for string in self.strings)

    @property
    def num_tail_tokens(self) -> int:
        """The number of last tokens to search for a stop string.

        A token has at least one byte, so they cover the longest string and an incomplete character.
        """
        return max(len(string.encode()) for string in self.strings) + 4


@dataclass(frozen=True, eq=False)
class ResponseTables:
    """Tables that sampling fills: token ids, log-probabilities and entropies (B, T), lengths and finished flags (B).

    `alternatives` is None unless they were asked for.
    """

    response_BT: Tensor
    logp_BT: Tensor
    entropy_BT: Tensor
    length_B: Tensor
    finished_B: Tensor
    alternatives: Alternatives | None = None

    @classmethod
    def empty(cls, size: tuple[int, int], policy: Policy, num_alternatives: int = 0) -> "ResponseTables":
        device = policy.device
        return cls(
            response_BT=torch.full(size, policy.pad_id, dtype=torch.long, device=device),
            logp_BT=torch.zeros(size, device=device),
            entropy_BT=torch.zeros(size, device=device),
            length_B=torch.zeros(size[0], dtype=torch.long, device=device),
            finished_B=torch.zeros(size[0], dtype=torch.bool, device=device),
            alternatives=Alternatives.empty(size[0], NUM_POSITIONS, num_alternatives, device)
            if num_alternatives
            else None,
        )

    @property
    def num_alternatives(self) -> int:
        return 0 if self.alternatives is None else self.alternatives.token_BSK.shape[2]

    def write(self, row_R: Tensor, step: int, choice: Choice) -> None:
        """Store the choice as token `step` of these rows."""
        self.response_BT[row_R, step] = choice.token_R
        self.logp_BT[row_R, step] = choice.logp_R
        self.entropy_BT[row_R, step] = choice.entropy_R
        self.length_B[row_R] = step + 1

    def written(self, row_R: Tensor, step: int) -> list[list[int]]:
        """Return the tokens of these rows up to token `step`, inclusive."""
        rows: list[list[int]] = self.response_BT[row_R, : step + 1].tolist()
        return rows
