"""Every knob: YAML and dotted overrides in, a checked and frozen config out. No torch."""

from egpo.config.load import config_schema, config_to_yaml, load_config, load_recipe
from egpo.config.schema import Config, SftConfig

__all__ = ["Config", "SftConfig", "config_schema", "config_to_yaml", "load_config", "load_recipe"]
