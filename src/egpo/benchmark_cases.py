"""The cases of public benchmarks that a model was trained on, so that an evaluation can leave them out.

A task whose problems are cases of a benchmark has a method `benchmark_cases()`, which returns the ids of its training
cases by benchmark. They are kept in `provenance.json` of a run, and as `trained_cases.json` in the folder of each model
that the run writes, together with those of the model that it started from: of the cold start, or of an earlier run.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from egpo.errors import InputError
from egpo.files import write_atomically

FILE = "trained_cases.json"
ROW_KEY = "benchmark_case"
"""The key of a conversation for SFT that names its case, as `benchmark/id`."""

Cases = Mapping[str, Sequence[str]]
"""Ids of cases by benchmark."""


def cases_of_task(task: object) -> dict[str, list[str]]:
    """Return the training cases of a task; empty if its problems are of no benchmark."""
    method = getattr(task, "benchmark_cases", None)
    return joined_cases(method()) if callable(method) else {}


def case_name(task: object, key: str) -> str | None:
    """Return `benchmark/id` of the training problem with this key; None if it is of no benchmark."""
    benchmark = getattr(task, "benchmark", None)
    return f"{benchmark}/{key}" if isinstance(benchmark, str) else None


def joined_cases(*parts: Cases) -> dict[str, list[str]]:
    """Return the cases of all parts, each once, in the order of their ids."""
    names = sorted({name for part in parts for name, ids in part.items() if ids})
    return {name: sorted({str(case) for part in parts for case in part.get(name, ())}) for name in names}


def cases_in_rows(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the cases that rows for SFT name: conversations with ROW_KEY, or rows that `egpo prepare` wrote."""
    found: dict[str, list[str]] = {}
    for row in rows:
        extra = row.get("extra_info")
        if isinstance(name := row.get(ROW_KEY), str):
            benchmark, _, case = name.partition("/")
            found.setdefault(benchmark, []).append(case)
        elif isinstance(extra, Mapping) and isinstance(stored := extra.get("case"), str):
            found.setdefault(str(row.get("data_source")), []).append(stored)
    return joined_cases(found)


def write_cases(folder: Path, cases: Cases) -> None:
    """Write the cases into a model folder. Nothing is written if there are none."""
    if cases:
        write_atomically(folder / FILE, json.dumps(joined_cases(cases), indent=1) + "\n")


def read_cases(folder: str | Path) -> dict[str, list[str]]:
    """Return the cases that a model folder names; empty if it has no such file.

    InputError if the file cannot be read: without it, an evaluation might include cases that were trained on.
    """
    path = Path(folder).expanduser() / FILE
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        if not all(isinstance(ids, list) for ids in value.values()):
            raise ValueError("a value is not a list")
        return joined_cases(value)
    except (OSError, ValueError, AttributeError) as error:
        fix = "restore the file from the run that trained the model"
        raise InputError(f"the list of trained cases cannot be read ({error})", where=str(path), fix=fix) from error
