"""The files of a training run and its display on the screen, for both engines. Imports no torch.

In: the metrics, timings and responses of each step. Out: the files of `runs/<name>/`, and lines on the screen.

folder.py        the paths of a run folder and its lock; `differences.py`: which settings a resumed run may change
opening.py       opens a new or a resumed run, with the same order of operations for RL, SFT and verl
provenance.py    `provenance.json`: versions, hardware, git state and data digests
ledger.py        records a step: metrics, timings, trackers, screen and health notes; rewinds a resumed run
metrics.py       `metrics.jsonl` and `timings.jsonl`, and the history that health rules read; lines: `json_lines.py`
metric_table.py  the table of metrics: to add one, add a row (with `chart=` for the report) and compute it, in
                 `local/summarise.py` and `verl/measures.py`. `metrics_page.py` generates docs/metrics.md from it
health.py        the table of health rules, and `health.jsonl`
live.py          the panel or the log lines; `formatting.py`: numbers as text; `trackers.py`: TensorBoard and others
dump.py          `rollouts/step_N.jsonl`: the responses of a step; `sample_table.py`: a few of them, for trackers
checkpoint_manifest.py  size and digest of every file of a checkpoint, by which damage is found
removed.py       `removed.json`: parts of the checkpoints that were removed after the evaluation (`egpo run --keep`)
stored.py        reads a finished or running run folder back
"""

from egpo.runs.differences import Difference, config_differences
from egpo.runs.dump import (
    RolloutRecord,
    TokenAlternatives,
    TokenSpan,
    TurnSpan,
    read_dump,
    token_spans,
    write_dump,
)
from egpo.runs.folder import RunFolder
from egpo.runs.health import RULES, Health, Note, NoteStream, Rule, read_notes
from egpo.runs.live import LiveView
from egpo.runs.metrics import MetricStream, read_metrics
from egpo.runs.provenance import (
    Launch,
    Provenance,
    describe_launch,
    read_provenance,
    record_resumption,
    write_provenance,
)
from egpo.runs.stored import StoredRun
from egpo.runs.trackers import Trackers, open_trackers

__all__ = [
    "RULES",
    "Difference",
    "Health",
    "Launch",
    "LiveView",
    "MetricStream",
    "Note",
    "NoteStream",
    "Provenance",
    "RolloutRecord",
    "Rule",
    "RunFolder",
    "StoredRun",
    "TokenAlternatives",
    "TokenSpan",
    "Trackers",
    "TurnSpan",
    "config_differences",
    "describe_launch",
    "open_trackers",
    "read_dump",
    "read_metrics",
    "read_notes",
    "read_provenance",
    "record_resumption",
    "token_spans",
    "write_dump",
    "write_provenance",
]
