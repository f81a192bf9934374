"""Answers of servers, kept so that nothing is asked twice: append-only JSON lines, by a digest of the question."""

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from egpo.errors import InputError
from egpo.runs.json_lines import Line, LineStream, read_lines


@dataclass(frozen=True)
class Answer:
    """What a server wrote: `finished` unless it was cut off; None where the server does not tell."""

    text: str
    num_tokens: int | None = None
    finished: bool | None = None


def question_key(url: str, body: Mapping[str, Any], sample: int) -> str:
    """Equal for equal questions: the server, all that is sent to it (model, prompt, settings), and which sample."""
    text = json.dumps([url, body, sample], sort_keys=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class AnswerCache:
    """Answers only: what a server failed to answer is asked again next time."""

    def __init__(self, path: Path, answers: dict[str, Answer]) -> None:
        self.path, self._answers, self._stream = path, answers, LineStream(path)

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator["AnswerCache"]:
        """Locked by this process. A last line that a killed process left half written is cut off."""
        with _opened(path) as file:
            _lock(file.fileno(), path)
            lines = list(read_lines(path))
            LineStream(path).cut(lines[-1].end if lines else 0)
            yield cls(path, dict(_known(line, path) for line in lines))

    def find(self, key: str) -> Answer | None:
        return self._answers.get(key)

    def keep(self, key: str, answer: Answer) -> None:
        self._stream.append({"key": key, **asdict(answer)})
        self._answers[key] = answer


def _opened(path: Path) -> BinaryIO:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        fix = "mend the permissions, or choose another --out"
        raise InputError(f"cannot be written ({error.strerror or error})", where=str(path), fix=fix) from error


def _known(line: Line, path: Path) -> tuple[str, Answer]:
    value = dict(line.value)
    try:
        return value.pop("key"), Answer(**value)
    except (KeyError, TypeError) as error:
        where = f"{path}, line {line.number}"
        raise InputError(f"no answer of a server ({error!r})", where=where, fix="remove the line") from error


def _lock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        fix = "wait for it or end it, or choose another --out"
        raise InputError("another process keeps its answers there", where=str(path), fix=fix) from error
