"""`evals/<name>.json`, the figures, and beside it `<name>.jsonl`, the responses that they were made of."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from egpo.errors import EgpoError, InputError
from egpo.evals.evaluate import Evaluation
from egpo.evals.samples import SampleRecord, read_samples, write_samples
from egpo.files import write_atomically
from egpo.runs.machine import installed_versions

FORMAT = 1


@dataclass(frozen=True)
class Origin:
    """What was evaluated: a model's folder or a server's address, and the checkpoint's step where it has one."""

    model: str
    step: int | None = None


@dataclass(frozen=True)
class StoredEvaluation:
    """An evaluation as it is read again: `value` is the JSON."""

    label: str
    value: dict[str, Any]
    samples: tuple[SampleRecord, ...]


def as_json_value(evaluation: Evaluation, origin: Origin) -> dict[str, Any]:
    """Estimates are `{value, low, high, num_problems}`; what is not known is null, or not there."""
    exam = evaluation.exam
    return {
        "format": FORMAT,
        "label": evaluation.label,
        "model": origin.model,
        "step": origin.step,
        "task": exam.task,
        "task_settings": dict(exam.settings),
        "split": exam.split,
        "sampling": asdict(exam.sampling),
        **asdict(evaluation.figures),
        "num_failed": evaluation.figures.num_failed,
        "num_left_out": evaluation.num_left_out,
        "data": evaluation.data,
        "sandbox": evaluation.sandbox,
        "versions": installed_versions(),
    }


def write_evaluation(
    folder: Path, name: str, evaluation: Evaluation, origin: Origin, more: Mapping[str, Any] | None = None
) -> Path:
    """The responses first: figures without them would be hearsay. `more` stands beside them."""
    path = folder / f"{name}.json"
    value = as_json_value(evaluation, origin) | dict(more or {})
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str, allow_nan=False)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_samples(path.with_suffix(".jsonl"), evaluation.samples)
        write_atomically(path, text + "\n")
    except OSError as error:
        fix = "free some space or mend the permissions, or choose another --out"
        raise EgpoError(f"cannot be written ({error.strerror or error})", where=str(path), fix=fix) from error
    return path


def read_evaluation(path: Path) -> StoredEvaluation:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        label = value["label"]
        if value["format"] != FORMAT:
            raise InputError(f"format {value['format']}, and this version reads {FORMAT}", where=str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        fix = "give an `evals/<name>.json` that `egpo eval` wrote"
        raise InputError(f"no evaluation ({error!r:.80})", where=str(path), fix=fix) from error
    return StoredEvaluation(label, value, tuple(read_samples(path.with_suffix(".jsonl"))))


def file_name(*parts: str) -> str:
    """Of letters, digits, `.`, `_` and `-`: a label may be a path, and a model's name may hold anything."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", "-".join(part for part in parts if part)).strip("._-")[:150] or "evaluation"
