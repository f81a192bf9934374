"""The configuration: reads a recipe (YAML) and dotted overrides, returns one checked and frozen config. No torch.

The modules in the order in which a recipe is processed:

    yaml_text.py       YAML text to plain values with line numbers, and back
    old_spellings.py   keys and values of earlier systems, translated to the current ones
    includes.py        a recipe merged over the files that it includes
    machine.py         this machine's model folders, data folders, GPUs and interpreters (`egpo.machine.yaml`)
    load.py            overrides, validation, JSON schema, and the origin of each setting
    schema.py          the two kinds of config, `Config` and `SftConfig`
    sections/          the settings themselves, each with a docstring

All faults of a recipe are reported in one ConfigError. To add a setting, add a field to its class in `sections/`.
"""

from egpo.config.load import config_schema, config_to_yaml, load_config, load_recipe
from egpo.config.schema import Config, SftConfig

__all__ = ["Config", "SftConfig", "config_schema", "config_to_yaml", "load_config", "load_recipe"]
