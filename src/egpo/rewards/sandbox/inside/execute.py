"""The one place where source becomes behaviour.

No `from __future__` here: `exec` would hand it on to the source. And `exec` gets text, not what `compile` makes of it:
`compile` first sets up the hundred types of the syntax tree, which costs a millisecond.
"""

import builtins
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def execute(source: str, scope: "dict[str, object]") -> None:
    exec(source, scope)


def execute_as_module(source: str, name: str) -> "ModuleType":
    """A new module of this name with `source` run in it."""
    module = type(sys)(name)
    sys.modules[name] = module
    sys.argv = ["solution.py"]
    # `site` would have set these two, and it does not run here.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    execute(source, module.__dict__)
    return module
