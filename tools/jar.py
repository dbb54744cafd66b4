"""Build the jar of `holdfast.spark.localfiles` from its one source: `python -m tools.jar`. It needs a Java compiler.

The jar is committed, because users who install Holdfast may have no compiler. It contains the source that it was built
from, and a test compares that with the source in the repository.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark

from holdfast.spark.localfiles import JAR, SOURCE

OLDEST_JAVA = "17"
_PACKED = f"holdfast/{SOURCE.name}"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # fixed, so that the same classes give the same jar


def packed_source() -> bytes:
    """Return the source that the jar was built from."""
    with zipfile.ZipFile(JAR) as jar:
        return jar.read(_PACKED)


def main() -> int:
    """Compile the source and pack the jar."""
    spark = Path(pyspark.__file__).parent / "jars"
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        words = ["javac", "--release", OLDEST_JAVA, "-Xlint:all,-path,-classfile", "-cp", f"{spark}/*", "-d", name]
        subprocess.run([*words, str(SOURCE)], check=True)
        with zipfile.ZipFile(JAR, "w", zipfile.ZIP_DEFLATED) as jar:
            _add(jar, _PACKED, SOURCE)
            for path in sorted(out.rglob("*.class")):
                _add(jar, str(path.relative_to(out)), path)
    return 0


def _add(jar: zipfile.ZipFile, name: str, path: Path) -> None:
    jar.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    sys.exit(main())
