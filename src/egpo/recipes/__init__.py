"""The files of the recipes that are part of the package, their names, and the file that a name or a path means.

A recipe is given as a name (`countdown_tiny`, `originals/gsm8k`) or as the path of a YAML file. A name always means the
recipe of the package; a file in the working directory is meant only if the word has its suffix (`mine.yaml`).
To add a recipe, put a file into this folder. Its first comment begins with the command that launches it.
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path as FilePath

RECIPES = FilePath(__file__).parent
"""The folder of the recipes of the package."""
PARTS = "parts/"
"""Names below this prefix are included by recipes, and cannot be trained on their own."""
DEFAULT = "countdown_tiny"
"""The recipe that examples and `egpo new` use: minutes on a CPU, with the model of the package."""
_SUFFIXES = (".yaml", ".yml")
_HARDWARE = re.compile(r"[Nn]eeds (?P<gpus>\w+ GPUs? of \d+ GB)|(?P<cpu>One CPU core: [^.]*(?:\.\d[^.]*)*)")
_SENTENCE_END = re.compile(r"(?<=\.)\s+(?=[A-Z`])")


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe of the package: its name, its first sentence, and the hardware and time that it states, if any."""

    name: str
    summary: str
    hardware: str


def recipe_names() -> list[str]:
    """Return the names of the recipes of the package that can be trained, those of earlier systems last."""
    return sorted((name for name in _names() if not name.startswith(PARTS)), key=lambda name: ("/" in name, name))


def shipped_recipes() -> list[ShippedRecipe]:
    """Return the recipes of the package with what their first comments say."""
    return [_described(name) for name in recipe_names()]


def recipe_path(word: str | FilePath) -> FilePath:
    """Return the file that a word means: a recipe of the package by its name, or else the path itself.

    >>> recipe_path("countdown_tiny").name, str(recipe_path("mine.yaml"))
    ('countdown_tiny.yaml', 'mine.yaml')
    """
    path = FilePath(word)
    if path.is_absolute() or not path.name or path.suffix in _SUFFIXES:
        return path
    # Only words in the form of a name are looked up, since a long or odd path cannot be.
    return RECIPES / f"{word}.yaml" if str(word) in _names() else path


def recipe_name(path: str | FilePath) -> str | None:
    """Return the name of a recipe of the package, given its name or its file; None for another file."""
    found = recipe_path(path)
    return found.relative_to(RECIPES).with_suffix("").as_posix() if found.is_relative_to(RECIPES) else None


def advice_for_missing(path: FilePath) -> str:
    """Return advice for a recipe that does not exist: the closest file in its folder or recipe of the package."""
    try:
        files = [str(path.with_name(one.name)) for one in path.parent.iterdir() if one.suffix in _SUFFIXES]
    except OSError:
        files = []
    # `recipes/gsm8k_tiny.yml`, `gsm8k-tiny` and `gsm_tiny.yaml` are all tried as names.
    stem = path.stem.replace("-", "_")
    names = {name.rpartition("/")[2]: name for name in reversed(recipe_names())}
    as_file = get_close_matches(str(path), files, n=1, cutoff=0.6) if path.suffix in _SUFFIXES else []
    as_name = get_close_matches(stem, names, n=1, cutoff=0.6)
    if as_file and (stem not in names):
        return f"did you mean `{as_file[0]}`?"
    if as_name:
        return f"did you mean `{names[as_name[0]]}`, a recipe of the package?"
    own = [one for one in files if FilePath(one).stem == path.name]
    if own:
        return f"did you mean `{own[0]}`?"
    return "check the path; `egpo recipes` lists the recipes of the package"


def _names() -> frozenset[str]:
    files = RECIPES.rglob("*.yaml")
    return frozenset(path.relative_to(RECIPES).with_suffix("").as_posix() for path in files)


def _described(name: str) -> ShippedRecipe:
    comment: list[str] = []
    for line in (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        text = line.lstrip("# ")
        comment += [] if text.startswith("egpo ") else [text]
    text = " ".join(comment)
    found = _HARDWARE.search(text)
    hardware = (found["gpus"] or found["cpu"]) if found else ""
    summary = re.split(r"[:;] ", _SENTENCE_END.split(text)[0])[0].rstrip(".").replace(".yaml", "")
    return ShippedRecipe(name, summary, hardware[:1].lower() + hardware[1:])
