"""The distribution `holdfast-spark`: a build of it installs and runs, and a foreign `holdfast` is reported."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from pathlib import Path
import holdfast as hf

source = Path("in"); source.mkdir()
(source / "a.json").write_text('{"n": 1}\\n{"n": 2}\\n')
pipeline = hf.Pipeline("numbers", root="checkpoints")

@pipeline.stream(sinks=[hf.SqliteSink("out.db", table="numbers")])
def numbers(spark):
    return spark.readStream.schema("n long").json("in")

pipeline.run(available_now=True)
print(hf.__file__)
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the packages of this environment, but without its Holdfast: that one is only linked there."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    packages = os.pathsep.join(filter(None, [environment.pop("first", ""), sysconfig.get_path("purelib")]))
    return subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env={**kept, "PYTHONPATH": packages, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def installed(place: Path, what: Path) -> Path:
    """Install a built distribution into an environment of its own; return its folder of commands."""
    venv.create(place, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", place / "bin/python", "--disable-pip-version-check"]
    done = run(*pip, "install", "--quiet", "--no-deps", "--no-build-isolation", what, cwd=place)
    assert done.returncode == 0, done.stderr
    return place / "bin"


@pytest.fixture(scope="module")
def commands(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (wheel,) = built.glob("holdfast_spark-*.whl")
    return installed(tmp_path_factory.mktemp("wheel"), wheel)


def test_the_wheel_holds_the_package_its_jar_the_files_of_the_page_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"holdfast", "holdfast_spark", "holdfast_spark.py"}
    assert "holdfast/py.typed" in names
    assert any(name.endswith(".jar") for name in names)
    served = {f"holdfast/web/static/{each.name}" for each in (ROOT / "src/holdfast/web/static").iterdir()}
    assert served
    assert served <= set(names), "the files of the page"
    assert not any("__pycache__" in name or name.endswith(".pyc") for name in names)


def test_the_sdist_installs_too(built: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("holdfast_spark-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert not any("/tests/" in name or ".venv" in name for name in names)
    done = run(installed(tmp_path / "env", sdist) / "holdfast", "version", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("holdfast ")


@pytest.mark.jvm
def test_what_was_installed_runs_a_pipeline(commands: Path, tmp_path: Path) -> None:
    done = run(commands / "python", "-W", "ignore", "-c", PROGRAM, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[-1]).is_relative_to(commands.parent), "it ran another Holdfast"
    found = run(commands / "holdfast", "ls", "-r", "checkpoints/numbers", cwd=tmp_path)
    assert (found.returncode, found.stderr) == (0, "")
    assert "numbers" in found.stdout


def test_another_package_of_that_name_in_the_way_is_reported_by_the_command(commands: Path, tmp_path: Path) -> None:
    (tmp_path / "holdfast").mkdir()
    (tmp_path / "holdfast/__init__.py").write_text("grip = True\n")
    done = run(commands / "holdfast", "ls", cwd=tmp_path, first=str(tmp_path))
    assert done.returncode == 2
    assert done.stdout == ""
    assert str(tmp_path / "holdfast/__init__.py") in done.stderr
    assert "does not belong to holdfast-spark" in done.stderr
    assert "pip install --force-reinstall --no-deps holdfast-spark" in done.stderr


def test_another_distribution_of_that_name_beside_ours_is_reported_at_import(commands: Path, tmp_path: Path) -> None:
    """Both own the same files: removing one breaks the other."""
    (site,) = commands.parent.glob("lib/python*/site-packages")
    quiet = run(commands / "python", "-c", "import holdfast", cwd=tmp_path)
    assert (quiet.returncode, quiet.stderr) == (0, "")
    other = site / "holdfast-2.0.dist-info"
    other.mkdir()
    try:
        done = run(commands / "python", "-c", "import holdfast", cwd=tmp_path)
    finally:
        other.rmdir()
    assert done.returncode == 0
    assert "another distribution named 'holdfast' (holdfast-2.0)" in done.stderr
    assert "pip uninstall holdfast" in done.stderr
