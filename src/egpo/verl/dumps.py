"""A step's responses as every engine of ours keeps them: text, verdict, entropy of each token. B rows, T tokens.

verl's own dump has the text and the score alone.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from egpo.runs.dump import RolloutRecord, TokenSpan, token_spans
from egpo.segments import segment_masks
from egpo.segments.tags import TokenTexts
from egpo.verl.estimators import Feed

FIELDS = ["reward_model", "data_source", "extra_info", "advantages"]
"""What a record needs of verl's batch besides what the estimators were fed with."""
_SET_BY_VERL = ("num_turns", "rollout_reward_scores", "split", "index")


@dataclass(frozen=True, eq=False)
class Dumped:
    """`texts` cuts a response into its tokens' parts; `longest` is the length at which responses are cut off."""

    tokenizer: Any
    texts: TokenTexts
    tags: tuple[str, str] | None
    longest: int


def rollout_records(feed: Feed, data: Any, step: int, dumped: Dumped) -> Iterator[RolloutRecord]:
    """One for each response; `data` is a TensorDict that holds `FIELDS`, one row a response."""
    rows, tokenizer = feed.rows, dumped.tokenizer
    length_B = [int(mask_T.nonzero()[-1]) + 1 if bool(mask_T.any()) else 0 for mask_T in rows.mask_BT]
    prompts = [ids[mask].tolist() for ids, mask in zip(rows.prompt_BS, rows.prompt_mask_BS, strict=True)]
    names_B = _segment_names(feed, dumped)
    advantages = data["advantages"].to_padded_tensor(0) if data["advantages"].is_nested else data["advantages"]
    truths, sources, extras = (_listed(data, name, len(length_B)) for name in FIELDS[:3])
    seen: Counter[str] = Counter()
    # verl reorders a batch to balance its ranks: groups stand together here.
    for row in sorted(range(len(length_B)), key=rows.group_B.tolist().__getitem__):
        length = length_B[row]
        ids = rows.response_BT[row, :length].tolist()
        output = tokenizer.decode(ids, skip_special_tokens=True)
        said, extra = rows.information[row], _mapping(extras[row])
        yield RolloutRecord(
            input=tokenizer.decode(prompts[row]),
            output=output,
            gts=_mapping(truths[row]).get("ground_truth"),
            score=float(rows.score_B[row]),
            step=step,
            acc=bool(said.get("acc", False)),
            reason=str(said.get("reason", "")),
            problem=_problem(extra, rows.groups[row]),
            sample=seen[rows.groups[row]],
            advantage=_first_where(advantages[row], rows.mask_BT[row]),
            failed=bool(said.get("failed", False)),
            finished=length < dumped.longest,
            data_source=str(sources[row] or ""),
            extra_info={name: value for name, value in extra.items() if name not in _SET_BY_VERL},
            segments={name: float(entropy_B[row]) for name, entropy_B in feed.measures.entropy.items()},
            tokens=dumped.texts.parts(ids, output),
            token_entropy=_where(rows.entropy_BT[row, :length], rows.mask_BT[row, :length]),
            token_segment=_spans(names_B, row, length),
        )
        seen[rows.groups[row]] += 1


def _segment_names(feed: Feed, dumped: Dumped) -> dict[str, Tensor]:
    opened_B = feed.measures.opened_B
    if dumped.tags is None or opened_B is None:
        return {}
    rows = feed.rows
    segments = segment_masks(rows.response_BT, rows.mask_BT, dumped.tokenizer, dumped.tags, opened_B=opened_B)
    return {name: segments.named(name) for name in ("thinking", "answer")}


def _spans(names_B: Mapping[str, Tensor], row: int, length: int) -> tuple[TokenSpan, ...]:
    masks = {name: mask_BT[row, :length].tolist() for name, mask_BT in names_B.items()}
    return token_spans(next((name for name, mask in masks.items() if mask[i]), None) for i in range(length))


def _where(value_T: Tensor, mask_T: Tensor) -> list[float | None]:
    """None where somebody else wrote: a tool, in the middle of a response."""
    return [value if own else None for value, own in zip(value_T.tolist(), mask_T.tolist(), strict=True)]


def _first_where(value_T: Tensor, mask_T: Tensor) -> float | None:
    """A response's advantage is the same at each of its tokens."""
    own = value_T[: len(mask_T)][mask_T[: len(value_T)]]
    return float(own[0]) if len(own) else None


def _problem(extra: Mapping[str, Any], group: str) -> str:
    """As our files number it, the same at every step; verl's own id, new each time, in those of others."""
    return f"{extra['split']} {extra['index']}" if "split" in extra and "index" in extra else group


def _listed(data: Any, name: str, count: int) -> Sequence[Any]:
    found = data.get(name)
    return [None] * count if found is None else found.tolist()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
