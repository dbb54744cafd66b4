from collections.abc import Generator

import psutil
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("default")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """End what a test that fails has started and left: it would starve the others, and this process waits for it."""
    before = set(psutil.Process().children())
    try:
        return (yield)
    except BaseException:
        for left in set(psutil.Process().children()) - before:
            if left.is_running() and left.name() != "java":  # the one that all tests share may have just begun
                for each in [*left.children(recursive=True), left]:
                    each.kill()
        raise
