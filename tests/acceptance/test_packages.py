"""Packages that are missing, or installed in another version: a typed error before anything is created, no defect."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import holdfast as hf
from epochfiles import EpochFiles
from fabricated import Fabricated
from holdfast._extras import EXTRAS, PYSPARK, SUPPORTED
from holdfast.cli.app import GROUPS, VERBS
from holdfast.sinks.places import record_places

# On a machine without any of the optional packages.
BARE = f"""
import sys
for name in {sorted(EXTRAS)!r}:
    sys.modules[name] = None  # importing it fails
"""
MAIN = "from holdfast.cli import main; main()"
APP = """
import holdfast as hf
pipeline = hf.Pipeline("orders", root="root")

@pipeline.stream(sinks=[hf.FileSink("out")])
def orders(spark):
    return spark.readStream.format("rate").load()
"""
NEEDS_SPARK = (
    "run app.py",
    "demo shop",
    "jar",
    "verify --read-data",
    "diff --keys",
    "compact -r parquet/root --yes",
    "adopt app.py --stream s --checkpoint plain --yes",
    "rewind app.py --to 1 --dry-run",
    "asides app.py",
    "plan app.py",
    "backfill app.py --stream s --sink x",
)
NEEDS_ARROW = (
    "cursor show billing --log orders.log",
    "cursor reset billing --log orders.log",
    "fork --from latest --as trial",
)
NEEDS_PAGE = ("serve",)
WORKS = {  # and the exit code
    "status": 0,
    "epochs --json": 2,  # it has no stream yet
    "runs": 0,
    "top --json": 0,
    "ls": 0,
    "show": 0,
    "verify": 0,
    "verify --all --quick": 0,
    "diff": 1,
    "log": 0,
    "gaps": 0,
    "doubt": 0,
    "prune --dry-run": 0,
    "prune --last 1 --yes": 0,
    "compact -r parquet/root --dry-run": 0,
    "compact -r json/root --yes --grace 0s": 0,
    "cursor ls": 0,
    "cursor show billing": 0,
    "cursor reset billing --to 0 --dry-run": 0,
    "doctor plain --pause 0": 0,
    "eject checkpoints/orders --stream orders --to ejected --json": 2,  # it has no committed epoch
    "version": 0,
    "stop": 0,  # the pipeline does not run
    "checkpoint --json": 2,
    "savepoint now --json": 2,
    "cancel --json": 2,
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a program, a repository with checkpoints and a cursor, sinks, and a checkpoint of plain Spark."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "plain/offsets").mkdir(parents=True)
    made = Fabricated(hf.repository.LocalRepository(tmp_path / "checkpoints/orders"))
    for text in "abc":
        made.take(text, "kept")
    log = hf.eventlog.EventLog.create(tmp_path / "orders.log")
    with log.writer() as writer:
        writer.append([hf.eventlog.NewEvent("order:1", b"paid")])
    with hf.eventlog.DurableCursor(made.repository, "billing", log, hf.eventlog.Region()) as cursor:
        cursor.poll()
        cursor.commit()
    for name in ("json", "parquet"):
        files = EpochFiles(tmp_path / name, format=name)
        files.commit(1, 2, 3, 4, 5)
        record_places(files.repository, "s", 1, [files.sink])
    return tmp_path


def ran(program: str, words: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", program, *words.split()]
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False)
    assert "Traceback" not in done.stdout + done.stderr
    assert "defect" not in done.stdout + done.stderr
    return done


def each_of(commands: Iterable[str]) -> str:
    """Return a program that runs commands one after the other, which saves the start of a process for each."""
    return f"""
import sys
from holdfast.cli import main
for words in {list(commands)!r}:
    sys.argv = ["holdfast", *words.split()]
    try:
        main()
    except SystemExit as end:
        print(words, "ended with", end.code or 0)
"""


def ended(text: str) -> list[str]:
    return [line for line in text.splitlines() if " ended with " in line]


def names_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_every_verb_is_tried() -> None:
    tried = {words.split()[0] for words in (*WORKS, *NEEDS_SPARK, *NEEDS_ARROW, *NEEDS_PAGE)}
    assert tried == set(VERBS)
    assert all(any(words.startswith(f"cursor {each}") for words in WORKS) for each in GROUPS["cursor"][1])


def test_what_needs_no_spark_works_without_any_optional_package(place: Path) -> None:
    done = ran(BARE + each_of(WORKS), "", place)
    assert done.stderr == ""
    assert ended(done.stdout) == [f"{words} ended with {code}" for words, code in WORKS.items()]


def test_the_installed_version_of_each_optional_package_is_shown(tmp_path: Path) -> None:
    parts = {"py4j", "pandas", "adbc_driver_manager", "adbc_driver_postgresql", "sqlalchemy", "anyio"}  # of the others
    found = json.loads(ran(MAIN, "version --json", tmp_path).stdout)["result"]
    assert found.keys() == {"holdfast", "python", *EXTRAS.keys() - parts}
    shown = ran(MAIN, "version", tmp_path).stdout.splitlines()
    assert shown == [f"{name} {value or 'is not installed'}" for name, value in found.items()]


def test_every_verb_has_its_help_without_any_optional_package(tmp_path: Path) -> None:
    words = [f"{verb} --help" for verb in VERBS]
    done = ran(BARE + each_of(words), "", tmp_path)
    assert ended(done.stdout) == [f"{each} ended with 0" for each in words]


NEEDS = {"spark": NEEDS_SPARK, "log": NEEDS_ARROW, "page": NEEDS_PAGE}


@pytest.mark.parametrize(("words", "extra"), [(words, extra) for extra, needing in NEEDS.items() for words in needing])
def test_a_verb_whose_package_is_missing_names_the_extra_and_creates_nothing(
    place: Path, words: str, extra: str
) -> None:
    before = names_in(place)
    done = ran(BARE + MAIN, words, place)
    assert done.returncode == 2
    assert done.stderr.endswith(f"[MissingExtra]\nnext:  pip install 'holdfast-spark[{extra}]'\n")
    assert json.loads(ran(BARE + MAIN, f"{words} --json", place).stdout)["error"]["kind"] == "MissingExtra"
    assert names_in(place) == before


@pytest.mark.parametrize("package", sorted(EXTRAS))
def test_a_verb_and_a_call_without_one_package_raise_nothing_untyped(place: Path, package: str) -> None:
    # PyArrow cannot be imported by PyIceberg if pandas is blocked in this way; without pandas it can.
    before = "import holdfast; holdfast.IcebergSink\n" if package == "pandas" else ""
    alone = f"{before}import sys; sys.modules[{package!r}] = None\n"
    calls = """
import holdfast as hf
from holdfast.errors import HoldfastError
for name in sorted(name for names in hf._HOMES.values() for name in names):
    try:
        getattr(hf, name)
    except HoldfastError as error:
        assert type(error).__name__ == "MissingExtra", error
        assert name not in hf.__all__, name
"""
    done = ran(alone + calls, "", place)
    assert (done.returncode, done.stderr) == (0, "")
    if package in ("pyspark", "py4j"):
        for words in ("verify --read-data", "compact -r parquet/root --yes"):
            done = ran(alone + MAIN, words, place)
            assert (done.returncode, f"'{package}'" in done.stderr) == (2, True)


def test_a_package_that_is_installed_and_broken_is_no_defect(place: Path) -> None:
    """As where a shared library is missing: pip has it, and Python cannot import it."""
    for name in ("pyspark", "pyarrow"):
        (place / "broken" / name).mkdir(parents=True)
        (place / "broken" / name / "__init__.py").write_text("raise ImportError('libsomething.so: cannot open')\n")
    for words in (*NEEDS_SPARK[:1], *NEEDS_ARROW):
        done = ran(MAIN, words, place, PYTHONPATH=f"{place / 'broken'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        assert done.returncode == 2
        assert "libsomething.so" in done.stderr
        assert "pip install" in done.stderr


# --- another PySpark -------------------------------------------------------------------------------------------------


def other_pyspark(folder: Path, version: str) -> str:
    """Make a PySpark of another version, which says so if it is ever asked to start; return the path to find it."""
    package = folder / f"pyspark-{version}" / "pyspark"
    package.mkdir(parents=True)
    (package / "version.py").write_text(f'__version__: str = "{version}"\n')
    (package / "__init__.py").write_text("from pyspark.version import __version__\n")
    (package / "sql.py").write_text("class SparkSession: pass\nraise SystemExit('it was imported')\n")
    return os.pathsep.join([str(package.parent), os.environ.get("PYTHONPATH", "")])


@pytest.mark.parametrize("version", ["3.5.6", "4.0.0", "4.0.5", "4.4.0", "4.10.0", "4.30.1", "5.0.0.dev1"])
def test_another_pyspark_is_refused_before_anything_is_created_or_started(place: Path, version: str) -> None:
    found = {"PYTHONPATH": other_pyspark(place, version), "JAVA_HOME": str(place / "no-java")}
    before = names_in(place)
    for words in NEEDS_SPARK if version == "4.0.5" else NEEDS_SPARK[:1]:  # every verb asks in one place
        done = ran(MAIN, words, place, **found)
        assert (words, done.returncode) == (words, 2)
        assert f"the installed PySpark {version} is not supported" in done.stderr
        assert "supports PySpark 4.1, 4.2 and 4.3" in " ".join(done.stderr.split())
        assert ("its streaming engine have other names" in done.stderr) == version.startswith("4.0")
        assert done.stderr.endswith(f"next:  pip install '{PYSPARK}'\n")
    program = """
import holdfast as hf
from holdfast.errors import NotSupported
for name in ("Pipeline", "exactly_once", "read_log", "embedded"):
    assert name not in hf.__all__
    try:
        getattr(hf, name)
    except NotSupported as error:
        print(error)
"""
    done = ran(program, "", place, **found)
    assert done.stdout.count(f"the installed PySpark {version} is not supported") == 4
    assert {each for each in names_in(place) - before if "__pycache__" not in each} == set()
    assert ran(MAIN, "ls", place, **found).returncode == 0
    assert f"pyspark {version}, not supported: pip install '{PYSPARK}'" in ran(MAIN, "version", place, **found).stdout


def test_a_pyspark_in_an_archive_as_clusters_send_it_is_recognised(place: Path) -> None:
    for version, refused in (("4.0.5", True), *((f"{each}.7", False) for each in SUPPORTED)):
        folder = Path(other_pyspark(place, version).split(os.pathsep)[0])
        archive = shutil.make_archive(str(place / version), "zip", folder)
        path = {"PYTHONPATH": os.pathsep.join([archive, os.environ.get("PYTHONPATH", "")])}
        done = ran("import holdfast as hf; print('Pipeline' in hf.__all__)", "", place, **path)
        assert done.stdout == f"{not refused}\n"


def test_without_java_nothing_is_created(place: Path) -> None:
    program = APP + "try:\n    pipeline.run()\nexcept hf.errors.JavaMissing:\n    print('no Java')\n"
    bare = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, cwd=place, env={**bare, "PATH": str(place)}, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "no Java\n", done.stderr
    assert not (place / "root").exists()
