"""A Hadoop file system for this machine that starts no processes: one class of Java, in a jar beside this file.

Without its native library, which Spark does not bring, Hadoop starts `chmod` for every file and folder that it makes.
A small micro-batch makes more than ten, so that is a good third of its time. Checksums, names and permissions are the
same; whoever takes the settings away again finds nothing changed.
"""

from __future__ import annotations

import os
from pathlib import Path

CLASS = "holdfast.LocalFiles"
SETTING = "spark.hadoop.fs.file.impl"
JAR = Path(__file__).with_name("localfiles.jar")
SOURCE = Path(__file__).with_name("LocalFiles.java")


def local_files() -> dict[str, str]:
    """Return the settings with which a session on one machine writes its files faster.

    They are for a session's builder, before it starts Java: `SparkSession.builder.config(map=local_files())`. None,
    where Holdfast is installed in a folder that no class path can name.
    """
    if os.pathsep in str(JAR):
        return {}
    return {"spark.driver.extraClassPath": str(JAR), SETTING: CLASS}
