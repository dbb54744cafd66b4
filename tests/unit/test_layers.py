"""Who may know whom: nobody imports upwards, no import cycles, and the core needs neither pyspark nor pyarrow."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import holdfast

SOURCE = Path(holdfast.__file__).parent

# Each line may use itself and those below it. A package stands for all of its modules.
LINES = [
    {"cli", "web", "__main__"},
    {"demo", "testing"},
    {"spark"},
    {"rewind"},
    {"sinks"},
    {
        *("coordinator", "recovery", "pruning", "control", "restore", "verification", "difference", "doctor"),
        *("in_doubt", "program", "log_needs", "plainspark", "cleaning", "transfer"),
    },
    {"eventlog", "sparkfiles", "stages", "stores"},
    {"repository", "_extras", "_lazy"},
    {
        "formats",
        "epoch",
        "policy",
        "barriers",
        "_transitions",
        "_validation",
        "_redaction",
        "_error_text",
        "_figures",
        "_html",
        "_lake_tables",
        "_offsets",
        "_topics",
    },
    {"errors"},
]
PURE = LINES[-1] | LINES[-2]
# No clock, thread, file or Spark on the two bottom lines.
IMPURE = {
    "time",
    "datetime",
    "threading",
    "asyncio",
    "os",
    "io",
    "pathlib",
    "tempfile",
    "shutil",
    "socket",
    "subprocess",
}
ALLOWED = {
    ("barriers", "threading"),  # a mutex for the claim; no thread is started
    ("policy", "datetime"),  # spans of time as arguments; no clock is read
}


@cache
def modules() -> dict[str, ast.Module]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = ast.parse(path.read_text())
    return found


def imports(tree: ast.Module) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "absolute imports only, so that a line's users can be found"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                is_module = inner.removeprefix("holdfast.") in modules()
                found.add(inner if is_module else str(node.module))
    return found


def own(tree: ast.Module) -> set[str]:
    return {name.removeprefix("holdfast.") for name in imports(tree) if name.startswith("holdfast.")}


def line_of(module: str) -> int:
    room = module.split(".", maxsplit=1)[0]
    return next(number for number, line in enumerate(LINES) if room in line)


def test_every_module_has_its_line() -> None:
    rooms = {name.split(".")[0] for name in modules() if name != "__init__"}
    assert rooms <= set().union(*LINES)
    assert len(rooms) > 15


def test_nobody_imports_upwards() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, tree in modules().items()
        if name != "__init__"
        for other in own(tree)
        if line_of(other) < line_of(name)
    ]
    assert wrong == []


def test_each_class_name_is_used_once() -> None:
    """A name that means one thing: a reader who searches for a class finds one."""
    found: dict[str, list[str]] = {}
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module)
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
    assert len(found) > 250


def test_there_are_no_import_cycles() -> None:
    graph = {name: own(tree) - {name} for name, tree in modules().items() if name != "__init__"}
    assert len(list(TopologicalSorter(graph).static_order())) >= len(graph)


def test_the_bottom_lines_use_no_clock_thread_file_or_spark() -> None:
    wrong = [
        f"{name} imports {other}"
        for name, tree in modules().items()
        if name.split(".")[0] in PURE
        for other in {each.split(".")[0] for each in imports(tree)}
        if other in IMPURE | {"pyspark", "pyarrow"} and (name, other) not in ALLOWED
    ]
    assert wrong == []


def test_only_spark_and_sinks_and_the_jobs_of_the_demo_import_pyspark() -> None:
    wrong = [
        name
        for name, tree in modules().items()
        if any(each.split(".")[0] == "pyspark" for each in imports(tree))
        and name.split(".")[0] not in ("spark", "sinks")
    ]
    assert set(wrong) == {"demo.job", "demo.plain", "demo.worker"}  # programs, as a user would write them


def test_stored_bytes_are_decoded_in_one_place() -> None:
    """The decoder raises more than its own errors, such as UnicodeDecodeError: `decoding` knows all of them."""
    wrong = {
        name
        for name, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("msgspec.json.decode", "msgspec.msgpack.decode")
    }
    assert wrong == {
        "formats.decoding",
        "formats.sealed_json",
    }  # a sealed record is read back before it is written


def test_the_core_works_where_neither_pyspark_nor_pyarrow_is_installed() -> None:
    program = """
import sys
sys.modules["pyspark"] = sys.modules["pyarrow"] = None  # importing either fails
import holdfast as hf
state = hf.stores.CheckpointState(hf.stores.CheckpointId("s", 1))
assert hf.stores.CheckpointState.from_bytes(state.to_bytes()) == state
hf.stores.DurableCheckpointStore(hf.repository.MemoryRepository(), 1).save(state)
stage = hf.stages.CheckpointedStage(1, hf.stages.MemoryBlocks(8), hf.stages.MsgpackCodec(int))
assert stage.checkpoint() == 1
try:
    hf.eventlog.EventLog
except ImportError as error:
    print(type(error).__name__, error)
try:
    hf.Pipeline
except ImportError as error:
    print(type(error).__name__, error)
assert "Pipeline" not in hf.__all__
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("MissingExtra")
    assert "pip install 'holdfast-spark[log]'" in done.stdout
    assert "pip install 'holdfast-spark[spark]'" in done.stdout


def test_importing_the_package_imports_nothing_heavy() -> None:
    program = "import sys, holdfast; print(sorted({'pyspark', 'pyarrow', 'msgspec'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_public_name_is_hidden_by_a_module_of_the_same_name() -> None:
    """Importing a module sets it on the package, over whatever the package gives out by that name."""
    assert set(holdfast.__all__) & {name.split(".")[0] for name in modules()} == set(holdfast._MODULES)


def test_public_names_resolve_and_type_checkers_see_the_same_ones() -> None:
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    tree = modules()["__init__"]
    typed = {
        (str(node.module).removeprefix("holdfast."), alias.name)
        for block in ast.walk(tree)
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules_ = {("holdfast", name) for name in holdfast._MODULES}
    assert typed == modules_ | {(home, name) for home, names in holdfast._HOMES.items() for name in names}
    assert set(dir(holdfast)) == set(holdfast.__all__)


def test_the_root_stays_small() -> None:
    """About 40 names besides the submodules. A new one belongs in a submodule, unless most programs need it."""
    assert len([name for name in holdfast.__all__ if name not in holdfast._MODULES]) <= 45
