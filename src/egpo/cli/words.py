"""The words of a command line: completion, advice for options that are settings, and the first line of a verb.

Nothing here imports torch; the table of settings is imported only when a word is completed or an option is unknown.
"""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

from typer.core import TyperGroup

from egpo.cli.stops import VerbStopped

_READS = "loading {} ..."
_FIRST_LINES = {
    **dict.fromkeys(("train", "sft", "probe", "run", "plan", "eval", "merge", "serve"), _READS),
    **dict.fromkeys(("report", "compare", "results", "audit", "convert"), "reading {} ..."),
    "demo": "starting the demo ...",
    "doctor": "checking this machine ...",
    "prepare": "preparing {} ...",
    "push": "reading {} ...",
}
"""The line that a verb prints to stderr before it imports anything slow. `{}` stands for the first argument."""
_TAKES_SETTINGS = ("train", "sft", "probe", "run", "plan", "config", "new")
_SUB_VERBS = ("bfcl", "rewards", "sandbox", "hardgen", "messages", "xlam", "parquet")
"""Second words of verbs that have several commands."""
_NO_FIRST_LINE = ("-h", "--help", "--install-completion", "--show-completion")


def print_first_line(words: list[str]) -> None:
    """Print what a verb begins with, to stderr, so that no command is silent while it imports torch."""
    if words and words[0] in _FIRST_LINES and not any(word in _NO_FIRST_LINE for word in words):
        given = _arguments(words)
        first_line = "testing the sandbox ..." if words[:2] == ["audit", "sandbox"] else _FIRST_LINES[words[0]]
        line = first_line.format(_shown(given[0]) if given else "")
        print(" ".join(line.split()), file=sys.stderr, flush=True)


def _arguments(words: list[str]) -> list[str]:
    """Return the arguments of a verb. A word after an option, which may be its value, comes last."""
    pairs = list(pairwise(words))
    given = [(before, word) for before, word in pairs if not word.startswith("-") and "=" not in word]
    arguments = [(before, word) for before, word in given if word not in _SUB_VERBS]
    return [word for _, word in sorted(arguments, key=lambda pair: pair[0].startswith("-"))]


def _shown(word: str) -> str:
    """Return a word of the command line as one short, printable text."""
    text = "".join(letter if letter.isprintable() else "?" for letter in word)
    return text if len(text) <= 80 else f"{text[:77]}..."


def complete_recipe(incomplete: str) -> list[str]:
    """Complete a recipe: names of the package's recipes, YAML files and folders of the working directory."""
    from egpo.recipes import recipe_names

    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        entries = []
    files = [f"{path}/" if path.is_dir() else str(path) for path in entries if path.is_dir() or path.suffix == ".yaml"]
    names = [*recipe_names(), *(name for name in files if not Path(name).name.startswith("."))]
    return [name for name in names if name.startswith(incomplete)]


def complete_word(incomplete: str) -> list[str]:
    """Complete a recipe or the key of a setting, as in `update.l` -> `update.lr=`."""
    return [*complete_recipe(incomplete), *complete_setting(incomplete)]


def complete_setting(incomplete: str) -> list[str]:
    """Complete the key of a setting; a section is completed to its keys."""
    from egpo.config import Config, SftConfig

    keys = dict.fromkeys(f"{key}=" for root in (Config, SftConfig) for key in setting_names(root))
    return [key for key in keys if key.startswith(incomplete)]


def setting_names(root: Any) -> list[str]:
    """Return the dotted keys of all settings of a kind of recipe, without the sections themselves."""
    from egpo.sections import key_paths

    keys = [".".join(path) for path in key_paths(root)]
    return [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]


class Verbs(TyperGroup):
    """The group of all verbs. An unknown option that is a setting gets advice: `--steps 3` -> `steps=3`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except VerbStopped as error:  # typer would print `Aborted.` and exit with 1; `stops` prints what to do
            raise SystemExit(1) from error
        except Exception as error:  # by name, because typer has its own copy of click's classes
            if type(error).__name__ != "NoSuchOption":
                raise
            advise_on_option(str(getattr(error, "option_name", "")), sys.argv[1:])
            raise


def advise_on_option(option: str, words: list[str]) -> None:
    """Raise InputError with advice if an unknown option is a setting here or in another tool. Else do nothing."""
    from egpo.config import Config, SftConfig
    from egpo.config.old_spellings import OTHER_TOOLS
    from egpo.errors import InputError

    if not words or words[0] not in _TAKES_SETTINGS or not option.startswith("--"):
        return
    name = option.removeprefix("--").replace("-", "_")
    keys = setting_names(SftConfig if words[0] == "sft" else Config)
    same = [key for key in keys if key == name] or [key for key in keys if key.endswith(f".{name}")]
    meant = OTHER_TOOLS.get(name) if not same else same[0]
    if meant in keys:
        fix = f"settings have no dashes; write {meant}={_value_of(option, words)}"
        raise InputError("no such option", where=option, fix=fix)


def _value_of(option: str, words: list[str]) -> str:
    """Return the value that follows an option on the command line, or VALUE if there is none."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option and after and not after.startswith("--"):
            return after
    return "VALUE"
