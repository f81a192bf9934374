"""What would be started, and every value in which it differs from stock verl. Needs no GPU, Ray, verl or weights."""

from pathlib import Path
from textwrap import wrap

from egpo.config import Config
from egpo.runs.folder import RunFolder
from egpo.verl.launch.command import Command, command
from egpo.verl.launch.hydra_words import spelt
from egpo.verl.launch.interpreter import verl_python
from egpo.verl.launch.places import VerlPlaces
from egpo.verl.launch.problems import planned_files
from egpo.verl.launch.schema.known import VERSION, schema
from egpo.verl.launch.translation.refusals import refuse_what_verl_lacks
from egpo.verl.launch.translation.setting import Setting
from egpo.verl.launch.translation.translate import translate

_ABSENT = object()
HEADS = ("key of verl's", "its default", "here", "because of")
WIDTHS = (40, 14, 24, 34)
"""Columns of the table: with the spaces between, and those before a key, 120 characters."""


def dry_run(config: Config) -> str:
    """As text: the command, and a table of what differs."""
    settings = planned_settings(config)
    differing = [setting for setting in settings if _differs(setting)]
    kept = f"{len(settings) - len(differing)} more are set to what verl {VERSION} takes by itself."
    return "\n".join([str(planned_command(config, settings)), "", *_table(differing), "", kept, "Nothing was started."])


def planned_settings(config: Config) -> list[Setting]:
    refuse_what_verl_lacks(config)
    places = _places(config)
    return translate(config, places, planned_files(config, places))


def planned_command(config: Config, settings: list[Setting]) -> Command:
    return command(config, settings, verl_python(config), _places(config).metrics_of("1"), "1")


def _places(config: Config) -> VerlPlaces:
    return VerlPlaces(RunFolder(Path(config.runs) / config.name))


def _differs(setting: Setting) -> bool:
    default = schema().defaults.get(setting.key, _ABSENT)
    return bool(default is _ABSENT or default != setting.value)


def _table(settings: list[Setting]) -> list[str]:
    """By verl's sections, in the order in which they first come."""
    sections: dict[str, list[Setting]] = {}
    for setting in settings:
        sections.setdefault(_section(setting.key), []).append(setting)
    lines = _row(*HEADS)
    for section, held in sections.items():
        lines.append(section)
        for one in held:
            key = one.key.removeprefix(f"{section}.")
            lines += _row(key, _short(_default(one.key), WIDTHS[1]), _short(spelt(one.value), WIDTHS[2]), one.source)
    return lines


def _section(key: str) -> str:
    """
    >>> _section("actor_rollout_ref.actor.optim.lr"), _section("trainer.v1.trainer_mode")
    ('actor_rollout_ref.actor', 'trainer')
    """
    parts = key.split(".")
    return ".".join(parts[: 2 if parts[0] == "actor_rollout_ref" else 1])


def _row(key: str, default: str, here: str, source: str) -> list[str]:
    """A key that is too long has a line of its own; the source takes as many as it needs."""
    first, *more = wrap(source, WIDTHS[3])
    alone = len(key) > WIDTHS[0]
    lines = [f"  {key}"] if alone else []
    lines.append(_line("" if alone else key, default, here, first))
    return lines + [_line("", "", "", part) for part in more]


def _line(*cells: str) -> str:
    return ("  " + "  ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True))).rstrip()


def _default(key: str) -> str:
    return spelt(schema().defaults[key]) if key in schema().defaults else "-"


def _short(text: str, width: int) -> str:
    """The end of it tells more: of a path, the file."""
    return text if len(text) <= width else f"…{text[1 - width :]}"
