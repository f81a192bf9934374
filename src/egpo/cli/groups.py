"""A group of verbs of which one goes without its name: `egpo eval MODEL` beside `egpo eval bfcl MODEL`."""

from typing import Any

from typer.core import TyperGroup


class DefaultCommand(TyperGroup):
    """Words that name no command of the group are for its first one, `--help` too."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first = next(iter(self.commands))
        return super().parse_args(ctx, args if args and args[0] in self.commands else [first, *args])
