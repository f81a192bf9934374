"""verl's log: what is being done, and why it ended."""

import re
from collections.abc import Iterator
from pathlib import Path

STAGES = {
    "Started a local Ray instance": "start Ray",
    "[validate_config] All": "start Ray",
    "dataset len:": "read data",
    "Total steps:": "load model",
    "init_process_group": "load model",
    "vLLM API server": "start vLLM",
    "Initializing a V1 LLM engine": "start vLLM",
    "Training Progress": "train",
}
"""Words of the log, and the stage that they begin."""

_PREFIX = re.compile(r"^((\x1b\[[0-9;]*m)*\([\w:.]+[^()]*\bpid=\d+[^)]*\)(\x1b\[[0-9;]*m)* ?)+")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RAISED = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit|Died|Failure|Timeout)\b|^AssertionError")
_TRACEBACK = "Traceback (most recent call last):"
_CONSEQUENCES = ("ray.exceptions.", "RayTaskError", "KeyboardInterrupt", "SystemExit", "asyncio.exceptions.Cancelled")
_SAID_BY_US = "egpo: "
_MOST_LINES, _LAST_LINES = 24, 15


def stage_of(line: str) -> str | None:
    """The stage that a line of the log begins, or None."""
    return next((stage for words, stage in STAGES.items() if words in line), None)


def root_cause(log: Path, start: int = 0, end: int | None = None) -> str:
    """Why it ended, out of the log from byte `start` up to `end`: the first traceback that is no consequence of another
    one; what egpo said, where it refused something; or the last lines."""
    with log.open("rb") as file:
        file.seek(start)
        lines = [
            _plain(line)
            for line in file.read(-1 if end is None else end - start).decode("utf-8", "replace").splitlines()
        ]
    tracebacks = list(_tracebacks(lines))
    first = [found for found in tracebacks if not found[-1].startswith(_CONSEQUENCES)]
    chosen = (first or tracebacks)[:1]
    if chosen:
        return "\n".join(chosen[0][-_MOST_LINES:])
    said = [line for line in lines if line.startswith(_SAID_BY_US)]
    return "\n".join(said or [line for line in lines if line.strip()][-_LAST_LINES:])


def _plain(line: str) -> str:
    """Without colours and without Ray's `(Worker pid=123)`."""
    return _COLOUR.sub("", _PREFIX.sub("", line)).rstrip()


def _tracebacks(lines: list[str]) -> Iterator[list[str]]:
    """Each from its head to the line that names what was raised. Other processes may write in between."""
    for start, line in enumerate(lines):
        if line.lstrip().endswith(_TRACEBACK):
            indent = line.index(_TRACEBACK)
            body = [one[indent:] if not one[:indent].strip() else one for one in lines[start + 1 : start + 400]]
            end = next((place for place, one in enumerate(body) if _RAISED.match(one)), None)
            if end is not None:
                yield [_TRACEBACK, *body[: end + 1], *_continued(body[end + 1 :])]


def _continued(lines: list[str]) -> list[str]:
    """A message of several lines goes on until an empty one or the next process' word."""
    continued: list[str] = []
    for line in lines[:3]:
        if not line.startswith((" ", "\t", ";")):
            break
        continued.append(line)
    return continued
