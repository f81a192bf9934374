"""What a run leaves on disk and shows on the screen: folder, metrics, provenance, rollouts, health. No torch."""

from egpo.runs.differences import Difference, config_differences
from egpo.runs.dump import RolloutRecord, TokenSpan, read_dump, token_spans, write_dump
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
    "TokenSpan",
    "Trackers",
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
