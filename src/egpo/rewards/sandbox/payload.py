"""The supervisor's code, packed for the sandbox: compiled for an interpreter of this version, or as source for any."""

import marshal
from functools import cache
from importlib import resources

_PACKAGE = "egpo.rewards.sandbox.inside"
# In the order of their imports: each is executed once, before the next needs it.
_FOR_SCRIPTS = ("wire", "deadline", "containment", "execute", "script", "supervisor")
_FOR_CHECKS = ("values", "server", "equality", "remote", "check_runner")

_LOAD = """\
import sys
def load(name, code):
    module = sys.modules[name] = type(sys)(name)
    exec(code, module.__dict__)
"""

BOOTSTRAP = f"""\
import marshal, posix
def read(size):
    data = b""
    while len(data) < size:
        data += posix.read(0, size - len(data)) or posix._exit(3)
    return data
{_LOAD}
for name, code in marshal.loads(read(int(read(16), 16))):
    load(name, code)
sys.modules["{_PACKAGE}.supervisor"].main()
"""
"""The program on the command line of a local interpreter: it reads the supervisor's code from the first frame, and runs
it."""


def sources(kind: str) -> list[tuple[str, str]]:
    """Return names and sources of the modules that a job of this kind needs."""
    folder = resources.files(_PACKAGE)
    names = _FOR_SCRIPTS if kind == "scripts" else (*_FOR_SCRIPTS, *_FOR_CHECKS)
    return [(f"{_PACKAGE}.{name}", (folder / f"{name}.py").read_text("utf-8")) for name in names]


@cache
def compiled(kind: str) -> bytes:
    """Return the supervisor's modules as code objects for BOOTSTRAP, for an interpreter of this version only."""
    codes = [(name, compile(text, name, "exec", dont_inherit=True, optimize=2)) for name, text in sources(kind)]
    return marshal.dumps(codes)


@cache
def as_text(kind: str) -> str:
    """Return the supervisor as one Python source, which reads its job as text from standard input: for a service."""
    start = f'sys.modules["{_PACKAGE}.supervisor"].main(True)'
    return f"{_LOAD}\nfor name, code in {sources(kind)!r}:\n    load(name, code)\n{start}\n"
