"""A hang is a failure, not a stuck test run."""

import signal
from collections.abc import Iterator

import pytest

WATCHDOG_S = 120.0


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """Fail a test that takes far longer than any of them needs."""

    def fail(*_: object) -> None:
        raise TimeoutError(f"the test took longer than {WATCHDOG_S:g} seconds")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, WATCHDOG_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
