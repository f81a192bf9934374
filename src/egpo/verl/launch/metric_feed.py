"""verl's figures of a step, as its file logger writes them: `{"step": N, "data": {name: figure}}` a line."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RENAMED = {"actor/kl_loss": "actor/kl", "actor/reward_kl_penalty": "actor/kl"}
"""verl's names for what every engine of ours calls otherwise."""
_NO_CLOCK = ("perf/total_num_tokens",)


@dataclass(frozen=True)
class StepFigures:
    """What the clock says has a file of its own, as under the local engine."""

    step: int
    metrics: Mapping[str, float]
    timings: Mapping[str, float]


class MetricFeed:
    """New lines of the file, each once. A line counts once its newline is there."""

    def __init__(self, path: Path) -> None:
        self._path, self._position = path, 0

    def new(self) -> Iterator[StepFigures]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._position)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._position += len(line)
                yield _figures(json.loads(line))


def _figures(line: Mapping[str, Any]) -> StepFigures:
    """Numbers only: what is not finite comes as null."""
    known = {RENAMED.get(name, name): value for name, value in line["data"].items() if _is_number(value)}
    timings = {name: value for name, value in known.items() if _depends_on_the_machine(name)}
    metrics = {name: value for name, value in known.items() if name not in timings}
    return StepFigures(int(line["step"]), metrics, timings)


def _depends_on_the_machine(name: str) -> bool:
    """Seconds, throughput, memory: `timing_s/step`, `perf/throughput`, `actor/perf/cpu_memory_used_gb`."""
    return name.startswith("timing_") or ("perf/" in name and name not in _NO_CLOCK)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
