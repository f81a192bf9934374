"""Makes evidence of run folders: settings, provenance, metrics, times and outcomes; no texts, weights or rollouts.

`egpo compare` and `egpo report` read a stripped run like any other. The evaluations of the base model and of the cold
start, of which every run of a task has a copy, are stored once; each run keeps the digest of its copy.

Of the runs of a board, which are many, only the metrics are kept that the page of the board shows, and the reward and
the length of responses (`BOARD_METRICS`); of the times only that of each step.
"""

import gzip
import hashlib
import io
import json
import re
import socket
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from egpo.boards.stored_board import HOLES_FILE
from egpo.cold_starts import FOLDER as COLD_STARTS
from egpo.errors import InputError
from egpo.fingerprints import SEAL, unsealed_line
from egpo.reports.curves import is_validation
from egpo.runs.json_lines import encoded, lines_file, read_lines
from egpo.runs.metric_table import ACCURACY, ENTROPY, REWARD, STEP_S
from egpo.runs.stored import EvaluationFile, StoredRun, read_json_object

BEFORE_TRAINING, BEFORE_FILE = "before_training", "before_training.json"
Files = dict[str, bytes]
"""The files of the evidence: path below docs/evidence -> content."""

# A path of at least two parts that begins at the root. Not: `a/b`, `</tag>`, `https://host/page`.
_ABSOLUTE = re.compile(r"(?<![\w.:/<@])/(?:[\w.+@-]+/)+([\w.+@-]*)")
BOARD_METRICS = ("step", ACCURACY, ENTROPY, REWARD, "response_length/mean", STEP_S)
STARTS = "starts.jsonl"
"""The file with the start-ups of a run on verl, in its folder `verl`."""
_LONGEST_KEY = 16
_OUTCOME = ("sample", "score", "acc", "reason", "num_tokens", "finished")


@dataclass(frozen=True)
class Stripped:
    """Evidence of the complete runs in a folder, and why other runs were left out: name -> reason."""

    files: Files
    left_out: Mapping[str, str]


def strip_runs(folder: Path) -> Stripped:
    """Return the evidence of every complete run in a folder. Raise InputError if there is none."""
    files: Files = {}
    left_out: dict[str, str] = {}
    for path in sorted(config.parent for config in folder.glob("*/config.yaml")):
        run = StoredRun.at(path)
        reason = unfinished(run)
        if reason:
            left_out[run.name] = reason
        else:
            # Of what runs share, the first copy stays.
            files = stripped_run(run, folder) | files
    if not files:
        fix = "give the folder in which `egpo run` has left its runs"
        what = f"there is no complete run ({left_out})" if left_out else "there is no run"
        raise InputError(what, where=str(folder), fix=fix)
    return Stripped(files, left_out)


def task_of(run: StoredRun) -> str:
    """Return the name of the run's task, which is also the name of its group."""
    return run.setting("task", "name").rpartition(":")[2]


def pack(files: Files, archive: Path) -> None:
    """Write the files as one archive."""
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def unpack(archive: Path, folder: Path) -> list[str]:
    """Write the files of an archive below a folder, and return the names of its runs as `task/run`.

    Raise InputError if a run is there already with other content: evidence is added, never replaced.
    """
    with tarfile.open(archive) as tar:
        found = {member.name: tar.extractfile(member) for member in tar.getmembers() if member.isfile()}
        files = {name: file.read() for name, file in found.items() if file is not None}
    for name, content in files.items():
        pure, path = PurePosixPath(name), folder / name
        if pure.is_absolute() or ".." in pure.parts:
            raise InputError(f"the archive has the path {name!r:.80}", where=str(archive), fix="make it with `strip`")
        is_shared = BEFORE_TRAINING in pure.parts or pure.name == HOLES_FILE
        if path.exists() and _content(path) != _content_of(name, content) and not is_shared:
            fix = "remove the older evidence of this run first, if that is what you want"
            raise InputError("this run is there already, with other content", where=str(path), fix=fix)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.name == HOLES_FILE:  # of the evaluations before training the first copy stays
            path.write_bytes(content)
    return sorted(str(PurePosixPath(name).parent) for name in files if _is_config_of_run(PurePosixPath(name)))


def _is_config_of_run(path: PurePosixPath) -> bool:
    return path.name == "config.yaml" and COLD_STARTS not in path.parts


def unfinished(run: StoredRun) -> str:
    """Return why the run is not complete; an empty text if it is."""
    if run.last_step != run.planned_steps:
        return f"trained to step {run.last_step} of {run.planned_steps}"
    if not run.folder.stages.is_file():
        return "it was not made by `egpo run`"
    done = read_json_object(run.folder.stages).get("jobs", {})
    return "" if "eval: trained" in done else "its last checkpoint is not evaluated yet"


def stripped_run(run: StoredRun, folder: Path, board_task: str = "") -> Files:
    """Return the evidence of a run in a folder of runs. `board_task`: for a run of a board, the name of its task there,
    which gives it its place; it then keeps `BOARD_METRICS` alone."""
    scrub = Scrubber(folder.resolve().parent)
    task, source = board_task or task_of(run), run.folder.path
    home = f"runs/{run.name}" if board_task else f"{task}/{run.name}"
    common = _common_files(source, scrub, few=bool(board_task))
    files = {f"{home}/{name}": content for name, content in common.items()}
    starts = run.folder.verl / STARTS
    if starts.is_file():
        files[f"{home}/verl/{STARTS}"] = scrub.text(starts).encode()
    if run.folder.health.is_file():
        files[f"{home}/health.jsonl"] = _health(run, scrub)
    files[f"{home}/stages.json"] = _stages(run.folder.stages)
    before: dict[str, str] = {}
    for evaluation in run.evaluations:
        if not evaluation.is_evaluation:
            continue
        outcomes = _outcomes(evaluation)
        place = f"{home}/evals" if evaluation.step is not None else f"{BEFORE_TRAINING}/{task}"
        if evaluation.step is None:
            before[evaluation.path.stem] = hashlib.sha256(outcomes).hexdigest()
        files[f"{place}/{evaluation.path.name}"] = scrub.json(evaluation.path)
        files[f"{place}/{evaluation.path.stem}.jsonl.gz"] = _gzip(outcomes)
    files[f"{home}/{BEFORE_FILE}"] = _json(before)
    files |= _cold_start(run, folder, scrub)
    return files


def _common_files(source: Path, scrub: "Scrubber", *, few: bool = False) -> Files:
    """Return what a run of RL and a supervised one have in common. Metrics keep all their digits. `few`: only those of
    `BOARD_METRICS` and the validations."""
    files = {"config.yaml": scrub.text(source / "config.yaml").encode()}
    files["provenance.json"] = scrub.json(source / "provenance.json")
    for name in ("metrics.jsonl", "timings.jsonl"):
        if lines_file(source / name) is not None:
            lines = (line.value for line in read_lines(source / name))
            files[f"{name}.gz"] = _gzip(b"".join(_line(_few(line) if few else line) for line in lines))
    return files


def _few(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name in BOARD_METRICS or is_validation(name)}


def _cold_start(run: StoredRun, folder: Path, scrub: "Scrubber") -> Files:
    """Return the files of the supervised run that made the model from which the run started; none without one."""
    model = Path(run.setting("model", "path"))
    source = folder / COLD_STARTS / model.parent.name
    if model.parent.parent.name != COLD_STARTS or not (source / "config.yaml").is_file():
        return {}
    return {f"{COLD_STARTS}/{source.name}/{name}": content for name, content in _common_files(source, scrub).items()}


def _stages(path: Path) -> bytes:
    """Return when each stage was done, and the digests of what the training began with (weights, data, settings)."""
    value = read_json_object(path)
    jobs = {
        name: {**job, "inputs": job["inputs"] if name == "train" else {}, "outputs": {}}
        for name, job in value["jobs"].items()
    }
    return _json({**value, "jobs": jobs})


def _outcomes(evaluation: EvaluationFile) -> bytes:
    """Return the outcome of each response as lines that `egpo compare` reads, without prompts and texts."""
    lines = (line.value for line in read_lines(evaluation.path.with_suffix(".jsonl")))
    return b"".join(_line(_outcome(line)) for line in lines)


def _outcome(line: Mapping[str, Any]) -> dict[str, Any]:
    failed = {"failed": True} if line.get("failed") else {}
    kept = {name: line[name] for name in _OUTCOME if name in line}
    return {"problem": short_key(line["problem"]), "input": "", "output": "", "gts": None, **kept, **failed}


def short_key(key: str) -> str:
    """Return the key of a problem, or of a long one, which may be a whole question, the first digits of its SHA-256."""
    return key if len(key) <= _LONGEST_KEY else hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:12]


@dataclass(frozen=True)
class Scrubber:
    """Removes what belongs to one machine from a text file: `home` is the folder that contains the folder of runs."""

    home: Path

    def text(self, path: Path) -> str:
        """Return a file's text. Paths below `home` become relative to it, other absolute paths their last part."""
        return self.clean(path.read_text(encoding="utf-8"))

    def json(self, path: Path) -> bytes:
        """Return a file with a JSON object, as `text` does, without its seal: git has digests of its own."""
        read_json_object(path)  # raises InputError if the seal is broken
        text = self.text(path)
        value = json.loads(text)
        return _json({key: held for key, held in value.items() if key != SEAL}, 2) if SEAL in value else text.encode()

    def clean(self, text: str) -> str:
        """Return a text without absolute paths and the name of this machine."""
        text = text.replace(f"{self.home}/", "")
        text = _ABSOLUTE.sub(lambda match: match[1], text)
        host = socket.gethostname()
        return re.sub(rf"\b{re.escape(host)}\b", "host", text) if len(host) > 3 else text


def absolute_paths(text: str) -> Iterator[str]:
    """Yield every absolute path in a text."""
    yield from (match[0] for match in _ABSOLUTE.finditer(text))


def _content(path: Path) -> bytes:
    return _content_of(path.name, path.read_bytes())


def _content_of(name: str, content: bytes) -> bytes:
    return gzip.decompress(content) if name.endswith(".gz") else content


def _gzip(content: bytes) -> bytes:
    return gzip.compress(content, compresslevel=9, mtime=0)


def _line(value: Mapping[str, Any]) -> bytes:
    return unsealed_line(encoded(value))


def _health(run: StoredRun, scrub: "Scrubber") -> bytes:
    lines = (unsealed_line(line) for line in run.folder.health.read_bytes().splitlines(keepends=True))
    return scrub.clean(b"".join(lines).decode()).encode()


def _json(value: Any, indent: int = 1) -> bytes:
    return (json.dumps(value, indent=indent, ensure_ascii=False) + "\n").encode()
