"""What all tests share: their lanes, their order, and the end of what a failed one has left running.

Rules:
1. The mark `jvm` is on every test that may start Java, `postgres` on every test that may start PostgreSQL, `s3` on
   every test that uses the S3 server (s3fixture.py), `kafka` on every test whose module imports the Kafka broker
   (kafkafixture.py) or whose parameter has the mark, `acceptance` on every test of that folder, and `processes` on the
   tests that mostly start programs or servers and wait for them: those of `faults`, `web` and `acceptance`, except for
   the reference.
   They are set here, by folder, import and fixture, so that none is forgotten. Only a module whose subprocesses start
   Java sets `pytestmark` itself.
2. A test without the mark `jvm` finds a `java` that fails, in JAVA_HOME and on the PATH.
3. Temporary files are in memory where there is room. No test here can lose what the kernel has taken: a crash is one of
   a process, and the tests of durability watch the calls. TMPDIR names another place.
4. `lanes.py` names the tests of the long lane, those of the lane of object stores and clusters, and those that are too
   slow for `make check`. The mark `kafka` is a lane of its own.
5. Warnings are errors. Where PySpark itself leaves sockets to the garbage collector, only those warnings are ignored.
6. Modules that take longest come first, so that parallel workers end at about the same time.
"""

import atexit
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from holdfast._extras import minor_version, pyspark_version
from lanes import is_long, is_of_store, is_slow, left_out, stale
from s3fixture import FIXTURES, s3, s3_faults  # noqa: F401 - fixtures for all tests
from unclosed import LEAVES_SOCKETS, SOCKET

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("default")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background; what a test starts would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
MEMORY = Path("/dev/shm")  # noqa: S108
ROOM = 8 << 30
LONGEST = [
    *(
        "test_four_sinks_killed",
        "test_pipeline_killed",
        "test_class_archive",
        "test_crash_matrix",
        "test_run",
        "test_doctor",
    ),
    *(
        "test_adopt_spark",
        "test_rewind_spark",
        "test_copied_repository",
        "test_docs",
        "test_demo",
        "test_control_killed",
    ),
    *("test_rewind_chain", "test_leaks", "test_rewind_killed", "test_rewind_histories", "test_zombies"),
]


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory where there is room: on a disk, each sync and each truncation waits for it.

    Write no archive of classes into the home folder of the person who runs the tests. Ignore the sockets that PySpark
    does not close.
    """
    if minor_version(pyspark_version()) in LEAVES_SOCKETS:
        config.addinivalue_line("filterwarnings", f"ignore:{SOCKET}:ResourceWarning")
    os.environ.setdefault("HOLDFAST_CLASS_ARCHIVE", "off")
    if "TMPDIR" in os.environ or not MEMORY.is_dir():
        return
    if min(shutil.disk_usage(MEMORY).free, psutil.virtual_memory().available) > ROOM:
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put every test into its lanes, and the longest modules first."""
    if [Path(each).resolve() for each in config.args] == [HERE] and (lost := stale([each.nodeid for each in items])):
        raise pytest.UsageError(f"tests/lanes.py names tests that do not exist: {'; '.join(lost)}")
    for item in items:
        folder = item.path.relative_to(HERE).parts[0]
        if folder == "spark" or _imports(item, "sparkfixture", "session"):
            item.add_marker("jvm")
        if _imports(item, "pgfixture", "server"):
            item.add_marker("postgres")
        if _imports(item, "kafkafixture", "broker"):
            item.add_marker("kafka")
        if item.get_closest_marker("kafka"):
            item.add_marker("jvm")
        if FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker("jvm")
            item.add_marker("s3")
        if folder == "acceptance":
            item.add_marker("acceptance")
        if folder in ("acceptance", "faults", "web") and item.path.stem != "test_reference":
            item.add_marker("processes")
        if is_of_store(item.nodeid):
            item.add_marker("store")
        if is_long(item.nodeid):
            item.add_marker("long")
        if is_slow(item.nodeid):
            item.add_marker("slow")
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


def _imports(item: pytest.Item, module: str, name: str) -> bool:
    """Whether the test's module has imported a function that starts a shared server."""
    found = getattr(sys.modules.get(module), name, None)
    return found is not None and getattr(getattr(item, "module", None), name, None) is found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Write the tests that failed to the file that HOLDFAST_FAILED names, so that CI can repeat them."""
    if (path := os.environ.get("HOLDFAST_FAILED")) and not hasattr(config, "workerinput"):
        reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        failed = dict.fromkeys(report.nodeid for report in reports)
        Path(path).write_text("".join(f"{each}\n" for each in failed))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Name the lanes that were left out, after the last line of pytest."""
    if (line := left_out(config.option.markexpr)) and not hasattr(config, "workerinput"):
        print(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keep Java from a test that is not marked for it."""
    if item.get_closest_marker("jvm"):
        return (yield)
    with _without_java():
        return (yield)


@contextlib.contextmanager
def _without_java() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAVA_HOME", str(_java_that_fails()))
        patch.setenv("PATH", str(_java_that_fails() / "bin"), prepend=os.pathsep)
        yield


@cache
def _java_that_fails() -> Path:
    home = Path(tempfile.mkdtemp(prefix="hfnojava"))
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text("#!/bin/sh\necho 'this test is not marked jvm' >&2\nexit 1\n")
    java.chmod(0o755)
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


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
