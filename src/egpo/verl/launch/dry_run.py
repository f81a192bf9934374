"""What would be started, and every value in which it differs from stock verl. Needs no GPU, Ray, verl or weights."""

from pathlib import Path
from typing import Any

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
    rows = [
        HEADS,
        *((setting.key, _default(setting.key), _short(setting.value), setting.source) for setting in settings),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _default(key: str) -> str:
    return _short(schema().defaults[key]) if key in schema().defaults else "-"


def _short(value: Any) -> str:
    text = spelt(value)
    return text if len(text) <= 48 else f"…{text[-47:]}"
