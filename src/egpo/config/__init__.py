"""Every knob: YAML and dotted overrides in, a checked and frozen config out. No torch."""

from egpo.config.load import config_schema, config_to_yaml, load_config
from egpo.config.schema import Config

__all__ = ["Config", "config_schema", "config_to_yaml", "load_config"]
