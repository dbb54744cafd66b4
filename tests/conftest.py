import contextlib
import signal
from collections.abc import Generator

import psutil
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("default")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background; what a test starts would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """End what a test that fails has started and left: it would starve the others, and this process waits for it."""
    before = set(psutil.Process().children())
    try:
        return (yield)
    except BaseException:
        for left in set(psutil.Process().children()) - before:
            with contextlib.suppress(psutil.Error):
                if not _is_shared(left):
                    for each in [*left.children(recursive=True), left]:
                        each.kill()
        raise


def _is_shared(process: psutil.Process) -> bool:
    """Whether later tests need it: the JVM of all, or what multiprocessing keeps."""
    return process.name() == "java" or any("resource_tracker" in each for each in process.cmdline())
