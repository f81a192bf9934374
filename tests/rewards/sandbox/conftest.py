"""The sandboxes under test: bubblewrap as root runs it and as an ordinary user does."""

from collections.abc import Iterator

import pytest

from egpo.rewards.sandbox import Sandbox, sandbox_status
from egpo.rewards.sandbox.audit import laid_out_bait
from egpo.rewards.sandbox.tiers import Bubblewrap


@pytest.fixture(scope="session")
def works() -> None:
    status = sandbox_status("bubblewrap")
    if not status.ok:
        pytest.skip(f"{status.detail}; {status.fix}")


@pytest.fixture(params=["private_user", "user_namespace", "divided_memory"])
def sandbox(request: pytest.FixtureRequest, works: None) -> Sandbox:
    """For an ordinary user the first is the second; where no cgroup can be made, each is like the third."""
    if request.param == "divided_memory":
        return Bubblewrap(private_user=False, divide_memory=True)
    return Bubblewrap(private_user=request.param == "private_user")


@pytest.fixture
def can_fork(sandbox: Sandbox) -> None:
    if isinstance(sandbox, Bubblewrap) and (sandbox.divide_memory or sandbox.cgroups is None):
        pytest.skip("without a cgroup a program is one process")


@pytest.fixture(scope="session")
def bait() -> Iterator[dict[str, object]]:
    with laid_out_bait() as laid_out:
        yield laid_out
