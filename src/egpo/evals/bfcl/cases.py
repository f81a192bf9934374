"""The cases of a category, as BFCL's package has them."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

from egpo.errors import EgpoError

_WHERE = "import importlib.util as u; print(u.find_spec('bfcl_eval').submodule_search_locations[0])"

_ANSWER_S = 120.0


def first_cases(python: Path, categories: Iterable[str], number: int) -> dict[str, list[str]]:
    """The ids of the first `number` of each, in BFCL's order."""
    folder = data_folder(python)
    return {name: _ids(folder / f"BFCL_v4_{name}.json")[:number] for name in categories}


def data_folder(python: Path) -> Path:
    try:
        done = subprocess.run([str(python), "-c", _WHERE], capture_output=True, text=True, timeout=_ANSWER_S)
    except subprocess.TimeoutExpired as error:
        raise EgpoError(f"this python did not answer within {_ANSWER_S:.0f} s", where=str(python)) from error
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:]
        raise EgpoError(f"bfcl-eval is not in this environment ({' '.join(said)})", where=str(python))
    return Path(done.stdout.strip()) / "data"


def _ids(path: Path) -> list[str]:
    return [str(json.loads(line)["id"]) for line in path.read_text(encoding="utf-8").splitlines()]
