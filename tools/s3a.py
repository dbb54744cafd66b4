"""Fetch the jars of Hadoop's connector for S3 into the environment: `python -m tools.s3a fetch .venv/s3a`.

Spark does not include the connector, and users let Spark download it. The tests use pinned files: for each version of
Hadoop, `tools/s3a-<version>.lock` has the digest and the path of each file. `python -m tools.s3a lock 3.5.0` writes it
again, which needs Maven.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark

from holdfast.spark.s3a import EXCLUDED, packages

REPOSITORY = os.environ.get("MAVEN_REPOSITORY", "https://repo1.maven.org/maven2")
_HERE = Path(__file__).parent
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>holdfast</groupId><artifactId>s3a</artifactId><version>1</version><dependencies>{}</dependencies></project>"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
_EXCLUSION = "<exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>"


def hadoop() -> str:
    """Return the version of Hadoop that the installed Spark includes."""
    jars = Path(pyspark.__file__).parent / "jars"
    (found,) = jars.glob("hadoop-client-api-*.jar")
    return found.stem.removeprefix("hadoop-client-api-")


def pins(version: str) -> dict[str, str]:
    """Return the digests of the jars by their paths in a Maven repository."""
    lines = (_HERE / f"s3a-{version}.lock").read_text().splitlines()
    return {path: digest for digest, path in (line.split() for line in lines if not line.startswith("#"))}


def fetch(folder: Path) -> None:
    """Download what is missing. A file whose digest differs is refused, and nothing of it is kept."""
    wanted = pins(hadoop())
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda path: fetch_file(folder / path.rpartition("/")[2], path, wanted[path]), wanted))
    for other in set(folder.glob("*.jar")) - {folder / path.rpartition("/")[2] for path in wanted}:
        other.unlink()  # of another version


def fetch_file(target: Path, path: str, digest: str) -> None:
    """Download one file of a Maven repository, unless it is there with this digest."""
    if target.exists() and _digest(target.read_bytes()) == digest:
        return
    with urllib.request.urlopen(f"{REPOSITORY}/{path}", timeout=60) as answer:  # noqa: S310 - a constant
        data = answer.read()
    found = _digest(data)
    if found != digest:
        raise SystemExit(f"s3a: {path} has the digest {found}, expected {digest}; nothing was kept")
    part = target.with_suffix(".part")
    part.write_bytes(data)
    part.replace(target)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _included() -> set[str]:
    """Return the names of the jars that Spark includes, without their versions: those are on the class path already."""
    return {_name(each) for each in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}


def _name(jar: Path) -> str:
    return re.sub(r"-\d[\w.]*$", "", jar.stem)


def lock(version: str) -> None:
    """Resolve the packages that the error of a start names, and write their digests."""
    excluded = "".join(_EXCLUSION.format(*each.split(":")) for each in EXCLUDED)
    excluded = f"<exclusions>{excluded}</exclusions>"
    needed = "".join(_DEPENDENCY.format(*each.split(":"), excluded) for each in packages(version).split(","))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pom.xml").write_text(_POM.format(needed))
        plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        words = ["-DincludeScope=runtime", "-Dmdep.useRepositoryLayout=true", "-DoutputDirectory=out"]
        subprocess.run(["mvn", "-q", "-B", plugin, *words], cwd=folder, check=True)  # noqa: S607 - the one on the PATH
        found = [each for each in sorted((folder / "out").rglob("*.jar")) if _name(each) not in _included()]
        lines = [f"{_digest(each.read_bytes())}  {each.relative_to(folder / 'out')}" for each in found]
    (_HERE / f"s3a-{version}.lock").write_text("# python -m tools.s3a lock\n" + "\n".join(lines) + "\n")


def main(words: list[str]) -> int:
    """Fetch into a folder, or lock a version."""
    verb, what = words
    if verb == "fetch":
        folder = Path(what)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            fetch(folder)
        except (OSError, urllib.error.URLError) as error:
            print(f"set-up: the tests of Spark on S3 are skipped: {error}", file=sys.stderr)
        (folder / "ready").touch()
    else:
        lock(what)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
