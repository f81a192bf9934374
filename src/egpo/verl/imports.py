"""Call a function with a module right after the module is imported, without importing the module itself."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Patch = Callable[[ModuleType], None]


def when_imported(name: str, patch: Patch) -> None:
    """Call `patch(module)` once: now if the module `name` is loaded, otherwise at the end of its import."""
    if name in sys.modules:
        patch(sys.modules[name])
        return
    waiting = next((finder for finder in sys.meta_path if isinstance(finder, _Waiting)), None)
    if waiting is None:
        waiting = _Waiting()
        sys.meta_path.insert(0, waiting)
    if patch not in waiting.patches.setdefault(name, []):
        waiting.patches[name].append(patch)


class _Waiting(MetaPathFinder):
    """An import finder for the modules that have patches.

    It finds a module by means of the other finders, and applies the patches after the module's code has run.
    """

    def __init__(self) -> None:
        self.patches: dict[str, list[Patch]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.patches:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                return _patched(spec, self.patches[fullname])
        return None


def _patched(spec: ModuleSpec, patches: list[Patch]) -> ModuleSpec:
    loader: Any = spec.loader
    run = loader.exec_module

    def run_and_patch(module: ModuleType) -> None:
        run(module)
        for patch in patches:
            patch(module)

    loader.exec_module = run_and_patch
    return spec
