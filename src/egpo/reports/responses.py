"""The responses of a step in few bytes: a prompt once a group, tokens as lengths, entropies in hundredths of a nat."""

import json
from collections.abc import Sequence
from typing import Any

from egpo.runs.dump import RolloutRecord

UNKNOWN = -1
"""Stands for an entropy that was not finite."""


def encode_groups(records: Sequence[RolloutRecord]) -> list[dict[str, Any]]:
    """One object for each prompt, with its responses in their order; `of` is their number."""
    groups: dict[tuple[str, str], list[RolloutRecord]] = {}
    for record in records:
        groups.setdefault((record.problem, record.input), []).append(record)
    return [_encode_group(members) for members in groups.values()]


def _encode_group(members: Sequence[RolloutRecord]) -> dict[str, Any]:
    first = members[0]
    truth = first.gts if isinstance(first.gts, str) else json.dumps(first.gts, ensure_ascii=False, indent=1)
    return {
        "problem": first.problem,
        "source": first.data_source,
        "prompt": first.input,
        "truth": truth,
        "of": len(members),
        "responses": [_encode_response(record) for record in members],
    }


def _encode_response(record: RolloutRecord) -> dict[str, Any]:
    whole = bool(record.tokens) and "".join(record.tokens) == record.output
    entropies = [UNKNOWN if entropy is None else round(100 * entropy) for entropy in record.token_entropy]
    return {
        "text": record.output,
        "lengths": [utf16_length(token) for token in record.tokens] if whole else [],
        "entropies": entropies if whole and len(entropies) == len(record.tokens) else [],
        "spans": [[span.name, span.start, span.end] for span in record.token_segment] if whole else [],
        "segments": {name: _short(entropy) for name, entropy in record.segments.items() if entropy is not None},
        "sample": record.sample,
        "score": _short(record.score),
        "advantage": _short(record.advantage),
        "correct": record.acc,
        "failed": record.failed,
        "finished": record.finished,
        "reason": record.reason,
        "tokens": record.num_tokens,
    }


def utf16_length(text: str) -> int:
    """As JavaScript counts: what lies above the first 65,536 characters takes two places."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
