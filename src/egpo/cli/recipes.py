"""`egpo recipes` and `egpo new`: list the recipes of the package, and write one that includes another."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from egpo.cli.words import complete_recipe, complete_setting
from egpo.recipes import DEFAULT, shipped_recipes

NAME_HELP = "Name of the new recipe, or its path: NAME.yaml is written. The last part of a path is the name of the run."
FROM_HELP = "Recipe whose settings the new one includes: a name that `egpo recipes` lists, or a YAML file."
OVERRIDES_HELP = "Settings in which the new recipe differs, as in rollout.temperature=1.2."


def recipes(as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False) -> None:
    """List the recipes of the package: name, what it trains, and the hardware and time that it states.

    A name can be given wherever a recipe is expected. `egpo new NAME --from RECIPE` writes a copy to change.

    Example: [cyan]egpo recipes[/]
    """
    found = shipped_recipes()
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2))
        return
    width = max(len(one.name) for one in found)
    for one in found:
        typer.echo(f"{one.name:<{width}}  {one.summary}{f' ({one.hardware})' if one.hardware else ''}")


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help=NAME_HELP, show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help=OVERRIDES_HELP, show_default=False, autocompletion=complete_setting
        ),
    ] = None,
    base: Annotated[
        str, typer.Option("--from", metavar="RECIPE", help=FROM_HELP, autocompletion=complete_recipe)
    ] = DEFAULT,
) -> None:
    """Write a recipe that includes another recipe and contains only the settings that differ.

    Example: [cyan]egpo new hotter --from countdown_tiny rollout.temperature=1.2[/]
    """
    from egpo.experiments.new_recipe import write_recipe

    typer.echo(write_recipe(Path(name), base, overrides or []))
