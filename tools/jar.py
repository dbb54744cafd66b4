"""Build the jar of `holdfast.spark.localfiles` from its sources: `python -m tools.jar`. It needs a Java compiler.

The jar is committed, because users who install Holdfast may have no compiler. It contains the sources that it was built
from, and a test compares them with those in the repository.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark

from holdfast.spark.localfiles import JAR, SOURCES

OLDEST_JAVA = "17"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same classes give the same jar


def packed_sources() -> dict[str, bytes]:
    """Return the sources that the jar was built from, by file name."""
    with zipfile.ZipFile(JAR) as jar:
        return {Path(name).name: jar.read(name) for name in jar.namelist() if name.endswith(".java")}


def main() -> int:
    """Compile the sources and pack the jar."""
    spark = Path(pyspark.__file__).parent / "jars"
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        words = ["javac", "--release", OLDEST_JAVA, "-Xlint:all,-path,-classfile", "-cp", f"{spark}/*", "-d", name]
        subprocess.run([*words, *map(str, SOURCES)], check=True)
        with zipfile.ZipFile(JAR, "w", zipfile.ZIP_DEFLATED) as jar:
            for source in SOURCES:
                _add(jar, f"holdfast/{source.name}", source)
            for path in sorted(out.rglob("*.class")):
                _add(jar, str(path.relative_to(out)), path)
    return 0


def _add(jar: zipfile.ZipFile, name: str, path: Path) -> None:
    jar.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    sys.exit(main())
