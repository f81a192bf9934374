"""Data on disk: records in any of the usual formats to verl parquet rows, and back. Knows no task and no reward."""

from egpo.data.conversations import DROP_REASONS, ToolStyle
from egpo.data.conversion import CONVERTERS, Conversion, Inversion, SplitRule, convert, invert
from egpo.data.manifest import Manifest, read_manifest
from egpo.data.readers import Record, read_records
from egpo.data.rows import Dropped, Message, Row, Stored, read_rows
from egpo.data.splits import Split, choose_rows, split_rows

__all__ = [
    "CONVERTERS",
    "DROP_REASONS",
    "Conversion",
    "Dropped",
    "Inversion",
    "Manifest",
    "Message",
    "Record",
    "Row",
    "Split",
    "SplitRule",
    "Stored",
    "ToolStyle",
    "choose_rows",
    "convert",
    "invert",
    "read_manifest",
    "read_records",
    "read_rows",
    "split_rows",
]
