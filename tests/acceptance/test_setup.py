"""Set-up on machines that lack something: it finds Java and a JDBC driver, gets them if it may, or says what is due."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from holdfast._extras import PYSPARK, SUPPORTED

ROOT = Path(__file__).parents[2]


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with a shell and nothing else."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "sed", "head", "cat", "mkdir", "chmod", "dirname", "touch", "rm", "uname"):
        (tools / name).symlink_to(str(shutil.which(name)))
    program(tools / "id", "echo 1000")
    return {"PATH": str(tools), "HOLDFAST_JVM_DIRS": str(tmp_path / "jvm")}


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def java(home: Path, version: str) -> Path:
    script = f"""case "$1" in -XshowSettings*) echo "    java.home = {home}" >&2 ;; esac
echo 'openjdk version "{version}" 2025-01-01' >&2"""
    program(home / "bin" / "java", script)
    return home


def find_java(machine: dict[str, str], **more: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(shutil.which("sh")), str(ROOT / "tools/find-java.sh")],
        env={**machine, **more},
        capture_output=True,
        text=True,
        check=False,
    )


def test_java_home_is_taken_first(machine: dict[str, str], tmp_path: Path) -> None:
    java(tmp_path / "jvm/java-17", "17.0.15")
    mine = java(tmp_path / "mine", "21.0.1")
    found = find_java(machine, JAVA_HOME=str(mine))
    assert (found.returncode, found.stdout.strip()) == (0, str(mine))


def test_an_old_java_is_passed_over(machine: dict[str, str], tmp_path: Path) -> None:
    old = java(tmp_path / "old", "11.0.2")
    java(tmp_path / "jvm/java-1.8", "1.8.0_402")
    good = java(tmp_path / "jvm/java-17", "17.0.15")
    (tmp_path / "bin/java").symlink_to(old / "bin/java")
    found = find_java(machine, JAVA_HOME=str(old))
    assert (found.returncode, found.stdout.strip()) == (0, str(good))


def test_the_command_on_the_path_tells_its_home(machine: dict[str, str], tmp_path: Path) -> None:
    good = java(tmp_path / "elsewhere", "25")
    (tmp_path / "bin/java").symlink_to(good / "bin/java")
    found = find_java(machine)
    assert (found.returncode, found.stdout.strip()) == (0, str(good))


@pytest.mark.parametrize(
    ("manager", "line"),
    [
        ("apt-get", "Next: sudo apt-get install -y openjdk-17-jre-headless"),
        ("dnf", "Next: sudo dnf install -y java-17-openjdk-headless"),
        ("apk", "Next: sudo apk add openjdk17-jre-headless"),
        (None, "Next: install a Java 17 runtime."),
    ],
)
def test_without_rights_it_says_exactly_what_to_type(
    machine: dict[str, str], tmp_path: Path, manager: str | None, line: str
) -> None:
    if manager:
        program(tmp_path / "bin" / manager, "echo should not run >&2; exit 9")
    found = find_java(machine)
    assert found.returncode == 1
    assert line in found.stderr
    assert "should not run" not in found.stderr
    assert found.stdout == ""


def installing(tmp_path: Path) -> str:
    home = tmp_path / "jvm/java-17-openjdk"
    return f"""echo "$@" >> {tmp_path}/called
case "$1" in install)
mkdir -p {home}/bin
echo '#!/bin/sh' > {home}/bin/java
echo "echo 'openjdk version \\"17.0.15\\"' >&2" >> {home}/bin/java
chmod +x {home}/bin/java ;; esac"""


def test_as_root_it_installs_java(machine: dict[str, str], tmp_path: Path) -> None:
    program(tmp_path / "bin/id", "echo 0")
    program(tmp_path / "bin/apt-get", installing(tmp_path))
    found = find_java(machine)
    assert (found.returncode, found.stdout.strip()) == (0, str(tmp_path / "jvm/java-17-openjdk")), found.stderr
    assert (tmp_path / "called").read_text() == "update -qq\ninstall -y openjdk-17-jre-headless\n"
    assert "running: apt-get install" in found.stderr


def test_with_sudo_that_asks_for_no_password_it_installs_java(machine: dict[str, str], tmp_path: Path) -> None:
    program(tmp_path / "bin/true", "exit 0")
    program(tmp_path / "bin/sudo", 'shift; "$@"')
    program(tmp_path / "bin/apt-get", installing(tmp_path))
    assert find_java(machine).returncode == 0


def test_an_installation_that_fails_or_is_forbidden_ends_in_what_to_type(
    machine: dict[str, str], tmp_path: Path
) -> None:
    program(tmp_path / "bin/id", "echo 0")
    program(tmp_path / "bin/apt-get", f"echo called >> {tmp_path}/called; exit 100")
    failed = find_java(machine)
    assert failed.returncode == 1
    assert "did not provide a usable Java" in failed.stderr
    (tmp_path / "called").unlink()
    forbidden = find_java(machine, HOLDFAST_NO_INSTALL="1")
    assert forbidden.returncode == 1
    assert not (tmp_path / "called").exists()
    for result in (failed, forbidden):
        assert "Next: sudo apt-get install -y openjdk-17-jre-headless" in result.stderr
        assert "JAVA_HOME" in result.stderr


# --- the JDBC driver -------------------------------------------------------------------------------------------------


def find_jdbc(machine: dict[str, str], tmp_path: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run it in a checkout of its own: it unpacks beside itself."""
    copy = tmp_path / "checkout" / "tools"
    copy.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "tools/find-jdbc.sh", copy)
    return subprocess.run(
        [str(shutil.which("sh")), str(copy / "find-jdbc.sh")],
        env={**machine, "HOLDFAST_JAR_DIRS": str(tmp_path / "jars"), **more},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("name", ["postgresql.jar", "postgresql-jdbc.jar", "postgresql-42.7.4.jar"])
def test_a_jdbc_driver_that_is_there_is_taken(machine: dict[str, str], tmp_path: Path, name: str) -> None:
    jar = tmp_path / "jars" / name
    jar.parent.mkdir()
    jar.touch()
    program(tmp_path / "bin/apt-get", "echo should not run >&2; exit 9")
    found = find_jdbc(machine, tmp_path)
    assert (found.returncode, found.stdout.strip(), found.stderr) == (0, str(jar), "")


def test_the_jdbc_driver_is_unpacked_without_rights(machine: dict[str, str], tmp_path: Path) -> None:
    program(tmp_path / "bin/apt-get", f'echo "$@" >> {tmp_path}/called; touch driver.deb')
    program(tmp_path / "bin/dpkg-deb", "mkdir -p $3/usr/share/java; touch $3/usr/share/java/postgresql.jar")
    jar = tmp_path / "checkout/.venv/jdbc/usr/share/java/postgresql.jar"
    for _ in range(2):
        found = find_jdbc(machine, tmp_path)
        assert (found.returncode, found.stdout.strip()) == (0, str(jar)), found.stderr
    assert (tmp_path / "called").read_text() == "download -qq libpostgresql-jdbc-java\n"


def test_where_it_cannot_be_unpacked_root_installs_the_jdbc_driver(machine: dict[str, str], tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    program(tmp_path / "bin/id", "echo 0")
    program(tmp_path / "bin/apt-get", f'[ "$1" != install ] || {{ mkdir {jars}; touch {jars}/postgresql.jar; }}')
    found = find_jdbc(machine, tmp_path)
    assert (found.returncode, found.stdout.strip()) == (0, str(jars / "postgresql.jar")), found.stderr
    assert "running: apt-get install -y libpostgresql-jdbc-java" in found.stderr


@pytest.mark.parametrize(
    ("manager", "line"),
    [
        ("apt-get", "Next: sudo apt-get install -y libpostgresql-jdbc-java"),
        ("dnf", "Next: sudo dnf install -y postgresql-jdbc"),
        (None, "Next: put postgresql.jar, the JDBC driver, into a folder."),
    ],
)
def test_without_a_jdbc_driver_it_says_exactly_what_to_type(
    machine: dict[str, str], tmp_path: Path, manager: str | None, line: str
) -> None:
    program(tmp_path / "bin/id", "echo 0")
    program(tmp_path / "bin/dpkg-deb", "exit 9")
    if manager:
        program(tmp_path / "bin" / manager, f"echo called >> {tmp_path}/called; exit 100")
    failed = find_jdbc(machine, tmp_path)
    (tmp_path / "called").unlink(missing_ok=True)
    forbidden = find_jdbc(machine, tmp_path, HOLDFAST_NO_INSTALL="1")
    assert not (tmp_path / "called").exists()
    for result in (failed, forbidden):
        assert (result.returncode, result.stdout) == (1, "")
        assert line in result.stderr
        assert "HOLDFAST_JAR_DIRS" in result.stderr


# --- what else there is ----------------------------------------------------------------------------------------------


def refused_set_up(machine: dict[str, str], folder: Path) -> str:
    copy = folder / "checkout"
    (copy / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools/setup.sh", copy / "tools")
    done = subprocess.run(
        [str(shutil.which("sh")), str(copy / "tools/setup.sh")],
        env=machine,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert not (copy / ".venv").exists()
    return done.stderr


def test_without_a_new_python_set_up_says_what_to_type(machine: dict[str, str], tmp_path: Path) -> None:
    program(tmp_path / "bin/python3", "exit 1")
    said = refused_set_up(machine, tmp_path)
    assert "Python 3.11 or newer is required" in said
    assert "make test PYTHON=" in said


def test_on_another_system_set_up_and_import_say_where_to_go(machine: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin/uname").unlink()
    program(tmp_path / "bin/uname", "echo Darwin")
    said = refused_set_up(machine, tmp_path)
    assert "Linux only" in said and "Darwin does not have" in said
    assert "Next: run the same command in a Linux container" in said
    elsewhere = "import sys; sys.platform = 'darwin'; import holdfast"
    done = subprocess.run([sys.executable, "-c", elsewhere], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("ImportError: Holdfast runs on Linux only: use a Linux container")


@pytest.mark.parametrize("version", SUPPORTED)
def test_the_lock_file_of_each_spark_pins_every_package_by_digest_and_names_no_host(version: str) -> None:
    name = "requirements.lock" if version == SUPPORTED[-1] else f"requirements-{version}.lock"
    text = (ROOT / name).read_text()
    pins = [line for line in text.splitlines() if "==" in line]
    assert any(line.startswith(f"pyspark=={version}.") for line in pins)
    assert len(pins) > 15
    assert text.count("--hash=sha256:") >= len(pins)
    assert "://" not in text


def test_lock_files_differ_only_in_what_the_version_of_spark_decides() -> None:
    """Else a test could fail on one version because of another package."""
    newest, *older = (
        {line for line in (ROOT / name).read_text().splitlines() if "==" in line}
        for name in ("requirements.lock", *(f"requirements-{each}.lock" for each in SUPPORTED[:-1]))
    )
    for pins in older:
        assert {line.partition("==")[0] for line in newest ^ pins} == {"pyspark"}


def test_the_range_of_pyspark_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert PYSPARK in project["optional-dependencies"]["spark"]
    last = int(SUPPORTED[-1].partition(".")[2])
    assert f"pyspark>={SUPPORTED[0]},<4.{last + 1}" == PYSPARK
    assert [f"4.{each}" for each in range(int(SUPPORTED[0][2:]), last + 1)] == list(SUPPORTED)
    for page in ("README.md", "docs/versions.md"):
        assert f"{', '.join(SUPPORTED[:-1])} and {SUPPORTED[-1]}" in (ROOT / page).read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert f"NEWEST := {SUPPORTED[-1]}\nOLDER := {' '.join(SUPPORTED[:-1])}\n" in makefile


def dry_make(*words: str) -> "subprocess.CompletedProcess[str]":
    """Return what `make` would run. A `make` that runs these tests must not pass its own variables on."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = [str(shutil.which("make")), "-n", *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_make_refuses_a_version_of_spark_that_has_no_environment() -> None:
    done = dry_make("test", "SPARK=4.0")
    assert done.returncode == 2
    assert "SPARK=4.0 is not supported; choose one of: 4.1 4.2 4.3" in done.stderr


def test_each_version_of_spark_has_its_own_environment_and_archive_of_classes() -> None:
    for version in SUPPORTED:
        folder = ".venv" if version == SUPPORTED[-1] else f".venv-{version}"
        said = dry_make("-B", "test", f"SPARK={version}").stdout
        assert f"setup.sh {folder} requirements" in said
        assert f"SharedArchiveFile={ROOT}/{folder}/spark.jsa" in said


def test_the_scripts_may_be_run() -> None:
    for name in (".ci/run", "tools/setup.sh", "tools/find-java.sh", "tools/find-jdbc.sh"):
        assert os.access(ROOT / name, os.X_OK)
