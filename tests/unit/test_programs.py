"""Targets of `holdfast run`: what is found, what is refused, and whose frames are shown."""

import shlex
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.programs import Target, find_target, pipeline_of, trace_of
from holdfast.errors import BadValue, ProgramFailed
from holdfast.spark.starting import checked_program

ONE = 'import holdfast as hf\npipeline = hf.Pipeline("one", root="root")\nagain = pipeline\n'


@pytest.fixture(autouse=True)
def put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    before, path, argv = set(sys.modules), list(sys.path), sys.argv
    yield
    sys.path[:], sys.argv = path, argv
    for name in set(sys.modules) - before:
        if not name.startswith(("pyspark", "holdfast", "py4j", "numpy", "pandas", "pyarrow")):
            del sys.modules[name]


def write(path: str, text: str) -> str:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return path


def refused(target: str, kind: type[Exception] = BadValue) -> str:
    with pytest.raises(kind) as caught:
        pipeline_of(find_target(target))
    return str(caught.value)


def test_a_pipeline_is_found_by_name_or_as_the_only_one_or_made_by_a_function() -> None:
    write("jobs/app.py", ONE + "import beside\ndef make():\n    return hf.Pipeline(beside.NAME, root='root')\n")
    write("jobs/beside.py", "NAME = 'made'\n")
    for target, name in (("jobs/app.py", "one"), ("jobs/app.py:again", "one"), ("jobs/app.py:make", "made")):
        assert pipeline_of(find_target(target), ["--day", "3"]).name == name
    assert sys.argv == [str(Path("jobs/app.py").absolute()), "--day", "3"]


ODD = (
    "jobs\u3000one/app.py",
    "a\xa0b.py",
    "za\u200cb.py",
    "a\nb.py",
    "\x1b[31m.py",
    "bad\udcff.py",
    "a" * 1001 + ".py",
)


@pytest.mark.parametrize("text", ["app.py:pipeline", "a b.py", "café.py", *ODD])
def test_a_pipeline_starts_from_a_program_of_any_name(text: str) -> None:
    """The name is recorded for the page only if it is one line that can be shown and typed again."""
    recorded = checked_program(Target(text, None, "", None).recorded)
    assert shlex.split(recorded) == ([] if text in ODD else [text])


def test_a_module_is_found_from_here() -> None:
    write("pack/__init__.py", "")
    write("pack/orders.py", ONE + "assert __name__ == 'pack.orders'\n")
    assert pipeline_of(find_target("pack.orders:pipeline")).name == "one"


def test_what_is_not_there_is_said_with_what_is() -> None:
    write("app.py", ONE + "two = hf.Pipeline('two', root='root')\nnumber = 5\ndef needs(day): ...\ndef none(): ...\n")
    write("none.py", "x = 1\n")
    assert "the file does not exist" in refused("ap.py:pipeline") and "app.py" in refused("ap.py")
    for folder in ("./:pipeline", ".", "..", ".:pipeline", str(Path.cwd()), "~"):
        assert "it is a folder" in refused(folder) or folder == "~"
    assert "the file does not exist" in refused("~")
    Path("in").mkdir()
    assert "it is a folder" in refused("in") and "it is a folder" in refused("in:pipeline")
    write("in/only.py", "x = 1\n")
    assert "has 1 Python file: only.py" in refused("in")
    assert "2 pipelines: pipeline, again, two. Next: pass app.py:pipeline" in refused("app.py")
    assert "no such name; its pipelines: pipeline, again, two" in refused("app.py:pipelin")
    assert "expected a Pipeline; app.py:number is of type int" in refused("app.py:number")
    assert "needs arguments: day" in refused("app.py:needs")
    assert "of type NoneType" in refused("app.py:none")
    assert "no pipeline at its top level" in refused("none.py")
    assert "the module does not exist" in refused("nowhere.to.be.found:pipeline")
    assert all("expected app.py:pipeline or package" in refused(each) for each in (":x", "app.py:not a name"))
    write("deep/app.py", ONE)
    assert refused("deep.ap:pipeline").count("module does not exist") == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("import holdfast\nimport not_there_at_all\n", "install 'not_there_at_all'"),
        ("def f():\n    raise KeyError('mine')\nf()\n", "KeyError: 'mine'"),
        ("import json\njson.loads('{')\n", "JSONDecodeError"),
        ("import sys\nsys.exit(3)\n", "sys.exit(3)"),
        ("import holdfast as hf\nhf.Pipeline('bad name', root='r')\n", "begin with a letter or digit"),
        (ONE + "pipeline.run()\n", 'put that line under `if __name__ == "__main__":`'),
        (ONE + "pipeline.start()\n", "only being loaded"),
    ],
)
def test_what_a_program_raises_is_shown_by_its_own_frames(text: str, says: str) -> None:
    write("app.py", text)
    with pytest.raises(ProgramFailed) as caught:
        pipeline_of(find_target("app.py:pipeline"))
    assert says in str(caught.value)
    trace = caught.value.trace
    assert f'{Path("app.py").absolute()}", line' in trace
    assert trace.count("File ") <= 2
    assert "programs.py" not in trace and "importlib" not in trace and "json/" not in trace


def test_a_long_error_is_cut() -> None:
    try:
        raise ValueError("\n".join(["page"] * 500))
    except ValueError as error:
        assert len(trace_of(error).splitlines()) < 50


@pytest.mark.parametrize(
    "text",
    ["raise KeyError('mine')\n", "import holdfast as hf\nhf.Pipeline('bad name', root='r')\n"],
)
def test_the_message_of_an_error_is_shown_once(text: str) -> None:
    """The command prints the traceback and then the error: the message is in the error."""
    write("app.py", text)
    with pytest.raises(ProgramFailed) as caught:
        pipeline_of(find_target("app.py:pipeline"))
    assert caught.value.trace.splitlines()[-1].strip() == text.splitlines()[-1]


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        ("hf.SqliteSink('a.db', table='t', keys=['k'])", "did you mean 'key'?"),
        (
            "hf.Pipeline('p', root='r').stream(sinks=[hf.FileSink('o')], outputmode='append')",
            "Did you mean 'output_mode'?",
        ),
        ("hf.SqliteSink('a.db', table='t', zzz=1)", "fix the program"),
    ],
)
def test_a_misspelled_keyword_is_told_what_was_meant(call: str, meant: str) -> None:
    write("app.py", f"import holdfast as hf\n{call}\n")
    with pytest.raises(ProgramFailed) as caught:
        pipeline_of(find_target("app.py:pipeline"))
    assert meant in str(caught.value)
