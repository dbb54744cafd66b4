"""Sinks can be imported, constructed and inspected where pyspark is not installed; only a running stream needs it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

SINKS = Path(holdfast.__file__).parent / "sinks"
CONSTRUCTED = {
    "files.sink": "FileSink('out')",
    "sqlite": "SqliteSink('out.db', 'totals', key='day')",
    "foreach": "ForeachSink(lambda df, key: None, path='calls')",
    "postgres.sink": "PostgresSink('host=db dbname=shop', 'totals')",
    "iceberg.sink": "IcebergSink('shop.orders', catalog={'type': 'sql', 'uri': 'sqlite:///catalog.db'})",
    "log": "LogSink('log', entity='id')",
    "delta.sink": "DeltaSink('table', key='day')",
}
INSPECTED = """
from holdfast.sinks.base import SinkPosition, StreamIdentity
assert sink.inspect(StreamIdentity("shop", "0" * 32, "orders"), 1) == SinkPosition()
"""


def run_without(modules: list[str], program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    blocked = f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n"
    command = [sys.executable, "-c", blocked + program]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


@pytest.mark.parametrize("module", CONSTRUCTED)
def test_a_sink_can_be_constructed_without_pyspark(module: str, tmp_path: Path) -> None:
    made = CONSTRUCTED[module]
    program = f"from holdfast.sinks.{module} import {made.split('(')[0]}\nsink = {made}\nprint(repr(sink))"
    done = run_without(["pyspark", "py4j"], program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(made.split("(", maxsplit=1)[0])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["files.sink", "sqlite", "foreach"])
def test_the_light_sinks_need_no_pyarrow_either_and_can_be_inspected(module: str, tmp_path: Path) -> None:
    made = CONSTRUCTED[module]
    program = f"from holdfast.sinks.{module} import {made.split('(')[0]}\nsink = {made}\n{INSPECTED}"
    done = run_without(["pyspark", "py4j", "pyarrow"], program, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_no_sink_module_imports_pyspark_when_it_is_loaded() -> None:
    """The test above covers the modules that those sinks load; this one covers all of them."""
    for path in SINKS.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:  # at module level, outside functions and TYPE_CHECKING
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.startswith("pyspark")], path
