"""Reading and writing of data: converts records of a source to verl parquet rows, and rows back to chat messages.

This package imports no task and no reward. Its modules, in the order in which data passes through them:

    sources.py         a file, a directory or a hub dataset, opened as streams of records
    bfcl_cases.py      the cases of the BFCL benchmark, and their split
    readers.py         JSON, JSON lines and parquet, one record at a time
    hardgen.py, messages.py, xlam.py    the conversation formats: each converts a record to a row, or drops it
    conversations.py   code that the three formats share, and the reasons for dropping a record (DROP_REASONS)
    calls.py           tool calls as Python lists, OpenAI objects and Hermes text
    tool_prompt.py     the system message that lists the tools
    splits.py          the choice of rows, the train/test split, and a temporary file for rows that are not yet split
    rows.py            `Row`, its parquet schema, writing and lazy reading
    tokens.py          prompt and answer lengths under a tokenizer
    manifest.py        `manifest.json`: settings, row counts and digests
    output.py          a set of files that is written completely or not at all
    conversion.py      `egpo convert`, in both directions

To add a conversation format, write a function `(record, source_row, style) -> Row | Dropped`, add it to
`conversion.CONVERTERS`, and add its name to `Convert.format` in `config/sections/experiment.py`.
"""

from egpo.data.conversations import DROP_REASONS, ToolStyle
from egpo.data.conversion import CONVERTERS, Conversion, MessagesExport, SplitRule, convert, export_messages
from egpo.data.manifest import Manifest, read_manifest
from egpo.data.readers import Record, read_records
from egpo.data.rows import Dropped, Message, ParquetRows, Row, read_rows
from egpo.data.splits import Split, choose_rows, split_rows

__all__ = [
    "CONVERTERS",
    "DROP_REASONS",
    "Conversion",
    "Dropped",
    "Manifest",
    "Message",
    "MessagesExport",
    "ParquetRows",
    "Record",
    "Row",
    "Split",
    "SplitRule",
    "ToolStyle",
    "choose_rows",
    "convert",
    "export_messages",
    "read_manifest",
    "read_records",
    "read_rows",
    "split_rows",
]
