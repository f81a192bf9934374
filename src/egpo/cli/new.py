"""`egpo new`: a recipe out of another one."""

from pathlib import Path
from typing import Annotated

import typer

NAME_HELP = "Of the run, and of the file: NAME.yaml, or a path that ends in it."


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help=NAME_HELP, show_default=False)],
    base: Annotated[str, typer.Option("--from", metavar="RECIPE", help="What it starts from.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="What it changes at once.", show_default=False),
    ] = None,
) -> None:
    """Write a recipe that includes another one, and says only what differs.

    Example: [cyan]egpo new hotter --from recipes/countdown_tiny.yaml rollout.temperature=1.2[/]
    """
    from egpo.experiments.new import write_recipe

    typer.echo(write_recipe(Path(name), Path(base), overrides or []))
