"""Help whose paragraphs fill the terminal: typer keeps the source's line breaks in all of them but the first."""

from inspect import getdoc

import typer


def fill_paragraphs(app: typer.Typer) -> None:
    """Of every verb, those of groups too."""
    for command in app.registered_commands:
        paragraphs = (command.help or getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            fill_paragraphs(group.typer_instance)
