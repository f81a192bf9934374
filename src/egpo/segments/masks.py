"""Masks over response tokens that split responses into thinking and answer. B rows, T tokens.

thinking  from the start of the response, or from just after an opening tag, to the first closing tag inclusive
answer    all tokens after the thinking
response  all tokens that the model wrote
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from egpo.errors import InputError, nearest, warn_once
from egpo.segments.tags import first_tag_ends, pair_tables
from egpo.tags import THINK_TAGS, tags_fault


@dataclass(frozen=True, eq=False)
class Segments:
    """Boolean masks over response tokens. Text before an opening tag is in `response` only."""

    thinking_BT: Tensor
    answer_BT: Tensor
    response_BT: Tensor

    def named(self, name: str) -> Tensor:
        """Return the mask of `thinking`, `answer` or `response` (the names of `entropy_mode`)."""
        masks = {"thinking": self.thinking_BT, "answer": self.answer_BT, "response": self.response_BT}
        if name not in masks:
            raise InputError(f"unknown segment `{name}`", where="segments", fix=nearest(name, masks))
        return masks[name]


def segment_masks(
    response_BT: Tensor,
    mask_BT: Tensor,
    tokenizer: Any,
    tags: Sequence[str] = THINK_TAGS,
    *,
    opened_B: Tensor | Sequence[bool] | bool = False,
) -> Segments:
    """Split each response at its first closing tag.

    `opened_B`: prompts that end with the opening tag (see `opened_by_prompt`). There, a response without any tag is
    thinking that was truncated; elsewhere, a response without any tag is all answer. The mask is 1 for tokens that the
    model wrote: padding on either side and tool results are in no segment, and tags in them are ignored.
    """
    _check(response_BT, mask_BT, tags := _pair(tags))
    response_BT, mask_BT = response_BT.long(), mask_BT.bool()
    num_rows, num_tokens = response_BT.shape
    if not response_BT.numel():
        return Segments(mask_BT, mask_BT.clone(), mask_BT.clone())
    opened_B = _per_row(opened_B, num_rows, response_BT.device)
    # An upper bound of len(tokenizer), which counts 150k words at each call: tens of milliseconds.
    size = tokenizer.vocab_size + len(tokenizer.added_tokens_decoder)
    response_BT = _within_vocabulary(response_BT, mask_BT, size)
    tables = pair_tables(tokenizer, tags, size, int(response_BT.max()) + 1, response_BT.device)
    ends = first_tag_ends(tables, response_BT, mask_BT)
    opens_B, closes_B = ends.opening_B, ends.closing_B
    opens_inside_B = ~opened_B & (opens_B < closes_B)
    closed_B = closes_B < num_tokens
    no_tag_B = ~(opened_B | opens_inside_B | closed_B)
    _warn_of_missing_tags(no_tag_B & mask_BT.any(1), tags)
    thinks_from_B = torch.where(opens_inside_B, opens_B + 1, 0)
    answers_from_B = torch.where(no_tag_B, 0, (closes_B + 1).clamp(max=num_tokens))
    position_T = torch.arange(num_tokens, device=response_BT.device, dtype=torch.int32)
    answer_BT = (position_T >= answers_from_B.int().unsqueeze(1)).logical_and_(mask_BT)
    thinking_BT = (position_T >= thinks_from_B.int().unsqueeze(1)).logical_and_(mask_BT) & ~answer_BT
    return Segments(thinking_BT, answer_BT, mask_BT)


def opened_by_prompt(prompt_BT: Tensor, mask_BT: Tensor, tokenizer: Any, tags: Sequence[str] = THINK_TAGS) -> Tensor:
    """Return which prompts end with the opening tag, as in the Qwen3-Thinking template.

    A tag anywhere else, quoted by the user or left in the history, does not count.
    """
    opening = _pair(tags)[0].strip()
    # A tag has at most one token per byte; white space after it rarely takes more than a token or two.
    reach = len(opening.encode()) + 32
    tails = [row[mask][-reach:].tolist() for row, mask in zip(prompt_BT, mask_BT.bool(), strict=True)]
    texts = (
        tokenizer.batch_decode(tails, skip_special_tokens=False, clean_up_tokenization_spaces=False) if tails else []
    )
    return torch.tensor([text.rstrip().endswith(opening) for text in texts], dtype=torch.bool, device=prompt_BT.device)


def mean_over(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the mean of each row over its mask; NaN if the mask is empty. Values outside may be anything, even NaN."""
    if value_BT.shape != mask_BT.shape:
        raise InputError(
            f"values have shape {tuple(value_BT.shape)} and their mask {tuple(mask_BT.shape)}",
            where="mean_over",
            fix="give both the same shape",
        )
    # On a CPU a block of rows at a time, so that temporary values stay in the cache: four times as fast.
    rows = max(1, len(value_BT) if value_BT.is_cuda else 2**18 // max(1, value_BT.shape[-1]))
    blocks = zip(torch.split(value_BT, rows), torch.split(mask_BT.bool(), rows), strict=True)
    return torch.cat([_mean_over_block(*block) for block in blocks])


def _mean_over_block(value_BT: Tensor, mask_BT: Tensor) -> Tensor:
    wide = torch.promote_types(value_BT.dtype, torch.float32)
    return value_BT.where(mask_BT, 0.0).sum(-1, dtype=wide) / mask_BT.to(wide).sum(-1)


def _check(response_BT: Tensor, mask_BT: Tensor, tags: tuple[str, str]) -> None:
    if response_BT.ndim != 2 or response_BT.shape != mask_BT.shape:
        raise InputError(
            f"responses have shape {tuple(response_BT.shape)} and their mask {tuple(mask_BT.shape)}",
            where="segments",
            fix="give both as rows x tokens, in response coordinates (without the prompt)",
        )
    if response_BT.is_floating_point():
        raise InputError(f"responses have dtype {response_BT.dtype}", where="segments", fix="give integer token ids")
    if fault := tags_fault(tags):
        raise InputError(f"the tags {tags} cannot be used", where="segments", fix=fault)


def _pair(tags: Sequence[str]) -> tuple[str, str]:
    if isinstance(tags, str) or len(tags) != 2:
        what = f"the tags {tags!r} are not a pair"
        raise InputError(what, where="segments", fix="give the opening and the closing tag")
    return tags[0], tags[1]


def _per_row(opened_B: Tensor | Sequence[bool] | bool, num_rows: int, device: torch.device) -> Tensor:
    opened_B = torch.as_tensor(opened_B, device=device).bool()
    if opened_B.ndim and opened_B.shape != (num_rows,):
        what = f"opened_B has shape {tuple(opened_B.shape)} for {num_rows} rows"
        raise InputError(what, where="segments", fix="give one value per row")
    return opened_B.expand(num_rows)


def _within_vocabulary(response_BT: Tensor, mask_BT: Tensor, size: int) -> Tensor:
    """Replace invalid ids in padding, such as -100 or 2**31; InputError if tokens that the model wrote are invalid.

    A model may have slightly more token ids than its tokenizer.
    """
    limit = 2 * size + 65_536
    low, high = (int(bound) for bound in response_BT.aminmax())
    if low < 0 or high >= limit:
        response_BT = response_BT.masked_fill(~mask_BT, 0)
        low, high = (int(bound) for bound in response_BT.aminmax())
    if low < 0 or high >= limit:
        raise InputError(
            f"responses contain token ids from {low} to {high}",
            where="segments",
            fix=f"the tokenizer has {size} tokens: use the tokenizer of the model",
        )
    return response_BT


def _warn_of_missing_tags(no_tag_B: Tensor, tags: tuple[str, str]) -> None:
    num_missing = int(no_tag_B.sum())
    if num_missing:
        warn_once(
            "no thinking tags",
            f"{num_missing / len(no_tag_B):.0%} of {len(no_tag_B)} responses have neither `{tags[0]}` nor `{tags[1]}`: "
            "they are treated as answer only; if the prompt ends with the opening tag, pass opened_B",
        )
