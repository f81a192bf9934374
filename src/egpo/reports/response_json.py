"""Responses as JSON inside the page: compact, and escaped, so that nothing a model wrote can become markup.

Each prompt is stored once per group, tokens as lengths, entropies in hundredths of a nat, and probabilities of
alternatives in tenths of a percent.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from egpo.reports.episode_json import encode_episode, utf16_length
from egpo.runs.dump import RolloutRecord, TokenAlternatives

if TYPE_CHECKING:
    from egpo.evals.responses import SampleRecord

# `<`, `>` and `&` could end the block or start markup. In JSON they occur only inside strings, where an escape has the
# same meaning.
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def as_json(value: Any) -> str:
    """Return strict JSON without spaces that is safe inside a <script> block, whatever the value holds."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def num_bytes(value: Any) -> int:
    """Return the size of a value in the page, in bytes."""
    return len(as_json(value).encode("utf-8", "backslashreplace"))


UNKNOWN = -1
"""Stands for an entropy that was not finite."""


def encode_groups(records: "Sequence[RolloutRecord | SampleRecord]") -> list[dict[str, Any]]:
    """Return one object per prompt with its responses in order; `of` is the number of responses.

    Responses of an evaluation have neither tokens nor advantages.
    """
    groups: dict[tuple[str, str], list[RolloutRecord | SampleRecord]] = {}
    for record in records:
        groups.setdefault((record.problem, record.input), []).append(record)
    return [_encode_group(members) for members in groups.values()]


def _encode_group(members: "Sequence[RolloutRecord | SampleRecord]") -> dict[str, Any]:
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


def _encode_response(record: "RolloutRecord | SampleRecord") -> dict[str, Any]:
    tokens = _encode_tokens(record) if isinstance(record, RolloutRecord) else {}
    return (
        tokens
        | {
            "text": record.output,
            "segments": {name: _short(entropy) for name, entropy in record.segments.items() if entropy is not None},
            "sample": record.sample,
            "score": _short(record.score),
            "correct": record.acc,
            "failed": record.failed,
            "finished": record.finished is not False,  # None: a server that does not report it
            "reason": record.reason,
            "tokens": record.num_tokens,
        }
        | _encode_episode(record)
    )


def _encode_episode(record: "RolloutRecord | SampleRecord") -> dict[str, Any]:
    if not isinstance(record.episode, Mapping):
        return {}
    return encode_episode(record.episode, tuple(record.turns) if isinstance(record, RolloutRecord) else ())


def _encode_tokens(record: RolloutRecord) -> dict[str, Any]:
    """Return the keys of a response that was sampled token by token. Empty lists if its tokens do not form its text."""
    whole = bool(record.tokens) and "".join(record.tokens) == _text_of(record)
    entropies = [UNKNOWN if entropy is None else round(100 * entropy) for entropy in record.token_entropy]
    return {
        "lengths": [utf16_length(token) for token in record.tokens] if whole else [],
        "entropies": entropies if whole and len(entropies) == len(record.tokens) else [],
        "spans": [[span.name, span.start, span.end] for span in record.token_segment] if whole else [],
        "advantage": _short(record.advantage),
        "alternatives": [_encode_alternatives(found) for found in record.token_alternatives] if whole else [],
    }


def _text_of(record: RolloutRecord) -> str:
    return record.output if not isinstance(record.episode, Mapping) else str(encode_episode(record.episode)["text"])


def _encode_alternatives(found: TokenAlternatives) -> list[Any]:
    """Return `[token, sampled, [text, probability in tenths of a percent, text, ...]]`."""
    flat = [part for text, share in found.likeliest for part in (text, round(1000 * share))]
    return [found.token, found.sampled, flat]


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.4g}")
