"""`egpo new`: write a recipe that includes another one."""

from pathlib import Path
from typing import Annotated

import typer

NAME_HELP = "Name of the new recipe, or its path: NAME.yaml is written. The last part of a path is the name of the run."
FROM_HELP = "Existing recipe, whose settings the new one includes."
OVERRIDES_HELP = "Settings in which the new recipe differs, as in rollout.temperature=1.2."


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help=NAME_HELP, show_default=False)],
    base: Annotated[str, typer.Option("--from", metavar="RECIPE", help=FROM_HELP, show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help=OVERRIDES_HELP, show_default=False)
    ] = None,
) -> None:
    """Write a recipe that includes another recipe and contains only the settings that differ.

    Example: [cyan]egpo new hotter --from recipes/countdown_tiny.yaml rollout.temperature=1.2[/]
    """
    from egpo.experiments.new_recipe import write_recipe

    typer.echo(write_recipe(Path(name), Path(base), overrides or []))
