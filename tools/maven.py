"""Jars from a Maven repository, pinned by their digests: what the other modules here fetch and lock.

A lock file has a line for each jar: the digest and the path in the repository.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

REPOSITORY = os.environ.get("MAVEN_REPOSITORY", "https://repo1.maven.org/maven2")
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>holdfast</groupId><artifactId>jars</artifactId><version>1</version><dependencies>{}</dependencies></project>"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
_EXCLUSION = "<exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>"


def pins(lock: Path) -> dict[str, str]:
    """Return the digests of the jars by their paths in a Maven repository."""
    lines = lock.read_text().splitlines()
    return {path: digest for digest, path in (line.split() for line in lines if not line.startswith("#"))}


def fetch(lock: Path, folder: Path) -> None:
    """Download what is missing. A file whose digest differs is refused, and nothing of it is kept."""
    wanted = pins(lock)
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda path: _fetch(folder / path.rpartition("/")[2], path, wanted[path]), wanted))
    for other in set(folder.glob("*.jar")) - {folder / path.rpartition("/")[2] for path in wanted}:
        other.unlink()  # of another version


def provide(target: Path, tests: str, locks: Mapping[Path, Path]) -> None:
    """Fetch the jars of tests: those of each lock file, by the folder that gets them. `target` contains these folders.

    Without a network, the tests are skipped. So this reports the reason, and writes it to the file `missing`, where the
    tests read it. Only when everything is there is the file `ready` written; until then the next `make` tries again.
    """
    target.mkdir(parents=True, exist_ok=True)
    missing = target / "missing"
    missing.unlink(missing_ok=True)
    try:
        for folder, lock in locks.items():
            fetch(lock, folder)
    except (OSError, HTTPException) as error:  # of a file, of a connection, or of an answer that was cut off
        missing.write_text(f"{REPOSITORY}: {error}")
        print(f"set-up: the tests of {tests} are skipped: {error}", file=sys.stderr)
    else:
        (target / "ready").touch()


def _fetch(target: Path, path: str, digest: str) -> None:
    if target.exists() and _digest(target.read_bytes()) == digest:
        return
    with urllib.request.urlopen(f"{REPOSITORY}/{path}", timeout=60) as answer:  # noqa: S310 - a constant
        data = answer.read()
    found = _digest(data)
    if found != digest:
        raise SystemExit(f"set-up: {path} has the digest {found}, expected {digest}; nothing was kept")
    part = target.with_suffix(".part")
    part.write_bytes(data)
    part.replace(target)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_lock(
    lock: Path, command: str, packages: Sequence[str], excluded: Sequence[str], wanted: Callable[[Path], bool]
) -> None:
    """Resolve packages (`group:name:version`) with Maven, and write the digests of the jars that are wanted."""
    exclusions = f"<exclusions>{''.join(_EXCLUSION.format(*each.split(':')) for each in excluded)}</exclusions>"
    needed = "".join(_DEPENDENCY.format(*each.split(":"), exclusions) for each in packages)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pom.xml").write_text(_POM.format(needed))
        plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        words = ["-DincludeScope=runtime", "-Dmdep.useRepositoryLayout=true", "-DoutputDirectory=out"]
        subprocess.run(["mvn", "-q", "-B", plugin, *words], cwd=folder, check=True)  # noqa: S607 - the one on the PATH
        found = [each for each in sorted((folder / "out").rglob("*.jar")) if wanted(each)]
        lines = [f"{_digest(each.read_bytes())}  {each.relative_to(folder / 'out')}" for each in found]
    lock.write_text(f"# {command}\n" + "\n".join(lines) + "\n")
