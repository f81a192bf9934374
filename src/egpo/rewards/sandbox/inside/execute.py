"""The execution of source code, in one place.

There is no `from __future__` in this file, because `exec` would apply it to the source. `exec` gets text and not the
result of `compile`, which first sets up the hundred types of the syntax tree and costs a millisecond.
"""

import builtins
import posix as os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def execute(source: str, scope: "dict[str, object]") -> None:
    exec(source, scope)


def execute_as_module(source: str, name: str) -> "ModuleType":
    """Return a new module of this name with `source` run in it. The source is written to the module's file."""
    module = type(sys)(name)
    sys.modules[name] = module
    sys.argv = ["solution.py"]
    # `site` would have set these two, and it does not run here.
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]
    try:
        module.__file__ = _written(source)
    except OSError:  # /tmp is full or cannot be written: the module has no file then
        module.__file__ = "solution.py"
    if "inspect" in source:
        show_source(source)
    execute(source, module.__dict__)
    return module


def _written(source: str) -> str:
    path = os.getcwd() + "/solution.py"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, source.encode("utf-8", "surrogatepass"))
    finally:
        os.close(fd)
    return path


def show_source(source: str) -> None:
    """Store the source in `linecache` under `<string>`, the file name of code run by `exec`, for `inspect` to find."""
    import linecache

    lines = [line + "\n" for line in source.split("\n")]
    linecache.cache["<string>"] = (len(source), None, lines, "<string>")
