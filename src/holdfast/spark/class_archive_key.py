"""Which archive of classes fits a JVM: the facts that Java compares, and their digest.

Java ignores an archive without a message if it was written by another Java or with another class path: another jar, a
changed jar, or another order of jars. Some Java options, such as the heap size, have the same effect if they differ. So
all of these are in the key.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.spark.java_environment import CLASS_PATH, OPTIONS, SUBMITTED, conf_folders
from holdfast.spark.localfiles import JAR

_FORMAT = "1"
_DIGITS = 32
_JAVA_OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", OPTIONS, SUBMITTED)
_JVM = ("lib/server/libjvm.so", "lib/server/classes.jsa")  # only HotSpot has both; the second one is required
_OF_USER = re.compile(r"SharedArchive|ArchiveClasses|RecordDynamicDumpInfo|-Xshare|DumpLoadedClassList|AOT")
_ADDING = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_PREPEND_CLASSES")
_MASTER = re.compile(r"(?:--master[ =]|spark\.master=)\s*[\"']?([^\s\"']+)")


@dataclass(frozen=True, slots=True)
class FileStamp:
    """By what Java recognises a file. Java compares whole seconds, and images of containers contain no others."""

    path: str
    size: int
    time_s: int

    @classmethod
    def of(cls, path: Path) -> FileStamp:
        """Return the stamp of a file as it is now."""
        found = path.stat()
        return cls(str(path), found.st_size, found.st_mtime_ns // 1_000_000_000)


@dataclass(frozen=True, slots=True)
class JvmFacts:
    """Everything that decides whether an archive fits a JVM."""

    release: str  # of Java, as its file `release` describes it
    jvm: tuple[FileStamp, ...]
    class_path: tuple[FileStamp, ...]  # in the order of the folder: so the JVM reads it
    variables: tuple[tuple[str, str], ...]

    def key(self) -> str:
        """Return a digest of all facts."""
        digest = hashlib.sha256()
        for part in (_FORMAT, self.release, repr(self.jvm), repr(self.class_path), repr(self.variables)):
            digest.update(hashlib.sha256(part.encode(errors="surrogateescape")).digest())
        return digest.hexdigest()[:_DIGITS]

    @classmethod
    def read(cls, environment: Mapping[str, str], java: Path, spark_home: Path) -> JvmFacts:
        """Read the facts about a JVM that is started in this environment; raises `OSError` if a file is missing."""
        home = java.resolve().parent.parent
        with os.scandir(spark_home / "jars") as jars:
            own = [FileStamp.of(Path(each.path)) for each in jars]
        return cls(
            release=(home / "release").read_text(errors="replace"),
            jvm=tuple(FileStamp.of(home / each) for each in _JVM),
            class_path=(*own, *map(FileStamp.of, _class_path(environment))),
            variables=tuple((name, environment.get(name, "")) for name in _JAVA_OPTIONS),
        )


def reason_against(environment: Mapping[str, str], spark_home: Path) -> str | None:
    """Return why the archive must not be used in this environment; `None` if it may be used."""
    if any(_OF_USER.search(environment.get(name, "")) for name in _JAVA_OPTIONS):
        return "the Java options of the user set an archive themselves"
    masters = [*_MASTER.findall(environment.get(SUBMITTED, "")), *filter(None, [environment.get("MASTER")])]
    if not all(each.startswith("local") for each in masters):
        return "the session runs on a cluster"
    if _folders_with_files([*conf_folders(environment), spark_home / "conf"]):
        return "Spark has a configuration folder: Java archives no classes if the class path contains such a folder"
    adding = [name for name in _ADDING if environment.get(name)]
    more = _class_path(environment)
    if adding or not all(each.is_file() for each in more):
        return f"{' and '.join(adding) or CLASS_PATH} adds a folder to the class path"
    return None if JAR in more else f"{JAR} is not on the class path"


def _class_path(environment: Mapping[str, str]) -> list[Path]:
    """Return what is on the class path in addition to Spark's own jars."""
    return [Path(each) for each in environment.get(CLASS_PATH, "").split(os.pathsep) if each]


def _folders_with_files(folders: Iterable[Path]) -> bool:
    return any(folder.is_dir() and any(folder.iterdir()) for folder in folders)
