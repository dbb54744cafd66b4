"""The archive of Spark's classes: which one fits, where it is kept, and when it is not trusted."""

import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.spark import class_archive, class_dump
from holdfast.spark.class_archive import VARIABLE, ClassArchive, chosen_folder, is_intact, prune, reason_against_folder
from holdfast.spark.class_archive_key import FileStamp, JvmFacts, reason_against
from holdfast.spark.localfiles import JAR

FACTS = JvmFacts(
    release='JAVA_VERSION="17.0.15"',
    jvm=(FileStamp("libjvm.so", 1, 2),),
    class_path=(FileStamp("a.jar", 3, 4), FileStamp("b.jar", 5, 6)),
    variables=(("SPARK_SUBMIT_OPTS", ""),),
)
WITH_JAR = {"SPARK_DIST_CLASSPATH": str(JAR)}
KEY = "0" * 32


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "classes"
    made.mkdir(mode=0o700)
    return made


def archive(folder: Path, key: str = KEY, *, time_s: int = 1000, content: bytes = b"classes") -> Path:
    path = folder / f"{key}-{len(content)}-{time_s * 1000}.jsa"
    path.write_bytes(content)
    path.chmod(0o444)
    os.utime(path, (time_s, time_s))
    return path


# --- the key ---


@pytest.mark.parametrize(
    "other",
    [
        replace(FACTS, release='JAVA_VERSION="17.0.16"'),
        replace(FACTS, jvm=(FileStamp("libjvm.so", 1, 3),)),
        replace(FACTS, class_path=FACTS.class_path[::-1]),
        replace(FACTS, class_path=FACTS.class_path[:1]),
        replace(FACTS, class_path=(FileStamp("a.jar", 3, 4), FileStamp("b.jar", 5, 7))),
        replace(FACTS, class_path=(FileStamp("a.jar", 3, 4), FileStamp("c.jar", 5, 6))),
        replace(FACTS, variables=(("SPARK_SUBMIT_OPTS", "-Xmx2g"),)),
    ],
)
def test_every_fact_that_java_compares_changes_the_key(other: JvmFacts) -> None:
    assert other.key() != FACTS.key()
    assert replace(FACTS).key() == FACTS.key()


def test_the_facts_are_read_from_java_and_from_the_class_path(tmp_path: Path) -> None:
    home, spark = tmp_path / "java", tmp_path / "spark"
    for name in ("bin/java", "lib/server/libjvm.so", "lib/server/classes.jsa", "release"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    (spark / "jars").mkdir(parents=True)
    (spark / "jars" / "spark.jar").write_text("1")
    found = JvmFacts.read(WITH_JAR, home / "bin" / "java", spark)
    assert found.release == "release"
    assert [Path(each.path).name for each in found.class_path] == ["spark.jar", JAR.name]
    (spark / "jars" / "spark.jar").write_text("22")
    assert JvmFacts.read(WITH_JAR, home / "bin" / "java", spark).key() != found.key()
    (home / "lib/server/classes.jsa").unlink()  # as in a Java that has no class-data sharing
    with pytest.raises(FileNotFoundError):
        JvmFacts.read(WITH_JAR, home / "bin" / "java", spark)


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=mine.jsa"}, "of the user"),
        ({"JAVA_TOOL_OPTIONS": "-Xshare:off"}, "of the user"),
        ({"PYSPARK_SUBMIT_ARGS": "--driver-java-options -XX:ArchiveClassesAtExit=x pyspark-shell"}, "of the user"),
        ({"PYSPARK_SUBMIT_ARGS": "--master spark://host:7077 pyspark-shell"}, "cluster"),
        ({"PYSPARK_SUBMIT_ARGS": '--conf "spark.master=k8s://host" pyspark-shell'}, "cluster"),
        ({"MASTER": "yarn"}, "cluster"),
        ({"HADOOP_CONF_DIR": "/etc/hadoop"}, "HADOOP_CONF_DIR"),
        ({"SPARK_DIST_CLASSPATH": f"/opt/lib/*:{JAR}"}, "SPARK_DIST_CLASSPATH"),
        ({"SPARK_DIST_CLASSPATH": ""}, "not on the class path"),
    ],
)
def test_settings_of_the_user_and_clusters_keep_the_archive_out(
    variables: dict[str, str], why: str, tmp_path: Path
) -> None:
    assert why in str(reason_against({**WITH_JAR, **variables}, tmp_path))


def test_other_settings_do_not(tmp_path: Path) -> None:
    given = {"PYSPARK_SUBMIT_ARGS": "--master local[4] --driver-memory 2g pyspark-shell", "SPARK_SUBMIT_OPTS": "-Xss2m"}
    assert reason_against({**WITH_JAR, **given}, tmp_path) is None


@pytest.mark.parametrize("variable", ["SPARK_CONF_DIR", "SPARK_HOME"])
def test_a_configuration_folder_on_the_class_path_keeps_it_out(variable: str, tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    conf.mkdir()
    given = {**WITH_JAR, variable: str(conf if variable == "SPARK_CONF_DIR" else tmp_path)}
    assert reason_against(given, tmp_path / "spark") is None
    (conf / "spark-env.sh").write_text("export JAVA_HOME=/other")
    assert "configuration folder" in str(reason_against(given, tmp_path / "spark"))


# --- the folder ---


@pytest.mark.parametrize("value", ["off", "OFF", " off "])
def test_it_can_be_turned_off(value: str) -> None:
    assert chosen_folder({VARIABLE: value}) is None


def test_the_folder_is_the_cache_of_the_user_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert chosen_folder({}) == Path("/home/ada/.cache/holdfast")
    assert chosen_folder({"XDG_CACHE_HOME": "/cache"}) == Path("/cache/holdfast")
    assert chosen_folder({"XDG_CACHE_HOME": "relative"}) == Path("/home/ada/.cache/holdfast")
    assert chosen_folder({VARIABLE: "/else", "XDG_CACHE_HOME": "/cache"}) == Path("/else")
    assert chosen_folder({VARIABLE: "~/else"}) == Path("/home/ada/else")


def test_a_new_folder_is_private(tmp_path: Path) -> None:
    assert reason_against_folder(tmp_path / "a" / "b") is None
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_to_which_others_can_write_is_not_used(mode: int, folder: Path) -> None:
    folder.chmod(mode)
    assert "chmod 700" in str(reason_against_folder(folder))


def test_what_belongs_to_another_user_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive(folder)
    assert is_intact(path)
    if os.geteuid() == 0:
        for each in (path, folder):
            os.chown(each, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert not is_intact(path)
    assert "another user" in str(reason_against_folder(folder))


@pytest.mark.parametrize("name", ["with space", "with:colon", 'with"quote'])
def test_a_path_that_java_would_misread_is_not_used(name: str, tmp_path: Path) -> None:
    assert "Java cannot be given" in str(reason_against_folder(tmp_path / name))
    assert not (tmp_path / name).exists()


# --- archives ---


def test_the_newest_archive_of_the_key_is_found(folder: Path) -> None:
    archive(folder, time_s=1000, content=b"older")
    newer = archive(folder, time_s=2000, content=b"newer")
    archive(folder, "1" * 32, time_s=3000)
    assert ClassArchive.find(folder, KEY).path == newer
    assert ClassArchive.find(folder, "2" * 32).path is None
    assert is_intact(newer)  # using it does not change its time


def test_an_archive_in_the_image_of_a_container_is_used(tmp_path: Path, folder: Path) -> None:
    """When an image is pushed or saved, the modification times of its files are cut to whole seconds."""
    [name] = made(folder)
    jar = tmp_path / "spark.jar"
    jar.touch()
    os.utime(jar, ns=(0, 1_700_000_000_987_654_321))
    before = FileStamp.of(jar)
    for each in (folder / name, jar):
        whole = each.stat().st_mtime_ns // 1_000_000_000
        os.utime(each, (whole, whole))
    assert is_intact(folder / name)
    assert FileStamp.of(jar) == before


def test_a_changed_archive_is_deleted_and_made_again(folder: Path) -> None:
    cut, touched, foreign, linked = (archive(folder, content=bytes(size)) for size in (10, 20, 30, 40))
    for each in (cut, touched, foreign):
        each.chmod(0o644)
    os.truncate(cut, 5)
    os.utime(cut, (1000, 1000))
    touched.write_bytes(b"\1" * 20)
    foreign.chmod(0o666)
    target = folder / "elsewhere"
    linked.rename(target)
    linked.symlink_to(target)
    assert ClassArchive.find(folder, KEY).path is None
    assert list(folder.glob("*.jsa")) == []
    assert target.exists()
    assert "-XX:DumpLoadedClassList=" in ClassArchive.find(folder, KEY).java_options


def test_the_archives_used_last_are_kept_and_stale_parts_deleted(folder: Path) -> None:
    keys = [str(number) * 32 for number in range(5)]
    for number, key in enumerate(keys):
        archive(folder, key, time_s=1000 + number)
    ClassArchive.find(folder, keys[0])
    (folder / f"{KEY}-dead.part").touch()
    os.utime(folder / f"{KEY}-dead.part", (1000, 1000))
    (folder / f"{KEY}-busy.part").touch()
    (folder / f"{KEY}-dead.classlist").touch()
    os.utime(folder / f"{KEY}-dead.classlist", (1000, 1000))
    (folder / "notes.txt").touch()
    prune(folder, keep=2)
    left = {each.name.split("-")[0] for each in folder.glob("*.jsa")}
    assert left == {keys[0], keys[4]}
    assert {each.name for each in folder.iterdir() if each.suffix != ".jsa"} == {f"{KEY}-busy.part", "notes.txt"}


# --- no harm ---


@pytest.mark.parametrize("given", ["/proc/nothing/here", "/dev/null/below"])
def test_a_folder_that_cannot_be_made_is_reported_once_and_left_out(
    given: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JvmFacts, "read", lambda *_: FACTS)
    assert class_archive._find({**WITH_JAR, "PATH": os.environ["PATH"], VARIABLE: given}) is None
    assert [each.levelname for each in caplog.records] == ["WARNING"]


def test_a_read_only_folder_is_used_if_it_has_an_archive(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JvmFacts, "read", lambda *_: FACTS)
    monkeypatch.setattr(os, "access", lambda *_: False)
    given = {**WITH_JAR, "PATH": os.environ["PATH"], VARIABLE: str(folder)}
    monkeypatch.setattr(class_archive, "find_java", lambda _: Path("/java"))
    assert class_archive._find(given) is None
    path = archive(folder, FACTS.key())
    assert class_archive._find(given) == ClassArchive(folder, FACTS.key(), path)


def test_without_a_home_folder_there_is_no_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert class_archive._find({**WITH_JAR, "PATH": os.environ["PATH"]}) is None


def test_a_jvm_that_did_not_start_writes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive.SparkContext, "_jvm", None)
    assert ClassArchive(folder, KEY, None, folder / "names").make() is None


# --- making one ---

JAVA = """#!/bin/sh
for each in "$@"; do case "$each" in -XX:SharedArchiveFile=*) echo classes > "${each#*=}";; esac; done
"""


def made(folder: Path, java: str = JAVA, listed: str = "") -> list[str]:
    """Make an archive with a Java of our own; return what is in the folder, besides it."""
    program, names = folder.parent / "java", folder / f"{KEY}-1.classlist"
    program.write_text(java)
    program.chmod(0o755)
    names.write_text(listed)
    arguments = [sys.executable, "-I", class_dump.__file__, str(folder), KEY, str(names), str(program), "-cp", "a.jar"]
    found = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert (found.stdout, found.stderr) == ("", "")
    return sorted(each.name for each in folder.iterdir() if each != program)


def test_an_archive_is_complete_when_it_gets_its_name(folder: Path) -> None:
    [name] = made(folder)
    assert is_intact(folder / name)
    assert (folder / name).read_text() == "classes\n"
    assert made(folder) == [name]  # there is one: the list alone is deleted


@pytest.mark.parametrize("java", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\nexit 0\n", "no program"])
def test_a_java_that_fails_leaves_nothing_behind(java: str, folder: Path) -> None:
    assert made(folder, java) == []


def test_two_do_not_write_at_once_and_what_a_dead_one_left_is_replaced(folder: Path) -> None:
    part = folder / f"{KEY}.part"
    part.touch()
    assert made(folder) == [part.name]
    os.utime(part, (1000, 1000))
    [name] = made(folder)
    assert is_intact(folder / name)


def test_a_line_that_was_cut_off_is_left_out(folder: Path) -> None:
    copy = folder.parent / "read"
    java = f"#!/bin/sh\ncp {folder}/*.names {copy}\n" + JAVA.removeprefix("#!/bin/sh\n")
    made(folder, java, listed="java/lang/Object\nscala/Opt")
    assert copy.read_text() == "java/lang/Object\n"


@pytest.mark.parametrize("own_session", [True, False])
def test_it_yields_to_all_other_processes(own_session: bool, folder: Path) -> None:
    seen = folder.parent / "priority"
    java = f"#!/bin/sh\n(nice; cat /proc/self/autogroup 2>&1) > {seen}\n"
    program = [sys.executable, "-I", class_dump.__file__, str(folder), KEY, str(folder / "list"), str(folder / "java")]
    (folder / "list").touch()
    (folder / "java").write_text(java)
    (folder / "java").chmod(0o755)
    subprocess.run(program, check=True, start_new_session=own_session)
    niceness, *group = seen.read_text().splitlines()
    assert niceness == "19"
    if group and "nice" in group[0]:
        assert group[0].endswith(" nice 19") is own_session  # otherwise this process would be slow from now on


# --- what a killed process left ---

PIPELINE = "java/lang/Object\norg/apache/spark/sql/execution/streaming/runtime/MicroBatchExecution\nscala/Option\n"


def ended_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_list_of_a_killed_process_is_claimed_once(folder: Path) -> None:
    left = folder / f"{KEY}-{ended_pid()}-{'a' * 32}.classlist"
    left.write_text(PIPELINE)
    claimed = class_archive._claimed_list(folder, KEY)
    assert claimed is not None
    assert claimed.read_text() == PIPELINE
    assert not left.exists()
    assert class_archive._claimed_list(folder, KEY) is None  # its name has the pid of this process


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (f"{KEY}-{os.getpid()}-{'a' * 32}.classlist", PIPELINE),  # its process is running
        (f"{KEY}-{{pid}}-{'a' * 32}.classlist", "java/lang/Object\n"),  # it has run no pipeline
        (f"{'1' * 32}-{{pid}}-{'a' * 32}.classlist", PIPELINE),  # of another Java or Spark
        (f"{KEY}-{'a' * 32}.classlist", PIPELINE),  # without a pid
    ],
    ids=["running", "no pipeline", "other key", "no pid"],
)
def test_no_other_list_is_claimed(name: str, text: str, folder: Path) -> None:
    path = folder / name.format(pid=ended_pid())
    path.write_text(text)
    assert class_archive._claimed_list(folder, KEY) is None
    assert path.exists()
