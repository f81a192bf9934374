"""Accept `algorithm.egpo.*` on verl's command line without a `+`.

verl's configuration files do not declare these keys, and Hydra refuses an override of an undeclared key. Declaring
them in a file of ours would copy every default into each run, and a misspelled key would get Hydra's message instead of
ours, which names the nearest key. So an override of one of our keys is read as if it began with `++`: add the key, or
change it.
"""

import functools
import re
from types import ModuleType
from typing import Any

OURS = re.compile(r"algorithm\.egpo(?:_\w+)?(?:\.|$)")
"""Matches the section `algorithm.egpo` and older keys beside it (`algorithm.egpo_lambda`)."""


def accept_our_keys(overrides_parser: ModuleType) -> None:
    """Make Hydra's parser (`hydra.core.override_parser.overrides_parser`) accept our keys like verl's own.

    The command line and `hydra.compose` both use this parser. `hydra.overrides` still records what the user typed.
    """
    from hydra.core.override_parser.types import OverrideType

    parser = overrides_parser.OverridesParser
    parse = parser.parse_overrides

    @functools.wraps(parse)
    def parse_ours_as_added(self: Any, overrides: list[str]) -> list[Any]:
        parsed: list[Any] = parse(self, overrides)
        for override in parsed:
            if override.type is OverrideType.CHANGE and OURS.match(override.key_or_group):
                override.type = OverrideType.FORCE_ADD
        return parsed

    parser.parse_overrides = parse_ours_as_added
