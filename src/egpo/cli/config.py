"""`egpo config`: show, check and import recipes, and print their schema."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from egpo.cli.words import complete_word

if TYPE_CHECKING:
    from egpo.config import Config, SftConfig
    from egpo.config.load import Values
    from egpo.errors import Fault

config_app = typer.Typer(
    no_args_is_help=True,
    help="Show, check and import recipes.\n\nExample: [cyan]egpo config check mine.yaml[/]",
    rich_markup_mode="rich",
)

Recipe = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RECIPE] [KEY=VALUE]...",
        help="A recipe (a name that `egpo recipes` lists, or a YAML file), then settings that override it, such as "
        "update.lr=2e-6. Default: the default settings.",
        show_default=False,
        autocompletion=complete_word,
    ),
]
IMPORT_HELP = "Shell script that runs verl.trainer.main_ppo, text file of verl overrides, or YAML config of verl."
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@config_app.command()
def show(
    recipe: Recipe = None,
    origins: Annotated[
        bool, typer.Option("--origins", help="Also show the file and line that set each value.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print every setting of a recipe, including those that come from included recipes, overrides and defaults.

    Example: [cyan]egpo config show countdown_tiny update.lr=2e-6[/]
    """
    from egpo.config import config_to_yaml, load_recipe
    from egpo.config.load import settings_with_origins

    if origins:
        settings = settings_with_origins(*split_words(recipe))
        shown = json.dumps([vars(one) for one in settings], indent=2) if as_json else "\n".join(map(str, settings))
        typer.echo(shown)
        return

    config = load_recipe(*split_words(recipe))
    typer.echo(config.model_dump_json(indent=2) if as_json else config_to_yaml(config), nl=as_json)


@config_app.command()
def check(recipe: Recipe = None, as_json: AsJson = False) -> None:
    """Check a recipe and print all its faults. The exit code is 2 if there are any.

    Example: [cyan]egpo config check countdown_tiny algorithm.estimator=egpo_calibrated[/]
    """
    from egpo.errors import ConfigError

    path, overrides = split_words(recipe)
    try:
        config = _checked_whole(path, overrides)
    except ConfigError as error:
        if not as_json:
            raise
        typer.echo(json.dumps({"ok": False, "faults": [vars(fault) for fault in error.faults]}, indent=2))
        raise typer.Exit(error.exit_code) from None
    typer.echo(
        json.dumps({"ok": True, "faults": []}) if as_json else f"{path or 'defaults'}: valid ({_chosen(config)})"
    )


@config_app.command("import")
def import_recipe(
    file: Annotated[Path, typer.Argument(metavar="FILE", help=IMPORT_HELP, show_default=False)],
    out: Annotated[Path | None, typer.Option(help="Write the recipe to this file. Default: print it.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the --out file if it exists.")] = False,
) -> None:
    """Convert a verl configuration to a recipe of egpo, and list the settings that could not be converted.

    The list is printed to stderr, and also written into the recipe as comments.

    Example: [cyan]egpo config import run_grpo.sh --out mine.yaml[/]
    """
    from egpo.config.yaml_text import dump_yaml
    from egpo.errors import InputError
    from egpo.files import path_fault, write_atomically
    from egpo.verl.launch.override_files import read_verl_file
    from egpo.verl.launch.recipe_import import import_verl

    if out is not None and (path_fault(str(out)) or not out.parent.is_dir() or (out.exists() and not force)):
        exists = not path_fault(str(out)) and out.exists()
        what = "this file exists already" if exists else "this file cannot be written"
        fix = "replace it with --force, or choose another path" if exists else "choose a path in a folder that exists"
        raise InputError(what, where=str(out)[:200], fix=fix)
    imported = import_verl(read_verl_file(file))
    lists = {
        "Not converted": [str(one) for one in imported.left_out],
        "To do": imported.notes,
        "Passed to verl unchanged, in section `verl`": imported.below_verl,
        "Set because the defaults of verl and egpo differ": imported.assumed,
    }
    lines = [line for head, items in lists.items() if items for line in (f"{head}:", *(f"  {item}" for item in items))]
    shown = "".join(f"# {line}\n" for line in [f"Made from {file.name} by `egpo config import`.", *lines])
    recipe = shown + dump_yaml(imported.recipe)
    if out is None:
        typer.echo(recipe, nl=False)
    else:
        write_atomically(out, recipe)
    for line in lines:
        typer.echo(line, err=True)


@config_app.command()
def schema(
    sft: Annotated[bool, typer.Option("--sft", help="Print the schema of `egpo sft` instead of `egpo train`.")] = False,
) -> None:
    """Print the JSON schema of recipes, with which an editor can complete and check settings.

    Example: [cyan]egpo config schema > egpo.schema.json[/]
    """
    from egpo.config import Config, SftConfig, config_schema

    typer.echo(json.dumps(config_schema(SftConfig if sft else Config), indent=2))


def _checked_whole(path: str | None, overrides: list[str]) -> "Config | SftConfig":
    """Return the checked recipe. Raise ConfigError with all faults of its settings and of its tasks."""
    from egpo.config import Config
    from egpo.config.load import check_values, read_values
    from egpo.errors import ConfigError

    values = read_values(path, overrides)
    faults = _task_faults(values)
    try:
        config = check_values(values)
    except ConfigError as error:
        raise ConfigError([*error.faults, *faults]) from error
    if faults:
        raise ConfigError(faults)
    if isinstance(config, Config):
        config.algorithm.check_estimator()
    return config


def _task_faults(values: "Values") -> "list[Fault]":
    """Return the faults that the schema does not detect: unknown tasks, and settings that a task does not have."""
    from egpo.errors import Fault, InputError
    from egpo.tasks.loading import check_task

    evaluation = values.value.get("eval")
    others = evaluation.get("tasks") if isinstance(evaluation, dict) else None
    named: list[tuple[tuple[str, ...], Any]] = [(("task",), values.value.get("task"))]
    named += [(("eval", "tasks"), task) for task in (others if isinstance(others, list) else [])]
    faults = []
    for place, task in named:
        name, settings = (task.get("name"), task.get("settings", {})) if isinstance(task, dict) else (None, None)
        if not isinstance(name, str) or not name or not isinstance(settings, dict):
            continue  # the check against the schema reports this fault
        try:
            check_task(name, settings)
        except InputError as error:
            what = error.faults[0].what
            of_settings = what.startswith("unknown setting") or (":" not in name and "unknown task" not in what)
            where = values.place_of((*place, "settings" if of_settings else "name"))
            faults += [Fault(fault.what, where, fault.fix) for fault in error.faults]
    return faults


def _chosen(config: "Config | SftConfig") -> str:
    from egpo.config import Config

    if isinstance(config, Config):
        return f"{config.algorithm.estimator} on {config.task.name}, {config.engine} engine, {config.steps} steps"
    return f"sft on {config.data.path}, {config.epochs} epoch{'s' if config.epochs > 1 else ''}"


def split_words(words: list[str] | None) -> tuple[str | None, list[str]]:
    """Split the command's arguments into the recipe (None if there is none) and the overrides.

    The first argument is the recipe, unless it contains a `=` and there is no file of that name.
    """
    words = words or []
    # os.path.isfile, because Path.is_file raises an error for a name that is too long for the file system.
    if words and ("=" not in words[0] or os.path.isfile(words[0])):
        return words[0], words[1:]
    return None, words


def recipe_words(words: list[str] | None, example: str) -> tuple[str | None, list[str]]:
    """Split the arguments of a verb that needs a recipe or settings. `example` is a command that works."""
    from egpo.errors import InputError

    if not words:
        fix = f"name one, as in `{example}`; `egpo recipes` lists the recipes of the package"
        raise InputError("no recipe is given", where=" ".join(example.split()[:2]), fix=fix)
    return split_words(words)
