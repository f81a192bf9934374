"""The files that are part of the package: the small base model `egpo-tiny`."""

from pathlib import Path

_FOLDER = Path(__file__).parent
MODELS = {"egpo-tiny": _FOLDER / "egpo-tiny"}


def resolve_model(name: str) -> str:
    """Return the folder of a model that is part of the package; return any other name unchanged.

    If the working directory has a folder of the same name, the name means that folder.
    """
    if name in MODELS and not Path(name).is_dir():
        return str(MODELS[name])
    return name
