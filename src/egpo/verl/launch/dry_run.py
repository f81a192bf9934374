"""Describes the command that a launch would run, and every setting that differs from verl's default.

A dry run needs no GPU, Ray, verl or weights.
"""

from dataclasses import replace
from pathlib import Path
from textwrap import wrap

from egpo.config import Config
from egpo.errors import InputError
from egpo.gpus import read_gpus
from egpo.runs.folder import RunFolder
from egpo.support import VERL_VERSION
from egpo.verl.launch.command import MARK, METRICS_VARIABLE, Command, command, verl_python
from egpo.verl.launch.hosts import Host, look_at_host
from egpo.verl.launch.hydra_overrides import format_value
from egpo.verl.launch.layout import VerlPlaces
from egpo.verl.launch.mirror import VerlCheckpoints
from egpo.verl.launch.preflight import (
    Installed,
    require_devices,
    require_free_gpus,
    require_ray_cpus,
    require_vllm_options,
)
from egpo.verl.launch.problems import LIMIT, planned_files
from egpo.verl.launch.refusals import ineffective_settings, refuse_what_verl_lacks
from egpo.verl.launch.schema.known import schema
from egpo.verl.launch.translation import Setting, translate

_ABSENT = object()
HEADS = ("key of verl", "default", "here", "because of")
WIDTHS = (40, 14, 24, 34)
"""Widths of the columns: 120 characters with the spaces between them and before a key."""


def dry_run(config: Config, *, resume: bool = False, resume_from: int | None = None, host: Host | None = None) -> str:
    """Return as text: the command, settings known only at launch, settings without effect, and a table.

    The table lists the settings that differ from verl's defaults. Recipes that a launch would refuse are refused here,
    as far as that can be known. Sizes are those for `host`; by default for this machine.
    """
    start = _start(config, resume=resume, resume_from=resume_from)
    if host is None and config.verl.device == "cuda":
        host = look_at_host(verl_python(config))
    settings = planned_settings(config, start, host)
    differing = [setting for setting in settings if _differs(setting)]
    kept = f"{len(settings) - len(differing)} more settings equal the defaults of verl {VERL_VERSION}."
    require_ray_cpus(config, settings)
    require_vllm_options(config, verl_python(config))
    notes = [*_known_at_launch(config, start, host), *_refused_here(config, settings), *ineffective_settings(config)]
    return "\n".join(
        [
            str(planned_command(config, settings, host)),
            "",
            *notes,
            "",
            *_table(differing),
            "",
            kept,
            "Nothing was started.",
        ]
    )


def _refused_here(config: Config, settings: list[Setting]) -> list[str]:
    """Return a line if a launch on this machine would be refused for its GPUs: too few, or filled by other processes.

    This is no error: a dry run may be made on another machine than the training. `nvidia-smi` is asked, not torch.
    """
    gpus = read_gpus() if config.verl.device == "cuda" and config.verl.address is None else None
    if gpus is None:
        return []
    memory = [(gpu.free_bytes, gpu.total_bytes) for gpu in gpus]
    installed = Installed(verl_python(config), {}, len(gpus), None, memory)
    try:
        require_devices(config, installed)
        require_free_gpus(settings, installed)
    except InputError as error:
        return [f"On this machine a launch would be refused: {error}."]
    return []


def planned_settings(config: Config, start: int = 0, host: Host | None = None) -> list[Setting]:
    refuse_what_verl_lacks(config)
    places = _places(config)
    return translate(config, places, planned_files(config, places), start, host)


def planned_command(config: Config, settings: list[Setting], host: Host | None = None) -> Command:
    return command(config, settings, verl_python(config), _places(config).metrics_of("1"), "1", host)


def _start(config: Config, *, resume: bool, resume_from: int | None) -> int:
    """Return the step from which to resume; 0 for a new run. InputError if the folder of a new run is not empty."""
    folder = _places(config).folder
    if resume or resume_from is not None:
        return VerlCheckpoints(folder, config.verl.ranks).choose(resume_from)
    folder.require_free()
    return 0


def _known_at_launch(config: Config, start: int, host: Host | None) -> list[str]:
    """Return a line for each group of settings whose value may differ at launch."""
    lines = [f"{MARK} and the name in {METRICS_VARIABLE} are new at every launch."]
    places = _places(config)
    files = planned_files(config, places)
    if files.longest_prompt_source != LIMIT:
        longer = replace(files, longest_prompt=files.longest_prompt * 1000)
        shown, other = (
            {one.key: one.value for one in translate(config, places, each, start, host)} for each in (files, longer)
        )
        # Some settings, such as the size of vLLM's cache, are set for one of the two lengths only.
        keys = [key for key in {**shown, **other} if shown.get(key, _ABSENT) != other.get(key, _ABSENT)]
        lines.append(
            f"Assuming {files.longest_prompt} tokens for the longest prompt, which is measured at launch "
            f"(rollout.max_prompt_tokens sets it): {', '.join(keys)}."
        )
    if host is not None and config.verl.device == "cuda":
        more = "" if host.gpu_bytes else "; vLLM's share of the memory is reduced at launch if the model needs more"
        lines.append(f"Sized for this machine: {host}{more}. Sizes are those of the machine that starts verl.")
    return lines


def _places(config: Config) -> VerlPlaces:
    return VerlPlaces(RunFolder(Path(config.runs) / config.name))


def _differs(setting: Setting) -> bool:
    default = schema().defaults.get(setting.key, _ABSENT)
    return bool(default is _ABSENT or default != setting.value)


def _table(settings: list[Setting]) -> list[str]:
    """Return the lines of the table of settings, grouped by verl's sections in order of first appearance."""
    sections: dict[str, list[Setting]] = {}
    for setting in settings:
        sections.setdefault(_section(setting.key), []).append(setting)
    lines = _row(*HEADS)
    for section, held in sections.items():
        lines.append(section)
        for one in held:
            key = one.key.removeprefix(f"{section}.")
            lines += _row(
                key, _short(_default(one.key), WIDTHS[1]), _short(format_value(one.value), WIDTHS[2]), one.source
            )
    return lines


def _section(key: str) -> str:
    """Return the section of a key under which the table lists it.

    >>> _section("actor_rollout_ref.actor.optim.lr"), _section("trainer.v1.trainer_mode")
    ('actor_rollout_ref.actor', 'trainer')
    """
    parts = key.split(".")
    return ".".join(parts[: 2 if parts[0] == "actor_rollout_ref" else 1])


def _row(key: str, default: str, here: str, source: str) -> list[str]:
    """Return the lines of one row of the table. A long key has its own line; a long source is wrapped."""
    first, *more = wrap(source, WIDTHS[3])
    alone = len(key) > WIDTHS[0]
    lines = [f"  {key}"] if alone else []
    lines.append(_line("" if alone else key, default, here, first))
    return lines + [_line("", "", "", part) for part in more]


def _line(*cells: str) -> str:
    return ("  " + "  ".join(cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True))).rstrip()


def _default(key: str) -> str:
    return format_value(schema().defaults[key]) if key in schema().defaults else "-"


def _short(text: str, width: int) -> str:
    """Shorten a text at its start: the end of a path is the informative part."""
    return text if len(text) <= width else f"…{text[1 - width :]}"
