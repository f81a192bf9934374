"""What the package brings along: the tiny base model."""

from pathlib import Path

_FOLDER = Path(__file__).parent
MODELS = {"egpo-tiny": _FOLDER / "egpo-tiny"}


def resolve_model(name: str) -> str:
    """The folder of a model of the package; any other name stays as it is.

    A folder of that name where one stands comes first: what a user sees in front of him is what he means.
    """
    if name in MODELS and not Path(name).is_dir():
        return str(MODELS[name])
    return name
