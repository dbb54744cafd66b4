"""A Hadoop file system for local disks that starts no processes: a Java class, in a jar beside this file.

Without its native library, which Spark does not include, Hadoop runs `chmod` for every file and folder that it creates.
A small micro-batch creates more than ten, which takes about a third of its time. Checksums, names and permissions are
the same, so the settings can be removed at any time.
"""

from __future__ import annotations

import os
from pathlib import Path

CLASS = "holdfast.LocalFiles"
SETTING = "spark.hadoop.fs.file.impl"
JAR = Path(__file__).with_name("localfiles.jar")
SOURCES = tuple(
    Path(__file__).with_name(f"{name}.java")
    for name in ("ExecutorProbe", "FewRows", "KnownBytes", "LocalFiles", "OwnEntries", "Spool", "StoreFiles")
)


def local_files() -> dict[str, str]:
    """Return the settings with which a session on one machine writes its files faster.

    Pass them to the builder of a session, before it starts Java: `SparkSession.builder.config(map=local_files())`.
    Empty if Holdfast is installed in a folder whose path cannot be part of a class path.
    """
    if os.pathsep in str(JAR):
        return {}
    return {"spark.driver.extraClassPath": str(JAR), SETTING: CLASS}
