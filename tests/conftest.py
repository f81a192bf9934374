import os
import signal

import pytest
from hypothesis import HealthCheck, settings

from egpo.errors import forget_warnings

# One test process a core: threads of their own would only get in each other's way. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts background jobs with SIGINT ignored, and so would every process of the tests be.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("egpo", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("egpo")


@pytest.fixture(autouse=True)
def _warnings_speak_again():
    """A warning is given once a process; every test starts afresh."""
    forget_warnings()
