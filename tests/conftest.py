import os
import signal
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

from egpo.errors import forget_warnings

# One test process a core: threads of their own would only get in each other's way. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background jobs with SIGINT and SIGQUIT ignored, nohup ignores SIGHUP: the tests' processes inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The same examples in every run of the suite, so that what fails is what was changed; `make fuzz` draws new ones.
settings.register_profile(
    "egpo",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=not os.environ.get("EGPO_FUZZ"),
)
settings.load_profile("egpo")


@pytest.fixture(autouse=True)
def _warnings_speak_again():
    """A warning is given once a process; every test starts afresh."""
    forget_warnings()


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    """Return a function that sets what `nvidia-smi` prints for each GPU: memory in all and free, in MiB.

    The lines are those of the real program; there is no GPU behind them.
    """

    def make(*gpus):
        folder = tmp_path / "nvidia"
        folder.mkdir(exist_ok=True)
        lines = "\n".join(f"{at}, GPU-0000-{at}, {total}, {free}" for at, (total, free) in enumerate(gpus))
        program = folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat <<END\n{lines}\nEND\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return make


def pytest_ignore_collect(collection_path):
    """Files that are all about verl are not opened where verl is not. None leaves the others to pytest."""
    if collection_path.suffix == ".py" and find_spec("verl") is None:
        return "\npytestmark = pytest.mark.verl" in collection_path.read_text() or None
    return None
