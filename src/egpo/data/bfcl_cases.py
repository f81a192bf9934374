"""The single-turn cases of BFCL, the Berkeley Function-Calling Leaderboard, and their split into parts.

The cases come from the wheel of `bfcl-eval`, which is fetched from the package index once, or from a folder or wheel
that is given. Cases of the trained categories are divided by a hash of their id: about 70 % are for training (`train`),
the others are for testing (`held_out`). Cases of the other categories are never trained on (`unseen`). BFCL poses many
requests twice, in different categories: a training case whose request is also a test case is dropped.
"""

import hashlib
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from egpo.data.readers import Record
from egpo.data.sources import Reader, Source
from egpo.errors import InputError
from egpo.files import cache_folder, write_atomically
from egpo.model_sources.wheels import IndexedWheel, fetched_wheel

BFCL_WHEEL = IndexedWheel(
    package="bfcl-eval",
    version="2026.3.23",
    wheel="bfcl_eval-2026.3.23-py3-none-any.whl",
    wheel_sha256="3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
)
TRAINED = ("simple_python", "multiple", "parallel", "parallel_multiple", "irrelevance")
"""The categories whose cases are divided into training and held-out cases."""
UNSEEN = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple", "live_irrelevance")
"""The categories that are never trained on: requests of real users."""
# Java and JavaScript cases are left out: their arguments are source text of that language, not JSON values.
TRAINED_SHARE = 0.7
PARTS = {"train": "train", "test": "held_out", "unseen": "unseen"}
"""The file of prepared data that holds each part, without its suffix, and the name of the part."""
_PREFIX = "bfcl_eval/data/"


def open_cases(source: str | None, *, seed: int) -> Source:
    """Open BFCL's cases as the source of `egpo prepare`: the records of the files `train`, `test` and `unseen`.

    `source` is the folder `bfcl_eval/data`, or a wheel of `bfcl-eval`; None: the wheel of the package index. `seed`
    determines the order of the cases within a file, but not the part to which a case belongs.
    """
    folder = _indexed_folder() if source is None else Path(source).expanduser()
    names = [name for category in (*TRAINED, *UNSEEN) for name in _files(category)]
    texts = _from_wheel(folder, names) if folder.suffix == ".whl" else _from_folder(folder, names)
    cases = [case for category in (*TRAINED, *UNSEEN) for case in _cases(category, texts, folder)]
    parts = {file: [case for case in cases if case.value["part"] == part] for file, part in PARTS.items()}
    tested = {request_key(case.value) for file in ("test", "unseen") for case in parts[file]}
    for case in parts["train"]:
        case.value["in_other_split"] = request_key(case.value) in tested
    readers: dict[str, Reader] = {file: partial(_in_order, found, seed) for file, found in parts.items()}
    digest = hashlib.sha256("".join(hashlib.sha256(texts[name].encode()).hexdigest() for name in names).encode())
    name = BFCL_WHEEL.requirement if source is None else folder.resolve().name
    return Source(name, digest.hexdigest(), readers)


def part_of(case_id: str, category: str) -> str:
    """Return the part of a case: `unseen` by its category, otherwise `train` or `held_out` by a hash of its id."""
    if category in UNSEEN:
        return "unseen"
    return "train" if _hash(f"bfcl:{case_id}") < TRAINED_SHARE else "held_out"


def request_key(case: Mapping[str, Any]) -> str:
    """Return the words of the user, without case and white space at line ends. Cases with equal keys ask the same."""
    said = [message["content"] for message in case["question"][0] if message["role"] == "user"]
    return " ".join("\n".join(said).lower().split())


def _hash(text: str) -> float:
    """Return a number in [0, 1) that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2**48


def _in_order(cases: Sequence[Record], seed: int) -> Iterator[Record]:
    return iter(sorted(cases, key=lambda case: _hash(f"{seed}:{case.value['id']}")))


def _files(category: str) -> list[str]:
    """Return the files of a category. Where no call is right, there is no file of answers."""
    cases = f"BFCL_v4_{category}.json"
    return [cases] if "irrelevance" in category else [cases, f"possible_answer/{cases}"]


def _cases(category: str, texts: Mapping[str, str], place: Path) -> Iterator[Record]:
    cases, *answers = _files(category)
    right = {row["id"]: row["ground_truth"] for name in answers for row in _rows(texts[name], place / name)}
    for row in _rows(texts[cases], place / cases):
        try:
            value = {
                "id": str(row["id"]),
                "category": category,
                "part": part_of(str(row["id"]), category),
                "question": row["question"],
                "function": row["function"],
                "answers": right[row["id"]] if answers else [],
            }
        except KeyError as error:
            fix = f"give the folder {_PREFIX[:-1]} of {BFCL_WHEEL.requirement}"
            raise InputError(f"a case has no {error}", where=str(place / cases), fix=fix) from error
        yield Record(value, f"{place / cases}, case {row['id']}")


def _rows(text: str, where: Path) -> list[dict[str, Any]]:
    try:
        # Not `splitlines`: a text may contain characters that Python takes for the end of a line.
        rows = [json.loads(line) for line in text.split("\n") if line.strip()]
    except ValueError as error:
        raise InputError(
            f"this is not a file of JSON lines ({error})", where=str(where), fix="fetch it again"
        ) from error
    if not rows or not all(isinstance(row, dict) and "id" in row for row in rows):
        raise InputError("this is not a file of BFCL's cases", where=str(where), fix="fetch it again")
    return rows


def _from_folder(folder: Path, names: Iterable[str]) -> dict[str, str]:
    try:
        return {name: (folder / name).read_text(encoding="utf-8") for name in names}
    except (OSError, UnicodeDecodeError) as error:
        what = f"BFCL's cases cannot be read ({error})"
        fix = f"give the folder {_PREFIX[:-1]} of an installed bfcl-eval, or its wheel, or no source to fetch it"
        raise InputError(what, where=str(folder), fix=fix) from error


def _from_wheel(wheel: Path, names: Iterable[str]) -> dict[str, str]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            return {name: archive.read(_PREFIX + name).decode() for name in names}
    except (OSError, KeyError, UnicodeDecodeError, zipfile.BadZipFile) as error:
        what = f"BFCL's cases cannot be read from the wheel ({error})"
        raise InputError(what, where=str(wheel), fix=f"give a wheel of {BFCL_WHEEL.requirement}") from error


def _indexed_folder() -> Path:
    """Return the folder of the cases in egpo's cache; fetch the wheel and unpack them if that has not been done."""
    folder = cache_folder() / f"bfcl-cases-{BFCL_WHEEL.version}-{BFCL_WHEEL.wheel_sha256[:12]}"
    names = [name for category in (*TRAINED, *UNSEEN) for name in _files(category)]
    if not all((folder / name).is_file() for name in names):
        with fetched_wheel(BFCL_WHEEL, "task bfcl") as wheel:
            texts = _from_wheel(wheel, names)
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / name, text.encode())
    return folder


_TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": "string"}
"""BFCL's names of types that JSON schema does not have."""


def shown_tool(tool: Mapping[str, Any], description_chars: int | None) -> dict[str, Any]:
    """Return a function of a case as it is written into the prompt: with JSON schema's types and short descriptions."""
    schema = _shown_schema(tool.get("parameters") or {}, description_chars)
    described = _short_description(tool.get("description"), description_chars)
    return {"name": tool["name"], **described, "parameters": schema}


def _shown_schema(schema: Mapping[str, Any], limit: int | None) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "type" and isinstance(value, str):
            shown[key] = _TYPES.get(value, value)
        elif key == "description":
            shown |= _short_description(value, limit)
        elif key == "properties" and isinstance(value, Mapping):
            shown[key] = {name: _shown_schema(inner, limit) for name, inner in value.items()}
        elif key == "items" and isinstance(value, Mapping):
            shown[key] = _shown_schema(value, limit)
        else:
            shown[key] = value
    return shown


def _short_description(text: Any, limit: int | None) -> dict[str, str]:
    """Return {"description": text}, shortened to `limit` characters at the end of a sentence or word; {} if empty."""
    if not isinstance(text, str) or limit == 0:
        return {}
    text = " ".join(text.split())
    if limit is not None and len(text) > limit:
        sentence, words = text[:limit].rpartition(". ")[0], text[: limit - 1].rpartition(" ")[0]
        text = f"{sentence}." if sentence else f"{words or text[: limit - 1]}…"
    return {"description": text} if text else {}
