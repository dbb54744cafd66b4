"""Messages of pyspark and py4j that the embedded session keeps from the user's terminal."""

import logging

import py4j.java_gateway
import pytest

from holdfast.spark.session import silence_spark


def test_a_traceback_that_py4j_logs_to_the_root_logger_is_silenced(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the JVM dies inside a command, py4j logs it through the root logger; other messages there are kept."""
    root, py4j_logger = logging.getLogger(), logging.getLogger("py4j")
    monkeypatch.setattr(root, "filters", [])
    monkeypatch.setattr(py4j_logger, "level", logging.NOTSET)
    silence_spark()

    def log(pathname: str, text: str) -> None:
        root.handle(logging.LogRecord("root", logging.ERROR, pathname, 1059, text, None, None))

    log(py4j.java_gateway.__file__, "Exception while sending command.")
    log(__file__, "an error of the program")
    assert [each.getMessage() for each in caplog.records] == ["an error of the program"]
