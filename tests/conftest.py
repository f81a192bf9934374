import pytest
from hypothesis import HealthCheck, settings

from egpo.errors import forget_warnings

settings.register_profile("egpo", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("egpo")


@pytest.fixture(autouse=True)
def _warnings_speak_again():
    """A warning is given once a process; every test starts afresh."""
    forget_warnings()
